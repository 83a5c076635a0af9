"""Any OpenAI-compatible server: its faults, its key, its model, and what it is good for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.inference.openai.world import KEY, TALK, asked_of, config_of
from tests.inference.stand_in_http import Answer
from uirl.config import ConfigStore
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import ChatRenderer, LoadedModel, Message
from uirl.inference.openai.engine import OPENAI, OpenAIInferenceEngine
from uirl.training import RayPPOTrainer

SHAPES = [
    (Answer([1]), r"answer is \[1\]; expected an object"),
    (Answer({"choices": []}), "choices has 0 items; expected at least 1"),
    (Answer({"choices": [3]}), r"choices\[0\] is 3; expected an object"),
    (Answer({"choices": [{"finish_reason": "stop"}]}), r"choices\[0\]\.(message|text|token_ids) is missing"),
]
LOST = [
    (Answer("<html>", 502), "502 Bad Gateway"),
    (Answer("no JSON"), "no JSON: 'no JSON'"),
    (Answer({"error": "late"}, seconds=1.0), "no answer within 0.3 s"),
    (Answer({"x": "y" * 99}, keep=0.5), "the connection broke"),
]


@pytest.mark.parametrize(
    ("grade", "fault", "message"),
    [(grade, *shape) for grade in ("ids", "text", "chat") for shape in SHAPES] + [("ids", *lost) for lost in LOST],
)
async def test_every_fault_is_a_typed_failure(
    make: Any, lm: LoadedModel, grade: str, fault: Answer, message: str
) -> None:
    engine, server = make(lm, grade)
    asked = asked_of(lm)
    await engine.generate(asked)
    if fault.seconds:
        engine._client.timeout = 0.3
    server.faults += [fault]
    with pytest.raises(EngineFailure, match=message):
        await engine.generate(asked)
    server.faults.clear()  # where the time was over before the request came
    engine._client.timeout = 60.0
    assert (await engine.generate(asked)).token_ids


async def test_a_server_that_is_down_is_not_taken_for_one_that_can_do_less(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    server.faults += [Answer("starting", 503)]
    with pytest.raises(EngineFailure, match="503"):
        await engine.generate(asked_of(lm))
    server.faults += [Answer({"object": "list", "data": [{"id": lm.name}]}), Answer("who are you", 401)]
    with pytest.raises(EngineFailure, match="TEST_KEY is not set"):
        await engine.generate(asked_of(lm))
    assert (await engine.generate(asked_of(lm))).log_probs is not None
    server.close()
    failed = await asyncio.gather(*[engine.generate(asked_of(lm)) for _ in range(4)], return_exceptions=True)
    assert all(isinstance(e, EngineFailure) for e in failed)


async def test_the_key_goes_out_and_stays_out_of_sight(
    make: Any, lm: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TEST_KEY", KEY)
    told = []
    for grade in ("ids", "text", "chat"):
        engine, server = make(lm, grade)
        asked = asked_of(lm)
        await engine.generate(asked)
        assert {s.headers.get("authorization") for s in server.seen} == {f"Bearer {KEY}"}
        for fault in (Answer(f"bad key {KEY}", 401), Answer({"choices": [KEY]}), Answer({"choices": [{"text": KEY}]})):
            server.faults += [fault]
            with pytest.raises(EngineFailure) as caught:
                await engine.generate(asked)
            told += [str(caught.value), repr(caught.value.__cause__), repr(engine), repr(engine._client)]
    assert any("serves uirl/tiny-lm" in line for line in caplog.text.splitlines())
    assert not [text for text in [*told, caplog.text] if KEY in text]


# -- which model, and what for ---------------------------------------------------------------------------------


async def test_the_model_is_the_one_that_is_asked_for_or_the_only_one(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat", models=["some/other"])
    await engine.generate(asked_of(lm))
    assert server.seen[-1].body["model"] == "some/other"
    engine, server = make(lm, "chat", models=["a", lm.name, "b"])
    await engine.generate(asked_of(lm))
    assert server.seen[-1].body["model"] == lm.name
    engine, server = make(lm, "chat", models=None)  # it lists none
    await engine.generate(asked_of(lm))
    assert server.seen[-1].body["model"] == lm.name
    engine, server = make(lm, "chat", models=["a", "uirl/tiny"])
    with pytest.raises(ConfigError, match=r"inference\.server_model.*did you mean 'uirl/tiny'"):
        await engine.generate(asked_of(lm))
    config = config_of(server.url)
    config.inference.server_model = "a"
    engine = OpenAIInferenceEngine.from_config(config.engine_settings, lm, shared=True)
    await engine.generate(asked_of(lm))
    assert server.seen[-1].body["model"] == "a"


@pytest.mark.parametrize(
    ("given", "used"),
    [(None, OPENAI), ("http://h:1", "http://h:1/v1"), ("http://h:1/", "http://h:1/v1"), ("http://h/api/v3", None)],
)
def test_an_address_without_a_path_gets_the_usual_one(lm: LoadedModel, given: str | None, used: str | None) -> None:
    config = ConfigStore()
    config.inference.backend, config.inference.server_url = "openai", given
    engine = OpenAIInferenceEngine.from_config(config.engine_settings, lm, shared=True)
    assert engine._client.base_url == (used or given)


async def test_the_context_limit_cuts_the_response(make: Any, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    _, server = make(lm, "ids")
    config = config_of(server.url)
    config.inference.max_context = len(chat.whole(TALK)) + 2
    engine = OpenAIInferenceEngine.from_config(config.engine_settings, lm, shared=True)
    assert len((await engine.generate(asked_of(lm))).token_ids) <= 2
    longer = (*TALK, Message("assistant", "ok"), Message("user", "a much longer prompt"))
    with pytest.raises(EngineFailure, match=r"expected 1 to \d+ \(inference\.max_context\)"):
        await engine.generate(asked_of(lm, longer))


def test_a_run_can_be_evaluated_and_not_trained(make: Any, lm: LoadedModel, tmp_path: Any) -> None:
    _, server = make(lm, "chat")
    config = config_of(server.url)
    config.model.model_name, config.environment.name = "uirl/tiny-lm", "guess_number"
    config.logging.runs_dir, config.inference.max_tokens, config.inference.max_turns = str(tmp_path), 6, 2
    trainer = RayPPOTrainer(config)
    try:
        report = trainer.evaluate(4)
        assert report.episodes == 4
        assert report.failures == 0
        turns = [turn for t in report.trajectories for turn in t.turns]
        assert turns
        assert all(turn.response_ids for turn in turns)
        asked = len(server.seen)
        with pytest.raises(ContractError, match="somebody else's model, which cannot be trained: evaluate with it"):
            trainer.fit(1, 1)
        assert len(server.seen) == asked  # it ended before the first episode
    finally:
        trainer.cleanup()
