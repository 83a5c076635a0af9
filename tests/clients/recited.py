"""A policy for the agents of others: it says what a script says, with the log-probs that its model gives to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.serving.worlds import fed, says, with_tools
from uirl import samples_of
from uirl.inference import Generation, GenerationRequest, LoadedModel, SamplingParams, recompute_with
from uirl.inference.base import InferenceEngine
from uirl.rollout.episode import EpisodeSpec
from uirl.serving import ModelEndpoint, run_agent
from uirl.types import Task, Trajectory

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
CONTEXT = 32_768
"""Tokens: the agents of others have long prompts, and the vocabulary of the tiny model is small."""


class Recited(InferenceEngine):
    """What is said is fixed; log-probs are those of the model, from one pass without a cache."""

    def __init__(self, loaded: LoadedModel, *replies: str) -> None:
        self._script, self._recompute = says(loaded, *replies), recompute_with(loaded)

    @property
    def requests(self) -> list[GenerationRequest]:
        return self._script.requests

    async def generate(self, request: GenerationRequest) -> Generation:
        made = await self._script.generate(request)
        ids = (*request.prompt_ids, *made.token_ids)
        return replace(made, log_probs=tuple(self._recompute(ids, (), len(made.token_ids), SamplingParams())))

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        raise NotImplementedError


async def played(lm: LoadedModel, agent: Callable[..., Any], *replies: str) -> Trajectory:
    """The record of one run of `agent` against a policy that says `replies` in turn, proved fit to learn from: every
    prompt and reply is there as ids, and where a reply was sampled the learner finds the recorded log-prob."""
    loaded = replace(with_tools(lm), model=copy.deepcopy(lm.model))
    loaded.config.max_position_embeddings = CONTEXT
    engine = Recited(loaded, *replies)
    spec = EpisodeSpec(Task("add"), environment_seed=None, sampling_seed=1, trajectory_id="add-0")
    async with ModelEndpoint(engine, loaded) as endpoint:
        record = await run_agent(endpoint, agent, spec, sampling=SamplingParams(max_tokens=256))
    assert record.failure is None, record.failure
    assert [turn.response_ids for turn in record.turns]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    recompute, learned = recompute_with(loaded), 0
    for sample in samples_of(record):
        told = recompute(sample.token_ids, (), len(sample.token_ids) - 1, SamplingParams())
        for own, value, known in zip(sample.response_mask[1:], told, sample.rollout_log_probs[1:], strict=True):
            assert not own or known == pytest.approx(value, abs=1e-4)
            learned += own
    assert learned == sum(len(turn.response_ids) for turn in record.turns)
    return record


def tool_results(record: Trajectory) -> list[str]:
    """What came back of the calls, in order."""
    return [result.text for turn in record.turns for result in turn.tool_results]
