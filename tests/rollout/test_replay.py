"""Beginnings of episodes played again: what certifies them, and new episodes that start behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rollout.worlds import Countdown, collector, play_with, scripted, specs
from uirl.config import ModelConfig
from uirl.environments import EnvironmentSession, ScreenEnvironment
from uirl.errors import EnvironmentFailure
from uirl.images import screenshot
from uirl.inference import LoadedModel, load_model
from uirl.inference.base import SamplingParams
from uirl.rollout import samples_of
from uirl.rollout.players import Order, Players
from uirl.rollout.replay import certify_prefix
from uirl.types import Action, Observation, Task, Trajectory, Turn
from uirl.verification.fork import ForkFinder

SAME = ForkFinder().same
WRONG = Action.of("type", text="x")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelConfig(model_name="uirl/tiny-lm"))


def played(actions: list[Action | None], seed: int | None = 3, *, id: str = "f") -> Trajectory:
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


async def test_a_beginning_that_leads_to_success_is_certified() -> None:
    failed, solved = played([None, WRONG]), played([None, None, None], id="s")
    session = EnvironmentSession(ScreenEnvironment(level=3))
    found = await certify_prefix(session, failed, 1, SAME, solved.turns[1:])
    assert found.certified
    assert "the successful episode's way solves the task from there" in found.reason
    alone = await certify_prefix(session, failed, 1, SAME)
    assert (alone.certified, alone.reason) == (True, "played again, 1 turns show the same screens")
    whole = await certify_prefix(session, failed, 2, SAME)
    assert whole.certified
    wrong = await certify_prefix(session, failed, 1, SAME, [Turn(Observation(), action=WRONG)])
    assert not wrong.certified
    assert "does not solve the task from there" in wrong.reason
    await session.close()


async def test_what_is_not_certified() -> None:
    failed = played([None, WRONG])
    session = EnvironmentSession(ScreenEnvironment(level=3))
    assert not (await certify_prefix(session, failed, 0, SAME)).certified
    unseeded = await certify_prefix(session, replace(failed, seed=None), 1, SAME)
    assert (unseeded.certified, "no seed" in unseeded.reason) == (False, True)
    elsewhere = await certify_prefix(session, replace(failed, seed=4), 1, SAME)
    assert "the screen before turn 0 is another" in elsewhere.reason
    other = replace(failed, turns=[replace(failed.turns[0], action=WRONG), *failed.turns[1:]])
    assert "the episode ends after turn 0" in (await certify_prefix(session, other, 1, SAME)).reason
    later = replace(failed, turns=[failed.turns[0], replace(failed.turns[1], observation=failed.turns[0].observation)])
    assert "the screen after turn 0 is another" in (await certify_prefix(session, later, 1, SAME)).reason
    with pytest.raises(ValueError, match="prefix of 3 turns"):
        await certify_prefix(session, failed, 3, SAME)
    await session.close()


async def test_an_environment_that_breaks_certifies_nothing() -> None:
    class Broken(ScreenEnvironment):
        def step(self, action: Action) -> None:  # type: ignore[override]
            raise OSError("the cable was pulled")

    session = EnvironmentSession(Broken(level=3))
    with pytest.raises(EnvironmentFailure, match="the cable was pulled"):
        await certify_prefix(session, played([None, WRONG]), 1, SAME)


async def test_an_episode_can_start_behind_a_beginning(loaded: LoadedModel) -> None:
    made = collector(loaded, Countdown(4))
    spec = specs(1)[0]
    first = (await made.collect([spec], play_with(scripted(loaded, "yes", "no"))))[0]
    players = Players({"train": made}, scripted(loaded, "maybe"), SamplingParams(8))
    again = await players.play_once(replace(spec, start=tuple(first.turns[:2]), trajectory_id="again"), Order())
    assert [turn.action.text for turn in again.turns] == ["yes", "no", "maybe", "maybe"]
    assert [turn.rollout_log_probs for turn in again.turns[:2]] == [turn.rollout_log_probs for turn in first.turns[:2]]
    assert [turn.context_ids for turn in again.turns[:3]] == [turn.context_ids for turn in first.turns[:3]]
    plain = await players.play_once(replace(spec, trajectory_id="plain"), Order())
    assert [turn.action.text for turn in plain.turns] == ["maybe"] * 4  # nothing is left over
    await made.close()


async def test_the_mask_of_a_prefix_ends_where_the_prefix_ends(loaded: LoadedModel) -> None:
    made = collector(loaded, Countdown(4))
    whole = (await made.collect(specs(1), play_with(scripted(loaded, "yes", "no"))))[0]
    (sample,), (full,) = samples_of(whole.prefix(2)), samples_of(whole)
    tokens = sum(len(turn.context_ids) + len(turn.response_ids) for turn in whole.turns[:2])
    assert sample.token_ids == full.token_ids[:tokens]
    assert sample.response_mask == full.response_mask[:tokens]
    assert sample.response_mask[-1]
    assert set(sample.turn_ids) == {-1, 0, 1}
    assert (sample.ends_episode, full.ends_episode) == (False, True)
    await made.close()
