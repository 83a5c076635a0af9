"""Corrections at a fork: the failed episode's context, the solved one's action."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipelines.corridor import Corridor
from uirl.pipelines.corrections import candidates, corrected, view_of
from uirl.pipelines.selection import Example, Limits, from_plain, select, to_plain
from uirl.rollout.samples import samples_of
from uirl.storage import TrajectoryStore
from uirl.types import Action, Observation, Task, Trajectory, Turn, Verdict
from uirl.verification.similarity import ScreenMatcher


def played(replies: str, *, id: str, right: int | None = None) -> Trajectory:
    """An episode of the corridor with tokens: contexts begin with its own number, replies are letters' codes."""
    env = Corridor()
    seen, turns, said = env.reset(seed=7), [], {"success": False}
    own = sum(map(ord, id))
    for number, letter in enumerate(replies):
        after, reward, done, said = env.step(letter)
        turns.append(
            Turn(
                Observation(seen),
                context_ids=(own, number),
                response_ids=(ord(letter), 1),
                rollout_log_probs=(-0.5, -0.25),
                action=Action(letter),
                reward=reward,
                terminated=done,
                starts_segment=number == 0,
            )
        )
        seen = after
    solved = bool(said["success"])
    verdict = Verdict(float(solved), solved, "", "environment", correct_prefix=right)
    return Trajectory(
        id, Task("c"), turns, "terminated", final=Observation(seen), group_id="g", seed=7, verdict=verdict
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore(tmp_path / "t.sqlite") as opened:
        yield opened


def found_in(store: TrajectoryStore, *episodes: Trajectory, corrections: bool = True) -> dict[str, Example]:
    store.add_many(episodes, step=1, split="train")
    found = candidates(store, ScreenMatcher(), corrections=corrections)
    return {one.id: one for one in found if isinstance(one, Example)}


def test_the_reply_of_the_solved_one_stands_in_the_context_of_the_failed_one() -> None:
    failed, solved = played("abc", id="f"), played("bba", id="s")
    made = corrected(failed, 2, solved.turns[2])
    (sample,) = samples_of(made)
    f, a, b = ord("f"), ord("a"), ord("b")
    assert sample.token_ids == (f, 0, a, 1, f, 1, b, 1, f, 2, a, 1)  # f's own right turns, its third screen, s's reply
    assert [i for i, own in enumerate(sample.response_mask) if own] == [2, 3, 6, 7, 10, 11]
    assert math.isnan(sample.rollout_log_probs[10])  # nobody sampled it there
    assert sample.rollout_log_probs[2] == -0.5
    assert (made.success, made.turns[2].reward, made.turns[2].done) == (False, 0.0, False)
    assert failed == played("abc", id="f")


def test_a_beginning_that_ends_at_a_fork_becomes_a_correction(store: TrajectoryStore) -> None:
    failed, solved = played("abc", id="f", right=2), played("bba", id="s")
    found = found_in(store, failed, solved)
    assert (found["s"].kind, found["f"].kind, found["f"].turns) == ("solved", "correction", 3)
    assert (found["f"].other, found["f"].other_turn) == ("s", 2)
    said = view_of(store, from_plain(to_plain(found["f"])), store.get("f"))
    assert [turn.action.text for turn in said.turns] == ["a", "b", "a"]
    assert len(found["f"].beginnings) == 3
    assert found["f"].digest not in found["s"].beginnings


def test_what_repeats_the_solved_one_is_left_out(store: TrajectoryStore) -> None:
    found = found_in(store, played("abc", id="f", right=2), played("aba", id="s"))
    chosen = select(found.values(), Limits(), 0)
    assert [one.id for one in chosen.kept] == ["s"]
    assert chosen.left_out == {"the beginning of another": 1}


def test_without_the_option_it_stays_a_beginning(store: TrajectoryStore) -> None:
    found = found_in(store, played("abc", id="f", right=2), played("bba", id="s"), corrections=False)
    assert (found["f"].kind, found["f"].turns, to_plain(found["f"]).keys()) == (
        "beginning",
        2,
        {"id", "turns", "kind", "task"},
    )


@pytest.mark.parametrize(
    "failed",
    [
        played("abc", id="f"),  # what was found of it was not certified
        replace(played("abc", id="f"), verdict=None, metrics={"success": 0.0}),  # nothing was found
    ],
)
def test_what_is_not_certified_is_not_corrected(store: TrajectoryStore, failed: Trajectory) -> None:
    assert found_in(store, failed, played("bba", id="s")).keys() == {"s"}


def test_where_the_judge_found_the_beginning_it_stays_one(store: TrajectoryStore) -> None:
    """The fork is at turn 2; a judge said that one turn is right."""
    found = found_in(store, played("abc", id="f", right=1), played("bba", id="s"))
    assert (found["f"].kind, found["f"].turns) == ("beginning", 1)


def test_corrections_share_the_limit_of_beginnings() -> None:
    def example(id: str, kind: str) -> Example:
        return Example(id, 1, kind, "a", id, (id,))  # type: ignore[arg-type]

    mixed = [example("s", "solved"), example("b", "beginning"), example("c", "correction"), example("d", "correction")]
    kinds = [one.kind for one in select(mixed, Limits(task_share=9, prefix_share=0.75), 0).kept]
    assert sorted(kinds) == ["beginning", "correction", "correction", "solved"]
    assert len(select(mixed, Limits(task_share=9, prefix_share=0.5), 0).kept) == 2
