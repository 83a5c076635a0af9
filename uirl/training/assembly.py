"""A config and an environment -> everything a run needs, wired together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from uirl.config import ConfigStore, InferenceConfig, WarmStartConfig
from uirl.environments import BaseEnvironment, create_environment
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.copying import copy_of
from uirl.inference.registry import create_engine
from uirl.inference.workers import engine_workers
from uirl.learner import Learner, Policy
from uirl.learner.data_parallel import Ranks
from uirl.rollout.collector import Collector, chat_for, options_of
from uirl.rollout.reward import RewardFunction
from uirl.runtime.memory import give_back_memory
from uirl.training.record.progress import doing
from uirl.training.resume import run_name_for
from uirl.training.tasks.task_sets import TaskSets, require_shared_instances, require_tasks_arrive, task_sets
from uirl.verification.hybrid import HybridVerifier
from uirl.verification.setup import verifier_of
from uirl.workers.pictures import SharedImageStore, SharedPictures


@dataclass(slots=True)
class Assembly:
    """The parts of one run in one process."""

    config: ConfigStore
    environment: BaseEnvironment
    eval_environment: BaseEnvironment
    tasks: TaskSets
    learner: Learner
    engine: InferenceEngine
    chat: ChatRenderer
    images: ImageStore
    collector: Collector
    eval_collector: Collector
    verifier: HybridVerifier | None = None
    """What the section `verification` describes; None: nothing."""
    _forgotten: float = 0.0
    """Up to when the store of pictures was cleared last."""

    @property
    def warm_starts(self) -> bool:
        """Whether the run begins with supervised learning: `training.warm_start.enabled`, resolved."""
        _require_demonstrator(self.config.training.warm_start, self.environment, self.config.environment.label)
        return self.config.wants_warm_start and self.environment.has_demonstrator

    @property
    def unused_demonstrator(self) -> bool:
        """Whether the run could begin with supervised learning and nobody said that it should not."""
        return (
            self.environment.has_demonstrator
            and self.config.training.warm_start.enabled is None
            and not self.warm_starts
        )

    async def publish(self, send: Callable[..., Awaitable[None]] | None = None) -> None:
        """Make the policy as it is now what is sampled from. `send`: `Channel.publish`; None: the engine alone."""
        send = send or self.engine.update_weights
        with doing("the engine gets the weights"):
            weights, adapter = self.learner.policy.update_for(self.engine)
            await send(weights, self.learner.version, adapter=adapter)

    def forget_pictures(self, moment: float) -> None:
        """Drop the pictures that did not come since `moment`, in seconds since 1970: no sample needs them any more.

        What was made of them stays one update longer, for screens that come again."""
        forgotten = self.images.forget_before(moment)
        self.learner.policy.loaded.forget_pictures(self._forgotten)
        self._forgotten = moment
        if forgotten:
            give_back_memory()

    def judge_row(self) -> dict[str, Any]:
        """Return what the metrics say of the judge, by the newest episodes of which rules knew the truth."""
        return {} if self.verifier is None or self.verifier.judge is None else self.verifier.quality().row()

    async def close(self) -> None:
        """Free environments and engine."""
        if self.verifier is not None:
            await self.verifier.close()
        with doing("the environments close"):
            await asyncio.gather(self.collector.close(), self.eval_collector.close())
        await self.engine.close()
        self.images.close()


def assemble(
    config: ConfigStore,
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFunction | None = None,
    dataset: Iterable[Any] | None = None,
    policy: Policy | None = None,
    eval_dataset: Iterable[Any] | None = None,
    *,
    for_training: bool = False,
    ranks: Ranks | None = None,
) -> Assembly:
    """Return the parts of a run. `environment` None: the one the config names; `policy` None: the one the config loads;
    `dataset` and `eval_dataset`: see `task_sets`; `ranks`: the processes that learn together. Raises ConfigError where
    a `reset` cannot be told what the tasks say or, `for_training`, the estimator compares episodes of different
    instances."""
    by_name = environment is None
    if not by_name and not isinstance(environment, BaseEnvironment):
        got = f"the class {environment.__name__}" if isinstance(environment, type) else repr(environment)[:80]
        raise ConfigError(f"got {got} as the environment; expected an instance of a subclass of uirl.BaseEnvironment")
    settings = config.environment
    if environment is None:
        settings.require_named()
        environment = create_environment(settings.name, settings.options_for("train"), settings)
    evaluation = create_environment(settings.name, settings.options_for("eval"), settings) if by_name else environment
    tasks = task_sets(settings, environment, evaluation, dataset, eval_dataset)
    require_tasks_arrive(evaluation, tasks.evaluation, of_environment=tasks.of_environment)
    if for_training:
        require_tasks_arrive(environment, tasks.train, of_environment=tasks.of_environment)
        require_shared_instances(environment, tasks.train, config.training.adv_estimator, settings.reset_timeout)
        _require_demonstrator(config.training.warm_start, environment, settings.label)
    judged = config.verification.enabled and config.verification.judge is not None
    if judged and for_training:
        # a run without a name gets one now, on which the judge's calls are booked, and has no other later
        config.logging.run_name = run_name_for(config)
    verifier = verifier_of(config.verification, config.logging, run_name_for(config) if judged else "")
    if verifier is not None and reward_fn is not None:
        raise ConfigError(
            "got a reward_fn and verification.enabled=true, which each give the reward of an episode; leave one out"
        )
    if policy is None:
        with doing(f"loading {config.model.source}"):
            policy = Policy.from_config(config)
            policy.loaded.require_saved()
    rollout, actors = config.rollout, config.actors
    # in memory or, where other processes play, in a folder that they share
    shares = config.ray.use_ray or actors.processes > 0
    images = SharedImageStore(SharedPictures.make(actors.pictures)) if shares else ImageStore()
    learner = Learner(policy, config, images, ranks=ranks)
    chat = chat_for(policy.loaded, environment)
    options = options_of(config.turn_limit, rollout, config.inference, reward_fn or verifier)
    # on the learner's own module, on a copy where actors run ahead of it, or in processes of their own, here or in Ray
    embedded = config.inference.backend == "transformers"
    if actors.engines and embedded:
        learners = 1 if ranks is None else ranks.count
        engine: InferenceEngine = engine_workers(
            config.engine_settings, config.ray, config.training.threads, policy.loaded, learners=learners
        )
    else:
        ahead = actors.run_ahead and embedded
        engine = create_engine(config, copy_of(policy.loaded) if ahead else policy.loaded, shared=not ahead)
    return Assembly(
        config=config,
        environment=environment,
        eval_environment=evaluation,
        tasks=tasks,
        learner=learner,
        engine=engine,
        chat=chat,
        images=images,
        collector=Collector.from_config(rollout, settings, environment, chat, images, options),
        eval_collector=Collector.from_config(rollout, settings, evaluation, chat, images, options),
        verifier=verifier,
    )


def _require_demonstrator(settings: WarmStartConfig, environment: BaseEnvironment, label: str) -> None:
    """Raise ConfigError where a warm start was asked for and there is no demonstrator."""
    if settings.enabled and not environment.has_demonstrator:
        raise ConfigError(
            f"training.warm_start.enabled=true: got {label}, which has no demonstrator (`expert_action`); expected one "
            "to learn from. Set training.warm_start.enabled=null"
        )


def sampling_of(inference: InferenceConfig, temperature: float | None = None) -> SamplingParams:
    """Return the sampling parameters of the config."""
    return SamplingParams(
        max_tokens=inference.max_tokens,
        temperature=inference.temperature if temperature is None else temperature,
        top_p=inference.top_p,
        top_k=inference.top_k,
    )
