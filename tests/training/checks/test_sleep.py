"""`uirl check` notices an engine that comes back from its sleep with other weights, or with more memory than it had."""

from __future__ import annotations

import pytest

from tests.inference.vllm.sleeping import stand_in
from uirl.config import ConfigStore
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.training.checks.preflight import Finding, preflight

WEIGHTS, MEMORY = "weights after a sleep of the engine", "memory of a sleep of the engine"
BASE = [
    *("model.model_name=uirl/tiny-lm", "model.device=cpu", "environment.name=guess_number"),
    *("environment.options={n: 4, guesses: 1, demonstrator: random}", "inference.max_tokens=4"),
    "inference.backend=vllm",
]
LORA = ["model.use_lora=true", "inference.sleep=1", "training.warm_start.learning_rate=0.01"]


def findings(*changes: str) -> dict[str, Finding]:
    return {finding.what: finding for finding in preflight(ConfigStore().override([*BASE, *changes]))}


@pytest.mark.parametrize("changes", [["inference.sleep=1"], ["inference.sleep=2"], LORA])
def test_an_engine_that_sleeps_well_passes(changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    found = findings(*changes)
    assert all(finding.ok for finding in found.values()), found
    assert "differ by" in found[WEIGHTS].detail
    assert found[MEMORY].detail == "0 MiB before, 0 MiB asleep, 0 MiB loaded, 0 MiB awake"


def test_an_engine_that_does_not_sleep_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(VLLMInferenceEngine, "sleeps", property(lambda self: False, lambda self, value: None))
    assert not {WEIGHTS, MEMORY} & findings("inference.sleep=1").keys()


@pytest.mark.parametrize(
    ("fault", "changes", "what", "detail"),
    [
        ("old weights", ["inference.sleep=1"], WEIGHTS, "samples exactly as before the update"),
        ("old weights", ["inference.sleep=2"], WEIGHTS, "engine and learner differ by"),
        ("half", ["inference.sleep=2"], WEIGHTS, "engine and learner differ by"),
        ("forgets", LORA, WEIGHTS, "engine and learner differ by"),
        ("no tags", ["inference.sleep=2"], MEMORY, "wake up by tag"),
        ("beside", ["inference.sleep=2"], MEMORY, "the weights are there twice"),
        ("awake", ["inference.sleep=1"], MEMORY, "the learner lacks them"),
    ],
)
def test_what_a_sleep_can_break_is_found(
    fault: str, changes: list[str], what: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are not synchronised after the wake-up, a base that is lost under adapters, tensors that are not
    loaded again, weights that are there twice, memory that the learner never gets."""
    stand_in(monkeypatch, faults=[fault])
    found = findings(*changes)
    bad = [finding for finding in found.values() if not finding.ok]
    assert [finding.what for finding in bad] == [what], bad
    assert detail in bad[0].detail
    assert "set inference.sleep=off" in bad[0].detail


def test_an_engine_that_answers_asleep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stays_awake(self: VLLMInferenceEngine) -> None: ...

    stand_in(monkeypatch)
    monkeypatch.setattr(VLLMInferenceEngine, "sleep", stays_awake)
    finding = findings("inference.sleep=1")[WEIGHTS]
    assert not finding.ok
    assert "answered while it slept" in finding.detail


def test_an_engine_that_does_not_wake_up_is_found_and_the_checks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stand_in(monkeypatch)
    wake = VLLMInferenceEngine._wake

    async def broken(self: VLLMInferenceEngine, part: str) -> None:
        made[0].refuses = {"wake kv_cache"}
        await wake(self, part)

    monkeypatch.setattr(VLLMInferenceEngine, "_wake", broken)
    found = findings("inference.sleep=2")
    assert "did not take wake kv_cache" in found[WEIGHTS].detail
    assert not found[WEIGHTS].ok
    assert found["resume"].ok
