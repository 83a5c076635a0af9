"""An actor in this process: what it sends is plain data, whatever its environment made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from uirl import BaseEnvironment, ConfigStore, Observation, StepResult
from uirl.errors import StorageError
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.models.loading import load_model
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels.episodes import ActorHost, ActorJob, Played
from uirl.types import Task
from uirl.workers.codec import decode, encode, typed


class Stubborn(str):
    """Text that refuses to leave its process."""

    def __reduce__(self) -> Any:
        raise TypeError("this stays here")


class Strange(BaseEnvironment):
    """Observations that are text, and no plain text."""

    def reset(self, seed: int | None = None) -> Observation:
        return Observation(Stubborn("say something"), state_key=Stubborn("start"))

    def step(self, action: str) -> StepResult:
        return StepResult(Observation(Stubborn("done"), info={"note": Stubborn("fine")}), 1.0, terminated=True)

    def get_state_description(self) -> str:
        return ""


class Secretive(Strange):
    """Puts what no store holds into its information."""

    def step(self, action: str) -> StepResult:
        return StepResult(Observation("done", info={"x": lambda: None}), 1.0, terminated=True)


def host(kind: type[BaseEnvironment]) -> ActorHost:
    config = ConfigStore()
    config.model.model_name, config.model.tiny.hidden_size, config.inference.max_tokens = "uirl/tiny-lm", 32, 4
    config.environment.name = f"{kind.__module__}:{kind.__qualname__}"
    job = ActorJob(config.to_dict(), {"train": 1, "eval": 1})
    return ActorHost(job, TransformersInferenceEngine(load_model(config.model)), None)


SPEC = EpisodeSpec(Task("t"), 1, 2, "a-0", "a")


async def test_what_an_environment_made_goes_as_plain_data():
    played = await host(Strange).play(SPEC, Order())
    assert typed(decode(encode(played)[0], {}.__getitem__)[0], Played) == played
    (turn,) = played.trajectory.turns
    assert type(turn.observation.text) is str
    assert turn.observation == Observation("say something", state_key="start")
    assert turn.info == {"note": "fine"}


async def test_what_no_store_holds_is_named():
    with pytest.raises(StorageError, match=r"turns\[0\].info.x is <function"):
        await host(Secretive).play(SPEC, Order())


async def test_an_actor_keeps_few_of_the_pixels_that_only_a_model_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("uirl.training.channels.episodes.PIXELS", 1)
    config = ConfigStore()
    config.inference.max_tokens = 4
    job = ActorJob(config.to_dict(), {"train": 1, "eval": 1})
    actor = ActorHost(job, TransformersInferenceEngine(load_model(config.model)))
    for seed in range(3):
        await actor.play(replace(SPEC, environment_seed=seed), Order())
    vision = actor.chat._loaded.vision
    assert vision is not None
    assert len(vision._cache) == 1, "the newest alone"
