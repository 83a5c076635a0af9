"""`Trainer`: what it makes of trajectories that somebody else collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from uirl.algorithms import GRPO, PPO, Algorithm
from uirl.learner import VLMWrapper
from uirl.training.trainer import Trainer, cut_at_groups
from uirl.types import Failure, Sample, Trajectory


def played(group: str, member: int, reward: float = 0.0) -> Trajectory:
    """A trajectory filled by hand."""
    made = Trajectory(f"{group}-{member}", group_id=group)
    made.states, made.actions, made.rewards, made.dones = ["say yes"], ["yes"], [reward], [True]
    return made


def failed(group: str, member: int) -> Trajectory:
    return replace(played(group, member), failure=Failure("environment", "the cable was pulled"))


def test_a_failed_member_moves_no_other_group() -> None:
    mine = [failed("g0", 0), *[played("g0", i) for i in (1, 2, 3)], *[played("g1", i) for i in range(4)]]
    batches = cut_at_groups(mine, 4)
    assert [[t.group_id for t in batch] for batch in batches] == [["g0"] * 4, ["g1"] * 4]


@pytest.mark.parametrize(
    ("groups", "size", "cut"),
    [
        ("aabb", 4, ["aabb"]),
        ("aabbcc", 4, ["aabb", "cc"]),
        ("aabbcc", 5, ["aabb", "cc"]),  # no group is cut to fill a batch
        ("abab", 2, ["aa", "bb"]),  # members that stand apart are brought together
        ("aaaabb", 2, ["aaaa", "bb"]),  # a group is never smaller than it is
        ("", 4, []),
    ],
)
def test_batches_hold_whole_groups(groups: str, size: int, cut: list[str]) -> None:
    batches = cut_at_groups([Trajectory(str(i), group_id=g) for i, g in enumerate(groups)], size)
    assert ["".join(t.group_id for t in batch) for batch in batches] == cut


def test_without_a_group_every_trajectory_stands_alone() -> None:
    alone = [Trajectory(str(i)) for i in range(5)]
    assert [len(batch) for batch in cut_at_groups(alone, 2)] == [2, 2, 1]
    together = [replace(t, group_id="g") for t in alone]
    assert [len(batch) for batch in cut_at_groups(together, 2, whole=False)] == [2, 2, 1]


@pytest.mark.parametrize(("algorithm", "updates"), [(GRPO(), ["aaa", "bbbb"]), (PPO(), ["aaab", "bbb"])])
def test_the_updates_are_the_batches(algorithm: Algorithm, updates: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = VLMWrapper("uirl/tiny-lm", device="cpu")
    trainer = Trainer(model, algorithm, batch_size=4)
    seen: list[str] = []

    def note(samples: Sequence[Sample], **_: object) -> dict[str, float]:
        seen.append("".join(sample.group_id for sample in samples))
        return {}

    monkeypatch.setattr(trainer.learner, "update", note)
    mine = [played("a", i) for i in range(3)] + [failed("a", 3)] + [played("b", i) for i in range(4)]
    if isinstance(algorithm, PPO):
        mine = [t for t in mine if t.failure is None]
    trainer.train_step(mine)
    assert seen == updates
