"""The tasks of an environment as verl's dataset: rows that say which episode to play."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.utils.data import Dataset

from uirl.config import ConfigStore, EnvironmentConfig
from uirl.environments import ENVIRONMENTS, BaseEnvironment, create_environment, environment_class
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.rollout.coordinator import RunObjects, find_coordinator
from uirl.integrations.verl.rollout.registration import AGENT
from uirl.training.evaluation.evaluation import HELD_OUT_SEED
from uirl.training.tasks.curriculum import CurriculumTasks, source_of
from uirl.training.tasks.sources import TaskSource, UniformTasks, tasks_of
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
            tokenizer: Not needed: prompts are rendered by the agent loop, turn by turn.
            tasks: `Task`s, mappings of their fields or goals; None: those that the config names or chooses for the
                split, else the environment's.
            curriculum: An object with `sample_task()`, which returns a task's id, and `update_success_rate(task,
                success, step)`; None: the section `curriculum` of the config, else every task equally often.
            seed: Of tasks, instances and draws.
            split: 'train' or 'eval'; None: what `data_files` says. Held-out instances are the same in every run.
            data_files: `TRAIN` or `EVAL`.
            config: verl's section `data`.
            processor: Not needed.
            max_samples: Rows of an epoch; -1: those of the config's epoch, else one per task.

        Raises ConfigError where the environment or its tasks cannot be made.
        """
        store = (Settings() if config is None else Settings.read(config)).store()
        objects, settings = RunObjects() if config is None else run_objects(config), store.environment
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
        if self.split == "train" and curriculum is None:
            curriculum = objects.curriculum
        self.source = self._source(chosen, curriculum, store)
        default = len(chosen) if config is None else self._rows(store, config)
        self._length = max_samples if max_samples > 0 else default

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the next row, whatever `index` says; a held-out row is that of its index."""
        if self.split != "train":
            self.source.load_state_dict({"position": index})
        spec = self.source.groups(1, 1)[0][0]
        task = {**asdict(spec.task), "environment": self._environment_of(spec.task.environment)}
        return {
            "raw_prompt": [{"role": "user", "content": spec.task.goal or spec.task.id}],
            "data_source": self.name,
            "agent_name": AGENT,
            "index": index,
            "reward_model": {"style": "environment", "ground_truth": None},
            "extra_info": {
                "index": index,
                "environment": task["environment"],
                "task": task,
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
        """Return what the curriculum says of its tasks since the last call; nothing without one."""
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

    def _source(self, tasks: Sequence[Any], curriculum: Any | None, store: ConfigStore) -> TaskSource:
        if self.split == "train":
            return source_of(store, tasks, curriculum)
        seed = store.training.seed
        draws = seed if store.inference.seed is None else store.inference.seed
        return UniformTasks(tasks, seed=draws, split=self.split, instance_seed=HELD_OUT_SEED)

    def _rows(self, store: ConfigStore, config: Any) -> int:
        """Return the number of rows of an epoch, so that verl's epoch is ours: the updates of one, or the episodes of
        an evaluation."""
        if self.split == "train":
            return int(store.training.num_iters_per_epoch * config.train_batch_size)
        return store.training.eval_episodes

    def _environment_of(self, name: str) -> str:
        """Return the environment that a row names: a name of the table, or nothing where the episode belongs to the
        run's own object."""
        return name if name in ENVIRONMENTS and name != self._named else self._named


def _is_named(environment: BaseEnvironment, settings: EnvironmentConfig) -> bool:
    name = settings.name
    return (
        not settings.is_object
        and (name in ENVIRONMENTS or ":" in name)
        and type(environment) is environment_class(name)
    )


def run_objects(data: Any) -> RunObjects:
    """Return the objects that the run of verl's section `data` was given, asked of its coordinator; none without
    one."""
    name = Settings.read(data).coordinator
    if name is None:
        return RunObjects()
    import ray

    return RunObjects.unpack(ray.get(find_coordinator(name).dataset_objects.remote()))
