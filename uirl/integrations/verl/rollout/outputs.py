"""Trajectories -> what verl learns from: prompt, response, mask, log-probs, rewards and pictures of each sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from uirl.errors import AlignmentError
from uirl.images import ImageStore
from uirl.rollout.samples import samples_of
from uirl.types import Sample, Trajectory


class EpisodeOutput(AgentLoopOutput):
    """An output whose rewards stand on the last token of the turn that earned them."""

    token_rewards: list[float] | None = None
    """One per response token; None: the score stands on the last token, verl's own way."""

    def as_dict(self) -> dict[str, Any]:
        """Return what verl's V1 trainer stores; its legacy trainer never asks and puts the whole score on the last
        token."""
        fields = super().as_dict()
        rewards = fields.pop("token_rewards", None)
        if rewards is not None:
            fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


def outputs_of(
    trajectory: Trajectory, images: ImageStore, versions: Sequence[int], *, max_tokens: int
) -> list[EpisodeOutput]:
    """Return the sequences of an episode, in order: one, or one per stretch between rewritings of its history.

    `versions` are the global steps of the weights that sampled it. Where there are several, each carries the score of
    the whole episode on its last token, which is what verl expects. Raises AlignmentError for a sequence of more than
    `max_tokens`.
    """
    samples = samples_of(trajectory)
    extra = _extra_fields(trajectory, versions)
    # a picture that stands in several sequences is decoded once
    opened = {hash: images.get(hash).open() for hash in {h: None for sample in samples for h in sample.images}}
    return [_output(sample, trajectory, opened, extra, max_tokens, alone=len(samples) == 1) for sample in samples]


def masked_output(trajectory: Trajectory, filler: int) -> EpisodeOutput:
    """Return a sample that nothing is learned from, in place of an episode that failed: one token that counts in no
    loss. Its score of 0 is a placeholder; `uirl.failure` says so."""
    return EpisodeOutput(
        prompt_ids=[filler],
        response_ids=[filler],
        response_mask=[0],
        response_logprobs=[0.0],
        reward_score=0.0,
        multi_modal_data={},
        num_turns=0,
        metrics=AgentLoopMetrics(),
        extra_fields=_extra_fields(trajectory, [0]),
    )


def _output(
    sample: Sample, trajectory: Trajectory, opened: Mapping[str, Any], extra: dict[str, Any], limit: int, *, alone: bool
) -> EpisodeOutput:
    if len(sample.token_ids) > limit:
        raise AlignmentError(
            f"a sequence of episode {trajectory.id} has {len(sample.token_ids)} tokens, more than the {limit} of "
            "data.max_prompt_length + data.max_response_length; raise one of them"
        )
    start = sample.response_mask.index(True)
    log_probs = list(sample.rollout_log_probs[start:])
    pictures = [opened[hash] for hash in sample.images]
    return EpisodeOutput(
        prompt_ids=list(sample.token_ids[:start]),
        response_ids=list(sample.token_ids[start:]),
        response_mask=[int(sampled) for sampled in sample.response_mask[start:]],
        response_logprobs=None if any(map(math.isnan, log_probs)) else log_probs,
        token_rewards=list(sample.rewards[start:]) if alone else None,
        reward_score=trajectory.total_reward(),
        multi_modal_data={"images": pictures} if pictures else {},
        num_turns=2 * len(trajectory.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=trajectory.metrics.get("generate_seconds", 0.0),
            tool_calls=trajectory.metrics.get("environment_seconds", 0.0),
        ),
        extra_fields=dict(extra),
    )


def _extra_fields(trajectory: Trajectory, versions: Sequence[int]) -> dict[str, Any]:
    """Return what verl reads beside the tokens (versions, scores per turn), and `uirl`: how the episode went."""
    return {
        "min_global_steps": min(versions, default=None),
        "max_global_steps": max(versions, default=None),
        "turn_scores": trajectory.rewards,
        "tool_rewards": [],
        # not 'acc': verl counts a session that failed as one of accuracy 0
        "reward_extra_info": {"success": trajectory.success},
        "uirl": {
            "id": trajectory.id,
            "group": trajectory.group_id,
            "task": trajectory.task.id,
            "stop_reason": trajectory.stop_reason,
            "failure": None if trajectory.failure is None else trajectory.failure.kind,
        },
    }
