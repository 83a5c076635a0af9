"""The Ray actor that coordinates a run: it hands out the objects of the run and writes its trajectory store.

Agent-loop workers play episodes on many machines, but a trajectory store has one writer, and an environment that was
given as an object stands in no table. Both live in one actor, which workers and datasets find by its name
(`data.uirl.coordinator`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.images import ImageStore, Screenshot
from uirl.integrations.verl.config.llm import llm_variables
from uirl.rollout.reward import RewardFunction
from uirl.storage import RunDirectory, TrajectoryStore, origin_of
from uirl.success import settle_outcomes
from uirl.types import Task, Trajectory


@dataclass(slots=True)
class EndedEpisodes:
    """Episodes that ended."""

    episodes: list[Trajectory] = field(default_factory=list)
    """As they ended for good."""
    attempts: list[Trajectory] = field(default_factory=list)
    """That failed and were repeated."""

    def in_order(self) -> EndedEpisodes:
        """Return the same episodes and attempts, sorted by their ids."""
        return EndedEpisodes(*(sorted(some, key=lambda t: t.id) for some in (self.episodes, self.attempts)))


@dataclass(frozen=True, slots=True)
class RunObjects:
    """What a run was given as objects, beside its config."""

    environment: BaseEnvironment | None = None
    reward_fn: RewardFunction | None = None
    tasks: tuple[Task, ...] | None = None
    eval_tasks: tuple[Task, ...] | None = None
    curriculum: Any = None

    def of_workers(self) -> RunObjects:
        """Return the objects that processes which play episodes need."""
        return RunObjects(self.environment, self.reward_fn)

    def of_datasets(self) -> RunObjects:
        """Return the objects that processes which choose tasks need."""
        return replace(self, reward_fn=None)

    def pack(self) -> bytes | None:
        """Return the objects as bytes for other processes; None: there are none. Raises ConfigError where one cannot be
        pickled."""
        from ray import cloudpickle

        if all(getattr(self, one.name) is None for one in fields(self)):
            return None
        try:
            return bytes(cloudpickle.dumps(self))
        except (TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"environment {type(self.environment).__name__}, the reward function, tasks and curriculum must reach "
                f"other processes, but cannot be pickled: {error}. Open connections and windows in reset(), or name "
                "the class in environment.name ('package.module:Class') with environment.options"
            ) from error

    @classmethod
    def unpack(cls, packed: bytes | None) -> RunObjects:
        """Return the objects that `pack` pickled; none where `packed` is None."""
        from ray import cloudpickle

        objects: RunObjects = cls() if packed is None else cloudpickle.loads(packed)
        return objects


class RunCoordinator:
    """Runs as a Ray actor (`start_coordinator`); calls come one after the other."""

    def __init__(
        self,
        config: dict[str, Any],
        directory: str | None,
        worker_objects: bytes | None = None,
        dataset_objects: bytes | None = None,
    ) -> None:
        """Set up a coordinator that has recorded nothing. `directory`: where to keep the record; None: nowhere.
        `worker_objects`, `dataset_objects`: packed `RunObjects`; None: the config names everything."""
        self._config = ConfigStore.build(config)
        self._worker_objects, self._dataset_objects = worker_objects, dataset_objects
        self._directory = directory
        self._store: TrajectoryStore | None = None
        self._played, self._held_out = EndedEpisodes(), EndedEpisodes()
        self._speakers: set[str] = set()
        """The environments that were heard to say what success is: see `uirl.success`."""
        self._failures: list[str] = []
        self._first_error: Exception | None = None
        self._evaluated: set[str] = set()
        self._env: dict[str, str] = {}

    def set_env(self, variables: dict[str, str]) -> None:
        """Keep environment variables for the processes that play episodes; Ray stores arguments of a call nowhere."""
        self._env = variables

    def env(self) -> dict[str, str]:
        """Return the variables of `set_env`."""
        return self._env

    def worker_objects(self) -> bytes | None:
        """Return the packed `RunObjects` of those who play episodes."""
        return self._worker_objects

    def dataset_objects(self) -> bytes | None:
        """Return the packed `RunObjects` of those who choose tasks."""
        return self._dataset_objects

    def begin(self, resume_after: int | None) -> None:
        """Open the record; what steps after `resume_after` left there is dropped. None: from the start. Raises
        StorageError."""
        logging = self._config.logging
        if self._directory is not None and logging.store_trajectories:
            path = RunDirectory(self._directory).trajectories_path
            origin = origin_of(self._config, ("verl", "ray"))
            self._store = TrajectoryStore(path, keep_images=logging.store_images, origin=origin)
            self._store.truncate_after(-1 if resume_after is None else resume_after)
            self._speakers |= self._store.speakers
            self._evaluated = {summary.group_id for summary in self._store.list() if summary.split != "train"}

    def add(
        self, trajectory: Trajectory, pictures: Mapping[str, bytes], step: int, split: str, repeated: bool = False
    ) -> bool:
        """Write one episode down; on return it survives a kill. `pictures`: those it shows, by hash, but for those that
        came with another. `repeated`: it failed, and another attempt followed. False: it is on the record already, and
        its pictures were not kept."""
        if trajectory.failure is not None:
            self._failures.append(f"{trajectory.failure.kind}: {trajectory.failure.message}")
        played = self._played if split == "train" else self._held_out
        (played.attempts if repeated else played.episodes).append(trajectory)
        # verl evaluates once more where a run continues: that evaluation is on the record
        if trajectory.group_id in self._evaluated:
            return False
        if self._store is not None:
            images = ImageStore()
            for hash, data in pictures.items():
                images.put(Screenshot(data, hash))
            self._store.add(trajectory, step=step, split=split, images=images)
        return True

    def take(self) -> EndedEpisodes:
        """Return the training episodes that ended since the last call."""
        played, self._played = self._played, EndedEpisodes()
        self._failures.clear()
        settle_outcomes(played.episodes, self._speakers)
        return played.in_order()

    def take_held_out(self) -> EndedEpisodes:
        """Return the episodes of evaluations that ended since the last call."""
        played, self._held_out = self._held_out, EndedEpisodes()
        settle_outcomes(played.episodes, self._speakers)
        return played.in_order()

    def report_error(self, error: Exception) -> None:
        """Keep an error that is meant for the user, if it is the first."""
        self._first_error = self._first_error or error

    def first_error(self) -> Exception | None:
        """Return the first error that is meant for the user; None: there is none."""
        return self._first_error

    def failures(self) -> list[str]:
        """Return what went wrong since the last `take`, in order."""
        return list(self._failures)

    def close(self) -> None:
        """Close the record. Calling it twice is fine."""
        if self._store is not None:
            self._store.close()
            self._store = None


def start_coordinator(
    config: dict[str, Any],
    directory: Path | str | None,
    worker_objects: bytes | None = None,
    dataset_objects: bytes | None = None,
) -> tuple[str, Any]:
    """Start a `RunCoordinator` on this machine and return (name, handle); it ends with the process that started it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"uirl-coordinator-{uuid.uuid4().hex[:8]}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = ray.remote(RunCoordinator).options(name=name, num_cpus=0.1, scheduling_strategy=here)
    folder = None if directory is None else str(directory)
    actor: Any = options.remote(config, folder, worker_objects, dataset_objects)
    actor.set_env.remote(llm_variables())
    return name, actor


def find_coordinator(name: str) -> Any:
    """Return the coordinator of that name. Raises ConfigError where there is none."""
    import ray

    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise ConfigError(
            f"data.uirl.coordinator names the Ray actor {name!r}, which does not run; it is set by create_trainer and "
            "not meant to stand in a file"
        ) from error
