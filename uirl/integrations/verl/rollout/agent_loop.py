"""Our episodes as verl's agent loop: any environment of ours, played through verl's rollout servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from uirl.errors import ConfigError, RolloutFailure
from uirl.integrations.verl.config.rewriting import reads_several
from uirl.integrations.verl.rollout.agent import ServerAgent, left_to_us, refuse_seed
from uirl.integrations.verl.rollout.context import RolloutContext, context_of
from uirl.integrations.verl.rollout.outputs import EpisodeOutput, masked_output, outputs_of
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.success import settle_outcomes
from uirl.types import Task, Trajectory

AGENT = "uirl"
"""Name under which verl knows the loop (`agent_name` of a row, `rollout.agent.default_agent_loop`)."""


@register(AGENT)
class EnvironmentAgentLoop(AgentLoopBase):
    """Plays the episode a row names in `extra_info`: environment, task, seed (see `CustomEnvironmentDataset`).

    The reward is computed here, by the environment or the run's reward function. An episode that fails is played again
    (`rollout.retries`); one that fails for good raises its failure, and verl then goes on with the rest of its group.
    """

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play one episode and return its sequences: an output, or a list of them where the history was rewritten.

        Raises RolloutFailure for an episode that is no evidence, ConfigError and AlignmentError for what the person
        must change.
        """
        context = await context_of(self.config, self.server_manager)
        with context.playing():
            return await self._sequences(context, sampling_params, row)

    async def _sequences(
        self, context: RolloutContext, sampling_params: Mapping[str, Any], row: Mapping[str, Any]
    ) -> Any:
        spec, split = spec_of(row), str(extra_info(row).get("split", "train"))
        trajectory, versions = await self._play(context, spec, split, sampling_params, row.get("global_steps"))
        if trajectory.failure is not None:
            return self._failed(trajectory, context)
        # beside the event loop: it decodes every picture of the episode
        make = partial(outputs_of, trajectory, context.images, versions, max_tokens=context.sequence_tokens)
        outputs = await asyncio.to_thread(make)
        return outputs[0] if len(outputs) == 1 else self._several(outputs, context)

    async def _play(
        self, context: RolloutContext, spec: EpisodeSpec, split: str, sampling: Mapping[str, Any], step: int | None
    ) -> tuple[Trajectory, list[int]]:
        """Play the episode, record every attempt, and return it with the global steps of the weights that sampled
        it."""
        store = context.store
        if store.inference.seed is not None:
            refuse_seed(self.rollout_config)
        agents: dict[str, ServerAgent] = {}

        def make_agent(attempt: EpisodeSpec) -> ServerAgent:
            agents[attempt.trajectory_id] = ServerAgent(
                self.server_manager,
                sampling,
                uuid.uuid4().hex,
                max_tokens=store.inference.max_tokens,
                end_ids=context.loaded.end_ids,
                max_context=context.sequence_tokens,
                seeded=store.inference.seed is not None,
                banned=left_to_us(str(self.rollout_config.name), context.loaded.banned_ids),
                picture_options=context.picture_options,
            )
            return agents[attempt.trajectory_id]

        trajectory, *attempts = await context.collector(spec.task.environment, split).collect([spec], make_agent)
        settle_outcomes([trajectory], context.speakers)
        for attempt in [*attempts, trajectory]:
            versions = agents[attempt.id].versions if attempt.id in agents else []
            # weights of global step n sample the episodes of step n + 1
            at = step if step is not None else max(versions, default=0) + 1
            await context.record(attempt, int(at), split, repeated=attempt is not trajectory)
        return trajectory, agents[trajectory.id].versions if trajectory.id in agents else []

    def _failed(self, trajectory: Trajectory, context: RolloutContext) -> AgentLoopOutput:
        """Raise the failure under the V1 trainer, which then goes on with the rest of the group; under the legacy
        trainer, which would end with it, return a sample that is masked out."""
        assert trajectory.failure is not None
        if self.config.trainer.use_v1:
            raise EpisodeFailed(trajectory.failure.kind, f"episode {trajectory.id}: {trajectory.failure.message}")
        return masked_output(trajectory, context.loaded.end_ids[0])

    def _several(self, outputs: list[EpisodeOutput], context: RolloutContext) -> list[EpisodeOutput]:
        """Return `outputs`, several sequences. Raises ConfigError where the trainer does not read them as one
        episode."""
        why = reads_several(self.config, credits_episodes=context.settings.credits_episodes)
        if why is None:
            return outputs
        raise ConfigError(
            f"the context window rewrote the history of an episode, which makes it {len(outputs)} sequences; {why}, "
            "or set rollout.max_images and rollout.token_budget to null"
        )


class EpisodeFailed(RolloutFailure):
    """An episode failed for good; `kind` says at which boundary."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def extra_info(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a row says about its episode. Raises ConfigError where it says nothing."""
    found = row.get("extra_info")
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"a row for the agent loop {AGENT!r} holds no mapping `extra_info` with environment, task and seed, got "
            f"{found!r:.80}; use CustomEnvironmentDataset, or write these into your rows"
        )
    return found


def spec_of(row: Mapping[str, Any]) -> EpisodeSpec:
    """Return the episode of a row.

    `extra_info` may hold `environment` (a name; left out: the run's own), `task` (an id or the fields of a `Task`),
    `seed` (of the instance), `draws` (of the sampling), `group`, `level` (of the curriculum); `session_id` is the
    member that verl's V1 trainer plays.
    """
    info = extra_info(row)
    task = _task(info)
    index = row.get("index", info.get("index", 0))
    # verl's legacy trainer repeats rows without numbering them
    member = row.get("session_id", uuid.uuid4().hex[:8])
    group = str(info.get("group") or f"{info.get('split', 'train')}-{index}")
    if info.get("split", "train") != "train":  # the same held-out rows come back at every validation
        group = f"{group}@{row.get('global_steps', uuid.uuid4().hex[:8])}"
    seed, draws = info.get("seed", task.seed), info.get("draws")
    return EpisodeSpec(
        task=task,
        environment_seed=None if seed is None else int(seed),
        sampling_seed=None if draws is None else derive_seed(int(draws), str(member)),
        trajectory_id=f"{group}-{member}",
        group_id=group,
        level=info.get("level"),
    )


def _task(info: Mapping[str, Any]) -> Task:
    task, environment = info.get("task"), str(info.get("environment") or "")
    if isinstance(task, Mapping):
        fields = {"environment": environment, **{str(key): value for key, value in task.items()}}
        try:
            return Task(**fields)
        except TypeError as error:
            raise ConfigError(f"the task of a row cannot be read: {error}; expected the fields of uirl.Task") from error
    return Task(id=str(task or environment or "unnamed"), environment=environment)
