"""What of a run can be told to another process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_model
from uirl import BaseEnvironment, ConfigStore, Observation, StepResult
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.errors import StorageError
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import load_model
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels.episodes import ActorHost, ActorJob, Played, job_for, made_of, probe_of
from uirl.types import Task, Trajectory
from uirl.workers.codec import decode, encode, typed


def reward(trajectory: Trajectory) -> float:
    return 2.5


class Judge:
    def __init__(self, says: Any) -> None:
        self.says = says

    def score(self, trajectory: Trajectory) -> Any:
        return self.says

    __call__ = score


def carried(job_and_made: tuple[ActorJob, bytes | None]) -> tuple[BaseEnvironment | None, Any]:
    return made_of(job_and_made[1])


def test_a_job_says_where_modules_and_files_are() -> None:
    job, made = job_for(ConfigStore().to_dict(), ".", {"train": 3})
    assert made is None
    assert made_of(made) == (None, None)
    assert job.places == {"train": 3}
    assert str(Path.cwd()) == job.folder
    assert job.search_path


@pytest.mark.parametrize("function", [reward, lambda trajectory: 2.5, Judge(2.5).score, Judge(2.5)])
def test_functions_lambdas_methods_and_objects_judge_in_another_process(function: Any) -> None:
    _, made = carried(job_for(ConfigStore().to_dict(), ".", {}, reward_fn=function))
    assert (made is function) == (function is reward), "what a module has goes by its name"
    assert made(Trajectory()) == 2.5


def test_an_environment_goes_with_what_it_holds_and_what_it_shares_with_the_reward_function() -> None:
    class Local(GuessNumberEnvironment):
        """Not importable: a class inside a function."""

    environment = Local(n=5)
    made, judge = carried(
        job_for(ConfigStore().to_dict(), ".", {}, environment=environment, reward_fn=Judge(environment).score)
    )
    assert type(made).__name__ == "Local"
    assert made is not environment
    assert made.n == 5
    assert judge(Trajectory()) is made


def test_other_templates_have_other_probes() -> None:
    plain, other = tiny_model("uirl/tiny-lm"), tiny_model("uirl/tiny-lm")
    other.tokenizer.chat_template = (
        "{% for m in messages %}>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert probe_of(ChatRenderer(plain)) == probe_of(ChatRenderer(tiny_model("uirl/tiny-lm")))
    assert probe_of(ChatRenderer(plain)) != probe_of(ChatRenderer(other))


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
    assert len(vision.cache.kept) == 1, "the newest alone"
