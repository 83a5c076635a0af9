"""Tasks and rewards of an environment for verl: its dataset, whose rows say which episode to play, and its reward
function, for loops of verl's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import Dataset

from uirl.config import EnvironmentConfig
from uirl.environments import ENVIRONMENTS, BaseEnvironment, EnvironmentSession, create_environment, environment_class
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.integrations.verl.agent_loop import AGENT, spec_of
from uirl.integrations.verl.record import RunObjects, find_coordinator
from uirl.integrations.verl.settings import Settings
from uirl.parsers import create_parser
from uirl.rollout.episode import Episode, EpisodeLimits
from uirl.rollout.reward import RewardFunction, judge_episode
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import settle_outcomes
from uirl.training.evaluation.evaluation import HELD_OUT_SEED
from uirl.training.tasks.curriculum import CurriculumTasks, source_of
from uirl.training.tasks.sources import UniformTasks, tasks_of
from uirl.training.tasks.task_sets import task_sets
from uirl.types import Task, Trajectory

TRAIN, EVAL = "uirl:train", "uirl:eval"
"""What stands in `data.train_files` and `data.val_files` where the rows are made here."""


class CustomEnvironmentDataset(Dataset[dict[str, Any]]):
    """Rows for `EnvironmentAgentLoop`: environment, task and seed, one group of episodes each.

    Which row comes next is asked of a task source when it comes, so a curriculum moves with the policy: read it in
    order, in the trainer's own process (`data.shuffle=false`, `data.dataloader_num_workers=0`). The index of a row is
    not read. `state_dict` continues exactly where it was taken.
    """

    def __init__(
        self,
        environment: BaseEnvironment | None = None,
        tokenizer: Any = None,
        *,
        tasks: Iterable[Any] | None = None,
        curriculum: Any | None = None,
        seed: int = 0,
        split: str | None = None,
        data_files: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        """Make the rows of one split. verl passes `data_files`, `tokenizer`, `config` (its section `data`),
        `processor`, `max_samples`.

        Args:
            environment: Whose tasks; None: the one that `data.uirl` names.
            tokenizer, processor: Not needed: prompts are rendered by the agent loop, turn by turn.
            tasks: `Task`s, mappings of their fields or goals; None: those that the config names or chooses for the
                split, else the environment's.
            curriculum: An object with `sample_task()`, which returns a task's id, and `update_success_rate(task,
                success, step)`; None: the section `curriculum` of the config, else every task equally often.
            seed: Of tasks, instances and draws.
            split: 'train' or 'eval'; None: what `data_files` says. Held-out instances are the same in every run.
            data_files: `TRAIN` or `EVAL`.
            config: verl's section `data`.
            max_samples: Rows of an epoch; -1: those of the config's epoch, else one per task.

        Raises ConfigError where the environment or its tasks cannot be made.
        """
        own = Settings() if config is None else Settings.read(config)
        store, objects = own.store(), _run_objects(own)
        settings = store.environment
        self.split = split or ("eval" if EVAL in str(data_files) else "train")
        world = environment or objects.environment
        if world is None:
            settings.require_named()
            world = create_environment(settings.name, settings.options_for(self.split), settings)
        self._named = settings.name if _is_named(world, settings) else ""
        self.name = self._named or type(world).__name__
        if config is None:
            store.training.seed = seed
        chosen = self._tasks(world, settings, objects, environment) if tasks is None else tasks_of(world, tasks)
        if self.split == "train":
            self.source = source_of(store, chosen, objects.curriculum if curriculum is None else curriculum)
        else:
            self.source = UniformTasks(chosen, seed=store.draws_seed, split=self.split, instance_seed=HELD_OUT_SEED)
        self._length = len(chosen)
        if max_samples > 0:
            self._length = max_samples
        elif config is not None:  # verl's epoch is ours: the updates of one, or the episodes of an evaluation
            updates = store.training.num_iters_per_epoch
            self._length = updates * config.train_batch_size if self.split == "train" else store.training.eval_episodes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the next row, whatever `index` says; a held-out row is that of its index."""
        if self.split != "train":
            self.source.load_state_dict({"position": index})
        spec = self.source.groups(1, 1)[0][0]
        name = spec.task.environment  # of the table, or nothing where the episode belongs to the run's own object
        # a mixture finds the member by the id of the task
        name = name if name in ENVIRONMENTS and self._named not in (name, "mixture") else self._named
        return {
            "raw_prompt": [{"role": "user", "content": spec.task.goal or spec.task.id}],
            "data_source": self.name,
            "agent_name": AGENT,
            "index": index,
            "reward_model": {"style": "environment", "ground_truth": None},
            "extra_info": {
                "index": index,
                "environment": name,
                "task": {**asdict(spec.task), "environment": name},
                "seed": spec.environment_seed,
                "draws": spec.sampling_seed,
                "group": spec.group_id,
                "split": self.split,
                "level": spec.level,
            },
            # verl counts the rows of a batch by its tensors
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }

    def report(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Report to the curriculum how the episodes of update `step` went."""
        self.source.report(trajectories, step)

    def take_metrics(self) -> dict[str, Any]:
        """Return what a curriculum says of its tasks since the last call."""
        return self.source.take_metrics() if isinstance(self.source, CurriculumTasks) else {}

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues exactly here."""
        return {"source": self.source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.source.load_state_dict(state["source"])

    def _tasks(
        self,
        world: BaseEnvironment,
        settings: EnvironmentConfig,
        objects: RunObjects,
        environment: BaseEnvironment | None,
    ) -> list[Task]:
        """Return the tasks of this split, as the local trainer chooses them."""
        trained, named = world, environment is None and objects.environment is None
        if self.split != "train" and objects.tasks is not None and settings.eval_options and named:
            trained = create_environment(settings.name, settings.options_for("train"), settings)
        sets = task_sets(settings, trained, world, objects.tasks, objects.eval_tasks)
        return sets.train if self.split == "train" else sets.evaluation


def _is_named(environment: BaseEnvironment, settings: EnvironmentConfig) -> bool:
    name = settings.name
    known = not settings.is_object and (name in ENVIRONMENTS or ":" in name)
    return known and type(environment) is environment_class(name)


def _run_objects(settings: Settings) -> RunObjects:
    if settings.coordinator is None:
        return RunObjects()
    import ray

    return RunObjects.unpack(ray.get(find_coordinator(settings.coordinator).given.remote())[0])


class EnvironmentRewardWrapper:
    """`environment` and `reward_fn` as verl's reward function, for verl's own loops (`single_turn_agent`): the text of
    the response is one action in the instance its row names. (`EnvironmentAgentLoop` computes rewards while it plays.
    verl hands a reward function the whole response, observations included, so with several turns that is no action.)

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
        self._loop = self._loop or EventLoopThread()
        return self._loop.run(self.score(solution_str, {"extra_info": info}))

    async def score(self, text: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one reply is worth in the instance that `row` names."""
        session, images = EnvironmentSession(self.environment.spawn()), ImageStore()
        try:
            episode = Episode(session, self._parser, spec_of(row), images, EpisodeLimits(1))
            await episode.begin()
            await episode.act(text)
            record = episode.end()
            if self.reward_fn is not None:
                await judge_episode(record, self.reward_fn, session.env, images)
        finally:
            await session.close()
        settle_outcomes([record], self._speakers)
        return {"score": record.total_reward(), "success": record.success, "turns": len(record)}

    def _batch(self, data: Any) -> Any:
        tokenizer = data.meta_info.get("tokenizer")
        if tokenizer is None:
            raise ConfigError(
                "a DataProto holds token ids alone; put the tokenizer into data.meta_info['tokenizer'], or let verl's "
                "reward manager call this function with texts"
            )
        lengths = data.batch["attention_mask"][:, data.batch["prompts"].shape[1] :].sum(-1).tolist()
        replies = [ids[:n] for ids, n in zip(data.batch["responses"], lengths, strict=True)]
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in replies]
        infos = data.non_tensor_batch["extra_info"]
        scores = [self(None, text, None, info)["score"] for text, info in zip(texts, infos, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)


async def environment_reward(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Return the same as `EnvironmentRewardWrapper.score`, by name, for `reward.custom_reward_function`: path
    'pkg://uirl.integrations.verl.tasks', name 'environment_reward'. The row names the environment;
    `reward_kwargs.options` are its options."""
    name = str(extra_info.get("environment") or options.get("environment") or "")
    if not name:
        raise ConfigError("the row names no environment; set reward_kwargs.environment to a name of the table")
    environment_options = json.dumps(dict(options.get("options") or {}), sort_keys=True)
    return await _named(name, environment_options).score(solution_str, {"extra_info": extra_info})


@lru_cache(64)
def _named(name: str, options: str) -> EnvironmentRewardWrapper:
    return EnvironmentRewardWrapper(create_environment(name, json.loads(options)))
