"""What of a round is kept: each episode is kept or counted under one reason."""

from __future__ import annotations

import pytest

from uirl.pipelines.selection import Example, Limits, candidate_of, digests, select
from uirl.types import Action, Failure, Observation, Task, Trajectory, Turn, Verdict


def episode(way: str, *, id: str = "t", solved: bool | None = True, right: int | None = None) -> Trajectory:
    """An episode whose turns see 'page' and say one letter each."""
    turns = [Turn(Observation("page"), response_ids=(1,), action=Action(letter)) for letter in way]
    verdict = None if solved is None else Verdict(float(solved), solved, correct_prefix=right)
    return Trajectory(id, Task("a"), turns, "terminated", verdict=verdict, seed=1)


def example(id: str, way: str, kind: str = "solved", task: str = "a", instance: str = "") -> Example:
    beginnings = tuple(way[: i + 1] for i in range(len(way)))
    return Example(id, len(way), kind, task, instance or id, beginnings)  # type: ignore[arg-type]


def test_what_an_episode_has_to_learn_from() -> None:
    solved = candidate_of(episode("abc"))
    assert isinstance(solved, Example)
    assert (solved.kind, solved.turns, len(solved.beginnings)) == ("solved", 3, 3)
    beginning = candidate_of(episode("abx", solved=False, right=2))
    assert isinstance(beginning, Example)
    assert (beginning.kind, beginning.turns) == ("beginning", 2)
    assert beginning.digest == solved.beginnings[1]  # the same was shown and said until there


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (episode("abx", solved=False), "not solved, no right beginning is known"),
        (episode("abx", solved=False, right=0), "not solved, wrong from the first turn"),
        (episode("abx", solved=None), "nobody says whether it was solved"),
        (episode(""), "has no tokens"),
        (Trajectory("t", failure=Failure("judge", "timeout")), "failed: judge"),
    ],
)
def test_why_an_episode_has_nothing(made: Trajectory, reason: str) -> None:
    assert candidate_of(made) == reason


def test_what_was_shown_and_said_makes_a_digest() -> None:
    first, second = list(digests(episode("ab"))), list(digests(episode("ac")))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_equal_ones_and_beginnings_of_others_are_left_out() -> None:
    found = select(
        [
            example("1", "abc"),
            example("2", "abc"),
            example("3", "ab", "beginning"),
            example("4", "xy", "beginning"),
            "bad",
        ],
        Limits(per_instance=9),
        0,
    )
    assert {one.id for one in found.kept} in ({"1", "4"}, {"2", "4"})
    assert found.left_out == {"bad": 1, "the same as another": 1, "the beginning of another": 1}


def test_limits_and_their_reasons() -> None:
    many = [example(f"{n}", f"a{n}", instance="one") for n in range(5)]
    found = select(many, Limits(per_instance=2), 0)
    assert (len(found.kept), found.left_out) == (2, {"more of one instance": 3})
    assert [one.id for one in found.kept] == [one.id for one in select(reversed(many), Limits(per_instance=2), 0).kept]
    tasks = [example(f"a{n}", f"a{n}") for n in range(9)] + [example("b", "b", task="b")]
    found = select(tasks, Limits(task_share=1.0), 0)
    # ten examples of two tasks: an equal share is five
    assert (len(found.kept), found.left_out) == (6, {"more of one task": 4})
    mixed = [example("s1", "q"), example("s2", "r")] + [example(f"p{n}", f"p{n}", "beginning") for n in range(9)]
    found = select(mixed, Limits(prefix_share=0.5), 0)
    assert [one.kind for one in found.kept] == ["solved"] * 2 + ["beginning"] * 2
    assert found.left_out == {"more beginnings than their share": 7}
    assert len(select(mixed, Limits(prefix_share=1.0), 0).kept) == 11
    assert len(select(mixed, Limits(prefix_share=0.0), 0).kept) == 2


def test_solved_ones_come_before_beginnings_of_the_same_instance() -> None:
    mixed = [example("p", "xx", "beginning", instance="i"), example("s", "ab", instance="i")]
    assert [one.id for one in select(mixed, Limits(per_instance=1), 0).kept] == ["s"]
