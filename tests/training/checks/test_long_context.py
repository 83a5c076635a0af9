"""`uirl check` finds a window that the engine ignores, which short episodes never meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.inference.windowed import WINDOW, windowed_model
from uirl.config import ConfigStore
from uirl.inference import TransformersInferenceEngine
from uirl.inference.base import Generation, GenerationRequest
from uirl.inference.embedded import runner
from uirl.inference.models import attention
from uirl.inference.models.tiny import CHAT_TEMPLATE
from uirl.training.checks import preflight as checks
from uirl.training.checks.preflight import REPLY, UNKNOWN, Finding, preflight


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    loaded = windowed_model("mistral")
    loaded.tokenizer.chat_template = CHAT_TEMPLATE
    path = tmp_path_factory.mktemp("mistral")
    loaded.save(path)
    return path


def found(folder: Path, *overrides: str) -> dict[str, Finding]:
    config = ConfigStore().override(
        [
            f"model.local_path={folder}",
            "model.device=cpu",
            "environment.name=guess_number",
            "environment.options={}",
            "inference.max_tokens=4",
            "inference.max_turns=1",
            *overrides,
        ]
    )
    return {finding.what: finding for finding in preflight(config)}


def test_a_window_that_the_engine_keeps_is_found_right(folder: Path) -> None:
    finding = found(folder)["long sequences"]
    assert finding.ok, finding.detail
    assert f"over {3 * WINDOW} tokens, more than the window of {WINDOW}" in finding.detail


def test_a_window_that_the_engine_ignores_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "prove_attention", lambda loaded: None)
    monkeypatch.setattr(attention, "_within", lambda kind, size, seen, key, query: seen)
    finding = found(folder)["long sequences"]
    assert not finding.ok
    assert "differently from the model's own forward" in finding.detail


async def test_a_reply_that_differs_at_one_token_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = windowed_model("mistral")
    engine = TransformersInferenceEngine(loaded)
    generate = engine.generate

    async def odd(request: GenerationRequest) -> Generation:
        reply = await generate(request)
        assert reply.log_probs is not None
        return replace(reply, log_probs=(*reply.log_probs[:-1], reply.log_probs[-1] + 2.0))

    monkeypatch.setattr(engine, "generate", odd)
    found = await checks.long_gap(engine, loaded, ConfigStore().inference)
    assert found is not None
    assert found.gap == pytest.approx(2.0, abs=1e-3)


def test_a_context_shorter_than_the_window_is_said(folder: Path) -> None:
    finding = found(folder, "inference.max_context=24", "inference.max_tokens=2")["long sequences"]
    assert finding.ok
    assert f"beyond the window of {WINDOW}" in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "positions", "tokens"),
    [((), 4096, UNKNOWN), (("inference.max_context=96",), 4096, 96 - REPLY), ((), 128, 128 - REPLY)],
)
def test_without_a_window_a_plain_length_that_the_context_holds_is_tried(
    tmp_path: Path, overrides: tuple[str, ...], positions: int, tokens: int
) -> None:
    loaded = windowed_model("qwen2", use_sliding_window=False, max_position_embeddings=positions)
    loaded.tokenizer.chat_template = CHAT_TEMPLATE
    loaded.save(tmp_path)
    finding = found(tmp_path, *overrides)["long sequences"]
    assert finding.ok, finding.detail
    assert f"over {tokens} tokens," in finding.detail, finding.detail


@pytest.mark.slow
def test_no_more_tokens_are_tried_than_are_cheap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = sum(p.numel() for p in windowed_model("mistral").model.parameters())
    monkeypatch.setitem(checks.WORK, "cpu", 8.0 * weights * 6)
    finding = found(folder)["long sequences"]
    assert "over 6 tokens; a sequence beyond the window of 8 would take too long here" in finding.detail
