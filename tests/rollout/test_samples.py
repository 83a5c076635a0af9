"""Samples: failures stay out of them, and only an end of the episode's own is an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.inference.pictures import picture
from uirl.algorithms import get_algorithm
from uirl.errors import AlignmentError
from uirl.images import screenshot
from uirl.learner import response_view
from uirl.learner.credit import assign_credit
from uirl.rollout.samples import anchors_of, samples_of, samples_of_all
from uirl.types import Failure, Observation, ToolResult, Trajectory, Turn


def turn(reward: float = 0.0, **changes: object) -> Turn:
    """A turn of three tokens fed and two sampled."""
    whole = Turn(Observation("look"), (1, 2, 3), (4, 5), (-0.25, -0.5), reward=reward)
    return replace(whole, **changes)  # type: ignore[arg-type]


def trajectory(name: str, *turns: Turn, failure: Failure | None = None, stopped: str = "terminated") -> Trajectory:
    return Trajectory(name, turns=list(turns), stop_reason=stopped, group_id="g", failure=failure)


def test_a_failed_episode_with_turns_is_in_no_sample_and_in_no_group_mean() -> None:
    broken = trajectory("c", turn(9.0), turn(9.0), failure=Failure("environment", "gone", 2), stopped="failure")
    samples = samples_of_all([trajectory("a", turn(0.0)), broken, trajectory("b", turn(1.0))])
    assert [sample.trajectory_id for sample in samples] == ["a", "b"]
    # the mean of the group is that of 0 and 1: the 18 of the episode that failed would make it 6.33
    view, spec = response_view(samples), get_algorithm("grpo")
    credit = assign_credit(spec, {"normalize_by_std": False}, view, view.rewards, None, None)
    assert credit.advantages.tolist() == [[-0.5, -0.5], [0.5, 0.5]]
    with pytest.raises(AlignmentError, match=r"trajectory c failed \(environment\) and is not evidence"):
        samples_of(broken)


@pytest.mark.parametrize(
    ("stopped", "ends"),
    [("terminated", True), ("max_turns", True), ("token_budget", True), ("wall_time", True), ("truncated", False)],
)
def test_only_the_truncation_of_the_environment_is_no_end(stopped: str, ends: bool) -> None:
    samples = samples_of(trajectory("a", turn(), turn(starts_segment=True), stopped=stopped))
    assert [sample.ends_episode for sample in samples] == [False, ends]


def test_the_samples_of_two_segments() -> None:
    first = turn(0.5, policy_version=3, context_images=("p",))
    second = turn(1.0, policy_version=2, response_ids=(6,), rollout_log_probs=(-1.0,))
    third = turn(2.0, policy_version=4, starts_segment=True, context_images=("q", "r"))
    one, other = samples_of(trajectory("a", first, second, third))
    assert one.token_ids == (1, 2, 3, 4, 5, 1, 2, 3, 6)
    assert one.response_mask == (False, False, False, True, True, False, False, False, True)
    assert one.rollout_log_probs == (0, 0, 0, -0.25, -0.5, 0, 0, 0, -1.0)
    assert one.rewards == (0, 0, 0, 0, 0.5, 0, 0, 0, 1.0)
    assert one.turn_ids == (-1, -1, -1, 0, 0, -1, -1, -1, 1)
    assert other.turn_ids == (-1, -1, -1, 2, 2)
    # the oldest version that sampled a token of it
    assert (one.policy_version, other.policy_version) == (2, 4)
    assert (one.images, other.images) == (("p",), ("q", "r"))
    assert (one.segment, other.segment) == (0, 1)
    assert {sample.group_id for sample in (one, other)} == {"g"}


@pytest.mark.parametrize("turns", [[], [turn(), turn(response_ids=(), rollout_log_probs=())]])
def test_a_trajectory_without_tokens_is_refused(turns: list[Turn]) -> None:
    with pytest.raises(AlignmentError, match="filled by hand"):
        samples_of(trajectory("a", *turns))


RED = picture(1)
ANSWER = ToolResult("look", {"at": 3}, True, {"seen": [1, 2]}, "c1", 0.25)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Observation("a"), Observation("a"), True),
        (Observation("a"), Observation("b"), False),
        # what nobody shows the agent is no part of the state; nor is how long a tool took, or the call's id
        (Observation("a", info={"clock": 1}), Observation("a", info={"clock": 2}), True),
        (Observation("", (RED,)), Observation("", (screenshot(RED).hash,)), True),
        (Observation("", (RED,)), Observation("", (picture(2),)), False),
        (Observation("", (RED,)), Observation("", (RED, RED)), False),
        (Observation(tool_results=(ANSWER,)), Observation(tool_results=(replace(ANSWER, seconds=9, id="x"),)), True),
        (Observation(tool_results=(ANSWER,)), Observation(tool_results=(replace(ANSWER, success=False),)), False),
        # the environment's own key decides alone
        (Observation("a", state_key="s"), Observation("b", state_key="s"), True),
        (Observation("a", state_key="s"), Observation("a", state_key="t"), False),
        (Observation("\ud800"), Observation("\ud800"), True),
    ],
)
def test_a_state_is_what_the_agent_saw_or_what_the_environment_calls_it(
    one: Observation, other: Observation, same: bool
) -> None:
    first, second = anchors_of([trajectory("a", Turn(one), Turn(other))])["a"]
    assert (first == second) == same
