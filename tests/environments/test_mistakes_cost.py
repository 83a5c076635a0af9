"""Where steps cost, a reply that is no action costs no less than one, whoever answers it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from tests.environments.remote.openenv_stand_in import stand_in
from tests.environments.remote.running import running, serving
from uirl.environments import EnvironmentSession, ToolEnvironment
from uirl.environments.adapters.calls import CalledEpisode
from uirl.environments.adapters.gymnasium import GymnasiumEnvironment
from uirl.environments.base import BaseEnvironment
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.remote.client.native import NativeRemoteEnvironment
from uirl.environments.remote.client.openenv import OpenEnvEnvironment
from uirl.errors import ConfigError
from uirl.rollout.reward import judge_episode
from uirl.types import Action, Observation, StepResult, Task, Trajectory, Turn

TURNS = 40


class Walk(gymnasium.Env[Any, Any]):
    """Steps cost 1, one of them 5, and after 30 the walk is over."""

    observation_space, action_space = spaces.Discrete(99), spaces.Discrete(3)

    def reset(self, **keys: Any) -> Any:
        super().reset(**keys)
        self.n = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.n += 1
        return self.n, -5.0 if action == 2 else -1.0, self.n >= 30, False, {}


class Toll(WebEnvironment):
    """Every turn costs 0.1."""

    html, goal = "<!doctype html><body>Nothing here</body>", "Wait."
    actions = ("click", "wait")
    max_turns = TURNS
    state = "({})"

    def reward(self, before: Any, now: Any) -> float:
        return -0.1


class Silent(BaseEnvironment):
    """Every step costs 1, and nobody says what a mistake costs."""

    def reset(self) -> str:
        return ""

    def step(self, action: str) -> Any:
        return "", -1.0, False, {}

    def get_state_description(self) -> str:
        return ""


def walk(**options: Any) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(Walk, max_turns=TURNS, **options)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def text(*replies: str) -> list[Action]:
    return [Action(text=reply) for reply in replies]


@contextlib.contextmanager
def here(make: Callable[[], BaseEnvironment]) -> Iterator[BaseEnvironment]:
    yield make()


@contextlib.contextmanager
def served() -> Iterator[BaseEnvironment]:
    with serving(walk()) as server:
        yield NativeRemoteEnvironment(url=server.url)


@contextlib.contextmanager
def foreign(**options: Any) -> Iterator[BaseEnvironment]:
    with running(stand_in(drops=True, pays=-1.0)) as url:
        yield OpenEnvEnvironment(url=url, max_turns=TURNS, **options)


def calling(*calls: tuple[str, dict[str, Any]]) -> list[Action]:
    return [Action.of(name, **arguments) for name, arguments in calls]


UNREADABLE = Action(text="<tool_call>{", parse_error="no JSON")
NUMBERS = (text("0"), text("1"), text("2"))
DROP = calling(("drop", {"column": 1}))
Member = tuple[Callable[[], Any], Sequence[list[Action]], Sequence[list[Action]]]
MEMBERS: dict[str, Member] = {
    "gymnasium": (lambda: here(walk), NUMBERS, [text("left"), text("7"), text("")]),
    "gymnasium, as an object": (
        lambda: here(lambda: GymnasiumEnvironment(Walk(), max_turns=TURNS)), NUMBERS, [text("left")]
    ),
    "gymnasium: Taxi": (lambda: here(lambda: GymnasiumEnvironment("Taxi-v4")), (text("0"), text("4")), [text("go")]),
    "gymnasium: Pendulum": (
        lambda: here(lambda: GymnasiumEnvironment("Pendulum-v1")), (text("0"), text("2")), [text("go"), text("9")]
    ),
    "tools around it": (
        lambda: here(lambda: ToolEnvironment(registry=[add], environment=walk())),
        NUMBERS,
        [[UNREADABLE], calling(("fly", {})), calling(("add", {"a": 1})), text("left")],
    ),
    "tools around what has no price, once it charged": (
        lambda: here(lambda: ToolEnvironment(registry=[add], environment=Silent())), (text("on"),),
        [[*text("on"), UNREADABLE], [*text("on"), *calling(("fly", {}))]],
    ),
    "uirl serve": (served, NUMBERS, [text("left")]),
    "a server of OpenEnv, once it charged": (foreign, [DROP], [[*DROP, UNREADABLE], [*DROP, *calling(("drop", {}))]]),
    "a server of OpenEnv, with a price": (
        lambda: foreign(invalid_reward=-2), [DROP], [[UNREADABLE], calling(("drop", {"column": "left"}))]
    ),
    "a page": (
        lambda: here(Toll), [calling(("click", {"x": 9, "y": 9}))],
        [[UNREADABLE], calling(("fly", {})), calling(("click", {"x": 9999, "y": 9}))],
    ),
}  # fmt: skip


async def play(env: BaseEnvironment, actions: list[Action]) -> tuple[float, Any]:
    """Total reward and the last word on success of an episode of these actions, the last one repeated."""
    session = EnvironmentSession(env.spawn(), cuts=True)
    await session.reset(seed=3)
    total, result = 0.0, StepResult(Observation())
    for turn in range(TURNS):
        result = await session.step(actions[min(turn, len(actions) - 1)])
        total += result.reward
        if result.done:
            break
    await session.close()
    return total, result.observation.info.get("success")


@pytest.mark.parametrize("member", MEMBERS)
async def test_a_reply_that_is_no_action_is_never_worth_more_than_one(member: str) -> None:
    make, policies, mistakes = MEMBERS[member]
    with make() as env:
        worst = min([(await play(env, actions))[0] for actions in policies])
        assert worst < 0
        for actions in mistakes:
            total, success = await play(env, actions)
            assert total <= worst, actions
            assert success is not True


async def test_a_call_that_cannot_be_made_is_never_worth_more_than_one() -> None:
    async def total(name: str, arguments: dict[str, Any], env: BaseEnvironment) -> float:
        episode = CalledEpisode(env)
        await episode.reset(None, 3)
        for _ in range(30):
            with contextlib.suppress(ValueError):
                await episode.call(name, arguments)
        await episode.close()
        return episode.total

    worst = await total("act", {"action": "2"}, walk())
    assert worst == -150
    for name, arguments in (("fly", {}), ("act", {}), ("act", {"action": 2}), ("act", {"action": "left"})):
        assert await total(name, arguments, walk()) <= worst, name
    assert await total("fly", {}, ToolEnvironment(registry=[add], environment=walk())) <= worst


def test_turns_of_nonsense_are_no_success_whatever_return_is_asked() -> None:
    env = walk(success_return=-1000)
    env.reset(seed=0)
    *_, (_, _, terminated, truncated, info) = [env.step("left") for _ in range(TURNS)]
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_the_price_is_an_option_and_the_same_in_whatever_order_it_is_asked() -> None:
    def price(*replies: str, **options: Any) -> float:
        env = walk(**options)
        env.reset(seed=0)
        return [env.step(reply)[1] for reply in (*replies, "left")][-1]

    assert price() == price("0", "0") == price("2") == -5
    assert price(invalid_reward=-0.5) == price("2", invalid_reward=-0.5) == -0.5
    for wrong in (1, float("nan"), float("-inf"), "cheap"):
        with pytest.raises(ConfigError, match="invalid_reward"):
            walk(invalid_reward=wrong)


async def test_an_episode_that_a_reward_function_cannot_read_is_never_worth_more_than_one_that_it_can() -> None:
    def judged(reply: str) -> Trajectory:
        turn = Turn(Observation(), action=Action(text=reply))
        return Trajectory(task=Task("t"), turns=[turn])

    def distance(record: Trajectory) -> float:
        return -abs(3.0 - float(record.turns[-1].action.text))

    async def total(reply: str) -> float:
        record = judged(reply)
        await judge_episode(record, distance, walk(), None)  # type: ignore[arg-type]
        return record.total_reward()

    readable = [await total(reply) for reply in ("3", "9", "1")]
    assert readable == [0, -6, -2]
    assert await total("three") <= min(readable)
