"""Beginnings of episodes played again: what certifies them, and new episodes that start behind them; who plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.rollout.worlds import Countdown, collector, play_with, scripted, specs
from uirl.environments import EnvironmentSession, ScreenEnvironment
from uirl.errors import ContractError, EnvironmentFailure
from uirl.images import ImageStore, screenshot
from uirl.inference import LoadedModel
from uirl.inference.base import SamplingParams
from uirl.rollout import samples_of
from uirl.rollout.players import Order, Players
from uirl.rollout.replay import Certifier, certify_prefix
from uirl.types import Action, Observation, Task, Trajectory, Turn
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import PrefixFinding

SAME = ForkFinder().same
WRONG = Action.of("type", text="x")


def screens(actions: list[Action | None], seed: int | None = 3, *, id: str = "f") -> Trajectory:
    """An episode of the third level; None: what the demonstrator does."""
    env = ScreenEnvironment(level=3)
    seen, turns = env.reset(seed=seed), []
    for action in actions:
        act = action or env.expert_action()
        assert act is not None
        result = env.step(act)
        shown = Observation(seen.text, (screenshot(seen.images[0]),))
        turns.append(Turn(shown, action=act, terminated=result.terminated))
        seen = result.observation
    final = Observation(seen.text, (screenshot(seen.images[0]),))
    return Trajectory(id, Task("screen"), turns, "terminated", final=final, seed=seed)


FAILED, SOLVED = screens([None, WRONG]), screens([None, None, None], id="s")
GOES_ON = replace(FAILED, turns=[FAILED.turns[0], replace(FAILED.turns[1], terminated=False)])
ENDS_THERE = replace(FAILED, turns=[replace(FAILED.turns[0], terminated=True), FAILED.turns[1]])
ENDS_LATER = replace(FAILED, turns=[replace(FAILED.turns[0], action=WRONG), *FAILED.turns[1:]])
BEGIN = FAILED.turns[0].observation
OTHER_AFTER = replace(FAILED, turns=[FAILED.turns[0], replace(FAILED.turns[1], observation=BEGIN)])
SAYS_NOTHING = "to its end, but the environment does not say whether that solves the task"


@pytest.mark.parametrize(
    ("episode", "turns", "rest", "certified", "reason"),
    [
        (FAILED, 1, SOLVED.turns[1:], True, "played again, the successful episode's way solves the task from there"),
        (FAILED, 1, (), True, "played again, 1 turns show the same screens"),
        (FAILED, 2, (), True, "played again, 2 turns show the same screens"),
        (FAILED, 2, SOLVED.turns[1:], False, "played again, 2 turns show the same screens"),  # it is over
        (FAILED, 1, [Turn(Observation(), action=WRONG)], False,
         "played again, the way of the successful episode does not solve the task from there"),
        (FAILED, 0, (), False, "no turn is right, so there is nothing to play again"),
        (replace(FAILED, seed=None), 1, (), False, "not played again: the instance has no seed"),
        (replace(FAILED, seed=4), 1, (), False, "played again, the screen before turn 0 is another"),
        (ENDS_LATER, 1, (), False, "played again, the episode ends after turn 0"),
        (ENDS_THERE, 1, (), False, "played again, the episode goes on after turn 0"),
        (GOES_ON, 2, (), False, "played again, the episode ends after turn 1"),
        (OTHER_AFTER, 1, (), False, "played again, the screen after turn 0 is another"),
        (replace(FAILED, final=BEGIN), 2, (), False,
         "played again, the screen after turn 1 is another"),
        (replace(FAILED, final=None), 2, (), True, "played again, 2 turns show the same screens"),
    ],
)  # fmt: skip
async def test_what_is_certified(
    episode: Trajectory, turns: int, rest: list[Turn], certified: bool, reason: str
) -> None:
    session = EnvironmentSession(ScreenEnvironment(level=3))
    found = await certify_prefix(session, episode, turns, SAME, rest)
    assert (found.certified, found.reason) == (certified, reason)
    with pytest.raises(ValueError, match="prefix of 3 turns"):
        await certify_prefix(session, episode, 3, SAME)
    await session.close()


class Mute(Countdown):
    """Says nothing of success; an instance is what its seed makes it, or always the same."""

    def __init__(self, fixed: bool = False) -> None:
        super().__init__()
        self.fixed_start = fixed

    def step(self, action: str) -> Any:
        return *super().step(action)[:3], {}


@pytest.mark.parametrize(("fixed", "seed"), [(True, None), (False, 0)])
async def test_without_a_word_of_the_environment_nothing_is_certified(fixed: bool, seed: int | None) -> None:
    turns = [Turn(Observation(text), action=Action("yes")) for text in ("start 0", "left 2", "left 1")]
    episode = Trajectory("f", Task("t"), turns[:2], seed=seed)
    found = await certify_prefix(EnvironmentSession(Mute(fixed)), episode, 1, SAME, [*turns[1:], *turns])
    assert (found.certified, SAYS_NOTHING in found.reason) == (False, True)


class Broken(ScreenEnvironment):
    """Its cable is pulled at the first step; counts what was closed."""

    made: list[Broken] = []  # noqa: RUF012
    closed = 0

    def spawn(self) -> Broken:
        Broken.made.append(Broken(level=3))
        return Broken.made[-1]

    def step(self, action: Action) -> Any:
        raise OSError("the cable was pulled")

    def close(self) -> None:
        Broken.closed += 1


async def test_an_environment_that_breaks_certifies_nothing_and_is_opened_anew() -> None:
    session = EnvironmentSession(Broken(level=3))
    with pytest.raises(EnvironmentFailure, match="the cable was pulled"):
        await certify_prefix(session, FAILED, 1, SAME)
    finding = PrefixFinding(1, 2, "fork", "alike until here", "s", 1)
    certifier = Certifier(Broken(level=3), ForkFinder(), 60.0, 60.0)
    for tries in (1, 2):
        found, certified = await certifier.certify(FAILED, finding, [SOLVED])
        assert (certified, found.right) == (False, 1)
        assert found.reason.startswith("alike until here; it could not be played again (environment: ")
        assert (len(Broken.made), Broken.closed) == (tries, tries - 1)
    await certifier.close()
    await certifier.close()
    assert Broken.closed == 2
    whole = Certifier(ScreenEnvironment(level=3), ForkFinder(), 60.0, 60.0)
    said = [(await whole.certify(FAILED, one, [SOLVED])) for one in (finding, replace(finding, other="gone"))]
    way = "played again, the successful episode's way solves the task from there"
    assert [(one.reason, certified) for one, certified in said] == [
        (f"alike until here; {way}", True),
        ("alike until here; played again, 1 turns show the same screens", True),
    ]
    await whole.close()


async def test_an_episode_can_start_behind_a_beginning(lm: LoadedModel) -> None:
    made = collector(lm, Countdown(4))
    spec = specs(1)[0]
    first = (await made.collect([spec], play_with(scripted(lm, "yes", "no"))))[0]
    engine = scripted(lm, "maybe")
    players = Players({"train": made}, engine, SamplingParams(8))
    again = await players.play_once(replace(spec, start=tuple(first.turns[:2]), trajectory_id="again"), Order())
    assert again.actions == ["yes", "no", "maybe", "maybe"]
    assert engine.released == ["again"]
    assert again.sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "seed": 1000}
    for name in ("rollout_log_probs", "response_ids", "finish_reason", "policy_version"):
        assert [getattr(one, name) for one in again.turns[:2]] == [getattr(one, name) for one in first.turns[:2]]
    assert [turn.context_ids for turn in again.turns[:3]] == [turn.context_ids for turn in first.turns[:3]]
    plain = await players.play_once(replace(spec, trajectory_id="plain"), Order())
    assert plain.actions == ["maybe"] * 4  # nothing is left over
    (sample,), (full,) = samples_of(first.prefix(2)), samples_of(first)
    tokens = sum(len(turn.context_ids) + len(turn.response_ids) for turn in first.turns[:2])
    assert sample.token_ids == full.token_ids[:tokens]
    assert sample.response_mask == full.response_mask[:tokens]
    assert sample.response_mask[-1]
    assert set(sample.turn_ids) == {-1, 0, 1}
    assert (sample.ends_episode, full.ends_episode) == (False, True)
    await made.close()


class Controlled(Countdown):
    """Has controls of every kind, and says what was closed."""

    closed: list[int] = []  # noqa: RUF012

    def controls(self) -> Mapping[str, Any]:
        return {"short": Controlled(1), "says": "no", "acts": Action("no way")}

    def close(self) -> None:
        Controlled.closed.append(self.length)


async def test_who_plays_is_what_the_order_names(lm: LoadedModel) -> None:
    Controlled.closed.clear()
    engine, store = scripted(lm, "maybe"), ImageStore()
    split = {"train": collector(lm, Controlled()), "eval": collector(lm, Controlled(2, pictures=False))}
    players = Players(split, engine, SamplingParams(8, temperature=0.5))
    cases: list[tuple[Order, list[str], float | None]] = [
        (Order(), ["maybe"] * 3, 0.5),
        (Order("eval", temperature=0.0), ["maybe"] * 2, 0.0),
        (Order("eval", expert=True), ["yes"] * 2, None),
        (Order("eval", control="says"), ["no"] * 2, None),
        (Order("eval", control="acts"), ["no way"] * 2, None),
        (Order("eval", control="short"), ["maybe"], 0.5),
        (Order("eval", control="short"), ["maybe"], 0.5),
        (Order("train", control="says"), ["no"] * 3, None),
    ]
    for order, said, temperature in cases:
        record = await players.play_once(specs(1)[0], order, store)
        assert (record.actions, (record.sampling or {}).get("temperature")) == (said, temperature), order
    assert Controlled.closed == [1], "the variant of the control before is closed, once"
    with pytest.raises(ContractError, match="Controlled has no control 'blind' in this process, but acts, says, short"):
        await players.play_once(specs(1)[0], Order(control="blind"))
    await players.close()
    await players.close()
    assert Controlled.closed == [1]
