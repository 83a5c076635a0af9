"""The environment as verl's reward function, for loops that do not play it turn by turn.

`EnvironmentAgentLoop` computes rewards while it plays, and verl then asks nobody. These are for verl's own loops
(`single_turn_agent`, `tool_agent`): the text of the response is one action in the instance its row names. verl hands a
reward function the whole response, observations included, so with several turns that text is no action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from uirl.environments import BaseEnvironment, EnvironmentSession, create_environment
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.integrations.verl.rollout.agent_loop import spec_of
from uirl.parsers import create_parser
from uirl.rollout.episode import Episode, EpisodeLimits
from uirl.rollout.reward import RewardFunction, judge_episode
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import settle_outcomes
from uirl.types import Trajectory


class EnvironmentRewardWrapper:
    """`environment` and `reward_fn` as verl's reward function.

    Called as verl's reward managers call (`data_source`, `solution_str`, `ground_truth`, `extra_info`): a mapping with
    'score', 'success' and 'turns'. Called with a `DataProto`, as its older trainers did: a tensor [B] of scores.
    """

    def __init__(self, environment: BaseEnvironment, reward_fn: RewardFunction | None = None) -> None:
        """Set up scoring in `environment`. `reward_fn`: the total reward of an episode, from its trajectory (and the
        environment); None: the sum of what the environment pays."""
        self.environment, self.reward_fn = environment, reward_fn
        self._parser = create_parser(environment.action_format)
        self._loop: EventLoopThread | None = None
        self._speakers: set[str] = set()

    def __call__(self, data_source: Any, solution_str: str | None = None, *args: Any, **fields: Any) -> Any:
        """Score one reply or a batch of them, as the class says. Raises RolloutFailure where the environment or the
        reward function fails: a failure is no score of zero."""
        if solution_str is None:
            return self._batch(data_source)
        info = fields.get("extra_info", args[1] if len(args) > 1 else None)
        if self._loop is None:
            self._loop = EventLoopThread()
        return self._loop.run(self.score(solution_str, {"extra_info": info}))

    async def score(self, text: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one reply is worth in the instance that `row` names."""
        session = EnvironmentSession(self.environment.spawn())
        try:
            images = ImageStore()
            episode = Episode(session, self._parser, spec_of(row), images, EpisodeLimits(1))
            await episode.begin()
            await episode.act(text)
            record = episode.end()
            if self.reward_fn is not None:
                await judge_episode(record, self.reward_fn, session.env, images)
        finally:
            await session.close()
        settle_outcomes([record], self._speakers)
        return _scores(record)

    def _batch(self, data: Any) -> Any:
        import torch

        tokenizer = data.meta_info.get("tokenizer")
        if tokenizer is None:
            raise ConfigError(
                "a DataProto holds token ids alone; put the tokenizer into data.meta_info['tokenizer'], or let verl's "
                "reward manager call this function with texts"
            )
        start = data.batch["prompts"].shape[1]
        lengths = data.batch["attention_mask"][:, start:].sum(-1).tolist()
        texts = [
            tokenizer.decode(ids[:n], skip_special_tokens=True)
            for ids, n in zip(data.batch["responses"], lengths, strict=True)
        ]
        infos = data.non_tensor_batch["extra_info"]
        scores = [self(None, text, None, info)["score"] for text, info in zip(texts, infos, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)


def _scores(record: Trajectory) -> dict[str, Any]:
    return {"score": record.total_reward(), "success": record.success, "turns": len(record)}


async def environment_reward(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Return the same as `EnvironmentRewardWrapper.score`, by name, for `reward.custom_reward_function`: path
    'pkg://uirl.integrations.verl.tasks.reward', name 'environment_reward'. The row names the environment;
    `reward_kwargs.options` are its options."""
    name = str(extra_info.get("environment") or options.get("environment") or "")
    if not name:
        raise ConfigError("the row names no environment; set reward_kwargs.environment to a name of the table")
    environment_options = json.dumps(dict(options.get("options") or {}), sort_keys=True)
    return await _named(name, environment_options).score(solution_str, {"extra_info": extra_info})


@lru_cache(64)
def _named(name: str, options: str) -> EnvironmentRewardWrapper:
    return EnvironmentRewardWrapper(create_environment(name, json.loads(options)))
