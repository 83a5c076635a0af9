"""The one process of a verl run that knows everything: it hands out the environment and keeps the record.

Agent-loop workers play episodes on many machines, but a trajectory store has one writer, and an environment that was
given as an object stands in no table. Both live in one Ray actor that workers find by its name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.images import ImageStore, Screenshot
from uirl.integrations.verl.config.llm import llm_variables
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Trajectory


@dataclass(slots=True)
class Played:
    """Episodes that ended."""

    episodes: list[Trajectory] = field(default_factory=list)
    """As they ended for good."""
    attempts: list[Trajectory] = field(default_factory=list)
    """That failed and were repeated."""

    def in_order(self) -> Played:
        """The same, by their ids."""
        return Played(*(sorted(some, key=lambda t: t.id) for some in (self.episodes, self.attempts)))


class Office:
    """Runs as a Ray actor (`open_office`); calls come one after the other."""

    def __init__(self, config: dict[str, Any], objects: bytes | None, directory: str | None) -> None:
        """`objects`: the pickled (environment, reward function) of the run; None: the environment is in the table.
        `directory`: where to keep the record; None: nowhere."""
        self._config = ConfigStore.build(config)
        self._objects = objects
        self._directory = directory
        self._store: TrajectoryStore | None = None
        self._played, self._held_out = Played(), Played()
        self._failures: list[str] = []
        self._complaint: Exception | None = None
        self._evaluated: set[str] = set()
        self._variables: dict[str, str] = {}

    def entrust(self, variables: dict[str, str]) -> None:
        """Keeps environment variables for the processes that play episodes; a call like this is stored nowhere."""
        self._variables = variables

    def variables(self) -> dict[str, str]:
        """What was entrusted."""
        return self._variables

    def objects(self) -> bytes | None:
        """The pickled environment and reward function."""
        return self._objects

    def begin(self, resume_after: int | None) -> None:
        """Opens the record; what steps after `resume_after` left there is dropped. None: from the start. Raises
        StorageError."""
        logging = self._config.logging
        if self._directory is not None and logging.store_trajectories:
            path = RunDirectory(self._directory).trajectories_path
            self._store = TrajectoryStore(path, keep_images=logging.store_images)
            self._store.truncate_after(-1 if resume_after is None else resume_after)
            self._evaluated = {summary.group_id for summary in self._store.list() if summary.split != "train"}

    def add(
        self, trajectory: Trajectory, pictures: Mapping[str, bytes], step: int, split: str, repeated: bool = False
    ) -> bool:
        """Writes one episode down; on return it survives a kill. `pictures`: those it shows, by hash, but for those
        that came with another. `repeated`: it failed, and another attempt followed. False: it is on the record
        already, and its pictures were not kept."""
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

    def take(self) -> Played:
        """The training episodes that ended since the last call."""
        played, self._played = self._played, Played()
        self._failures.clear()
        return played.in_order()

    def take_held_out(self) -> Played:
        """The episodes of evaluations that ended since the last call."""
        played, self._held_out = self._held_out, Played()
        return played.in_order()

    def complain(self, error: Exception) -> None:
        """Keeps an error that is meant for the person; the first is told."""
        self._complaint = self._complaint or error

    def complaint(self) -> Exception | None:
        """The first error that is meant for the person; None: there is none."""
        return self._complaint

    def failures(self) -> list[str]:
        """What went wrong since the last `take`, in order."""
        return list(self._failures)

    def close(self) -> None:
        """Closes the record. Calling it twice is fine."""
        if self._store is not None:
            self._store.close()
            self._store = None


def open_office(config: dict[str, Any], objects: bytes | None, directory: Path | str | None) -> tuple[str, Any]:
    """(name, handle) of a new office on this machine; it ends with the process that opened it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"uirl-office-{uuid.uuid4().hex[:8]}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = ray.remote(Office).options(name=name, num_cpus=0.1, scheduling_strategy=here)
    actor = options.remote(config, objects, None if directory is None else str(directory))
    actor.entrust.remote(llm_variables())
    return name, actor


def find_office(name: str) -> Any:
    """The office of that name. Raises ConfigError where there is none."""
    import ray

    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise ConfigError(
            f"data.uirl.office names the Ray actor {name!r}, which does not run; it is set by create_trainer and not "
            "meant to stand in a file"
        ) from error


def pack(environment: Any, reward_fn: Any) -> bytes:
    """The two as bytes for other processes. Raises ConfigError where one cannot be pickled."""
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps((environment, reward_fn)))
    except (TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"environment {type(environment).__name__} and the reward function must reach other processes, but cannot "
            f"be pickled: {error}. Open connections and windows in reset(), or name the class in environment.name "
            "('package.module:Class') with environment.options"
        ) from error


def unpack(objects: bytes) -> tuple[Any, Any]:
    """The inverse of `pack`."""
    from ray import cloudpickle

    environment, reward_fn = cloudpickle.loads(objects)
    return environment, reward_fn
