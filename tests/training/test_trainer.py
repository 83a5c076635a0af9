"""`Trainer`: what it makes of trajectories that somebody else collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from uirl.algorithms import GRPO, PPO, Algorithm
from uirl.config import ConfigStore
from uirl.errors import AlignmentError
from uirl.images import ImageStore
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


def test_a_trainer_has_a_config_of_its_own_that_recomputes_in_one_minibatch() -> None:
    model, given = VLMWrapper("uirl/tiny-lm", device="cpu"), ConfigStore()
    given.training.old_log_probs, given.training.minibatches, given.training.learning_rate = "rollout", 4, 0.5
    trainer = Trainer(model, GRPO(), batch_size=4, learning_rate=0.25, config=given)
    own = trainer.config.training
    assert (own.old_log_probs, own.minibatches, own.learning_rate) == ("recompute", 1, 0.25)
    kept = given.training
    assert (kept.old_log_probs, kept.minibatches, kept.learning_rate) == ("rollout", 4, 0.5)
    assert Trainer(model, GRPO(), images=(images := ImageStore())).images is images
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Trainer(model, GRPO(), batch_size=0)


@pytest.mark.parametrize("trajectories", [[], [failed("g", 0), failed("g", 1)]])
def test_nothing_to_learn_from_is_said(trajectories: list[Trajectory]) -> None:
    trainer = Trainer(VLMWrapper("uirl/tiny-lm", device="cpu"), GRPO(), batch_size=4)
    with pytest.raises(AlignmentError, match=f"none of the {len(trajectories)} trajectories is usable"):
        trainer.train_step(trajectories)


def test_turns_filled_by_hand_are_rendered_as_one_conversation() -> None:
    model = VLMWrapper("uirl/tiny-lm", device="cpu")
    trainer = Trainer(model, GRPO(), batch_size=4)
    trainer.learner.version = 3
    made = Trajectory("a", group_id="g")
    made.states, made.actions, made.rewards = ["say yes", "once more"], ["yes", "no"], [0.0, 1.0]
    first, second = trainer._with_tokens(made).turns
    whole = model.chat.decode([*first.context_ids, *first.response_ids, *second.context_ids, *second.response_ids])
    places = [whole.index(word) for word in ("say yes", "once more")]
    assert places == sorted(places)
    assert model.chat.decode(first.response_ids) == "yes"
    assert model.chat.decode(second.response_ids) == "no"
    assert (first.starts_segment, second.starts_segment) == (True, False)
    assert first.policy_version == second.policy_version == 3
    assert "say yes" not in model.chat.decode(second.context_ids)
    recorded = trainer._with_tokens(made)
    assert trainer._with_tokens(recorded) is recorded, "what has tokens keeps them"
