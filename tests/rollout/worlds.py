"""Small environments and agents for the tests of rollouts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tests.inference.pictures import picture
from uirl.environments import BaseEnvironment
from uirl.images import ImageStore
from uirl.inference import ChatRenderer, LoadedModel, ScriptedInferenceEngine
from uirl.inference.base import SamplingParams
from uirl.parsers import create_parser
from uirl.rollout import Collector, EngineAgent, EpisodeLimits, EpisodeOptions, EpisodeSpec
from uirl.types import Observation, Task, Trajectory


class Countdown(BaseEnvironment):
    """Ends after `length` steps; pays 1 for saying 'yes'."""

    runs_inline = True

    def __init__(self, length: int = 3, pictures: bool = False) -> None:
        super().__init__()
        self.length, self.pictures = length, pictures

    def reset(self, seed: int | None = None) -> Any:
        self.left, self.seed = self.length, seed or 0
        return self._look(f"start {self.seed % 7}")

    def step(self, action: str) -> Any:
        self.left -= 1
        return self._look(f"left {self.left}"), float(action == "yes"), self.left == 0, {"success": self.left == 0}

    def get_state_description(self) -> str:
        return f"left {self.left}"

    def expert_action(self) -> str:
        return "yes"

    def _look(self, text: str) -> Observation:
        return Observation(text, (picture(self.left),) if self.pictures else ())


class Fragile(Countdown):
    """Raises in the middle of every episode whose seed is in `bad`."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad = bad

    def step(self, action: str) -> Any:
        if self.seed in self.bad and self.left == 2:
            raise OSError("the cable was pulled")
        return super().step(action)


def scripted(loaded: LoadedModel, *replies: str) -> ScriptedInferenceEngine:
    """An engine that says `replies` in turn, for ever."""
    ends = loaded.tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"]
    ids = [loaded.tokenizer(text, add_special_tokens=False)["input_ids"] + ends for text in replies]
    said = iter(range(10**9))
    return ScriptedInferenceEngine(lambda request: ids[next(said) % len(ids)], end_ids=tuple(ends))


def collector(loaded: LoadedModel, environment: BaseEnvironment, **options: Any) -> Collector:
    """A collector; what `EpisodeOptions` knows among `options` goes there."""
    of_episode = {field.name: options.pop(field.name) for field in fields(EpisodeOptions) if field.name in options}
    episode = EpisodeOptions(**{"limits": EpisodeLimits(8)} | of_episode)
    parser = create_parser(environment.action_format)
    return Collector(environment, ChatRenderer(loaded), parser, ImageStore(), episode, **options)


def specs(count: int, group: str = "g") -> list[EpisodeSpec]:
    return [EpisodeSpec(Task("countdown"), i, 1000 + i, f"{group}-{i}", group) for i in range(count)]


def play_with(engine: Any, max_tokens: int = 20) -> Any:
    return lambda spec: EngineAgent(engine, SamplingParams(max_tokens), spec.trajectory_id)


async def played(loaded: LoadedModel, environment: BaseEnvironment, *replies: str, **options: Any) -> Trajectory:
    """The record of one episode in which the policy says `replies` in turn, played once."""
    runner = collector(loaded, environment, retries=0, **options)
    (record,) = await runner.collect(specs(1), play_with(scripted(loaded, *replies)))
    return record
