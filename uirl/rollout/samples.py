"""Trajectories -> samples: one token sequence per stretch of unbroken history."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable

from uirl.errors import AlignmentError
from uirl.images import screenshot
from uirl.types import Sample, Trajectory, Turn


def samples_of(trajectory: Trajectory) -> list[Sample]:
    """Return the samples of one trajectory: one, or one per segment where the history was rewritten.

    Raises AlignmentError for a trajectory without tokens and for one with a failure, which must never get here.
    """
    if trajectory.failure is not None:
        raise AlignmentError(
            f"trajectory {trajectory.id} failed ({trajectory.failure.kind}) and is not evidence; filter with "
            "RolloutData.usable before making samples"
        )
    if not trajectory.turns or not all(turn.response_ids for turn in trajectory.turns):
        raise AlignmentError(f"trajectory {trajectory.id} has turns without response tokens; was it filled by hand?")
    segments: list[list[tuple[int, Turn]]] = []
    for index, turn in enumerate(trajectory.turns):
        if turn.starts_segment or not segments:
            segments.append([])
        segments[-1].append((index, turn))
    return [
        _sample(trajectory, number, turns, last=number == len(segments) - 1) for number, turns in enumerate(segments)
    ]


def samples_of_all(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """Return the samples of every trajectory that is evidence, in order."""
    return [sample for t in trajectories if t.failure is None for sample in samples_of(t)]


def anchors_of(trajectories: Iterable[Trajectory]) -> dict[str, list[str]]:
    """Return trajectory id -> for each turn the key of the state in which it started, equal for equal states.

    It follows from the record alone, so that stored trajectories give the same.
    """
    return {t.id: [_state_of(turn) for turn in t.turns] for t in trajectories}


def _state_of(turn: Turn) -> str:
    """Return the environment's own key, else a digest of what the agent saw."""
    seen = turn.observation
    if seen.state_key is not None:
        return f"key {seen.state_key}"
    pictures = [image if isinstance(image, str) else screenshot(image).hash for image in seen.images]
    answers = [(result.name, result.success, result.text) for result in seen.tool_results]
    return hashlib.blake2b(json.dumps([seen.text, pictures, answers]).encode(), digest_size=16).hexdigest()


def _sample(trajectory: Trajectory, number: int, turns: list[tuple[int, Turn]], *, last: bool) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    log_probs: list[float] = []
    rewards: list[float] = []
    turn_ids: list[int] = []
    versions: list[int] = []
    for index, turn in turns:
        n, m = len(turn.context_ids), len(turn.response_ids)
        ids += turn.context_ids + turn.response_ids
        mask += [False] * n + [True] * m
        # a demonstration has no log-probs: NaN stops the run should one ever reach a policy gradient
        log_probs += [0.0] * n + (list(turn.rollout_log_probs) or [math.nan] * m)
        rewards += [0.0] * (n + m - 1) + [turn.reward]
        turn_ids += [-1] * n + [index] * m
        versions += [-1] * n + [turn.policy_version] * m
    return Sample(
        token_ids=tuple(ids),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(log_probs),
        rewards=tuple(rewards),
        turn_ids=tuple(turn_ids),
        images=tuple(hash for _, turn in turns for hash in turn.context_images),
        policy_version=min(turn.policy_version for _, turn in turns),
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        segment=number,
        ends_episode=last and trajectory.stop_reason != "truncated",
        versions=tuple(versions),
    )
