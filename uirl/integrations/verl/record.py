"""The record of a run under verl: the Ray actor that coordinates it, its numbers by step, its state in checkpoints.

Agent-loop workers play episodes on many machines, but a trajectory store has one writer, and an environment that was
given as an object stands in no table. Both live in `RunCoordinator`, which workers and datasets find by its name
(`data.uirl.coordinator`).
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import CheckpointError, ConfigError
from uirl.images import ImageStore, Screenshot
from uirl.integrations.verl.settings import Settings, llm_variables
from uirl.metrics import MetricsLogger, read_metrics
from uirl.rollout.reward import RewardFunction
from uirl.runtime.files import write_atomically
from uirl.storage import RunDirectory, TrajectoryStore, origin_of
from uirl.success import settle_outcomes
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.record import row_of
from uirl.training.record.tally import Tally
from uirl.types import Task, Trajectory


@dataclass(slots=True)
class EndedEpisodes:
    """Episodes as they ended for good, and attempts that failed and were repeated."""

    episodes: list[Trajectory] = field(default_factory=list)
    attempts: list[Trajectory] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunObjects:
    """What a run was given as objects, beside its config."""

    environment: BaseEnvironment | None = None
    reward_fn: RewardFunction | None = None
    tasks: tuple[Task, ...] | None = None
    eval_tasks: tuple[Task, ...] | None = None
    curriculum: Any = None

    def pack(self) -> bytes | None:
        """Return the objects as bytes; None: there are none. Raises ConfigError where one cannot be pickled."""
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
        """Return what `pack` pickled."""
        return cls() if packed is None else pickle.loads(packed)


class RunCoordinator:
    """Runs as a Ray actor (`start_coordinator`); calls come one after the other."""

    def __init__(self, config: dict[str, Any], directory: str | None, objects: bytes | None = None) -> None:
        """Set up a coordinator that has recorded nothing. `directory`: where to keep the record; None: nowhere.
        `objects`: packed `RunObjects`; None: the config names everything."""
        self._config = ConfigStore.build(config)
        self._objects, self._directory = objects, directory
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

    def given(self) -> tuple[bytes | None, dict[str, str]]:
        """Return the packed `RunObjects` and the environment variables."""
        return self._objects, self._env

    def begin(self, resume_after: int | None) -> None:
        """Open the record; what steps after `resume_after` left there is dropped. None: from the start. Raises
        StorageError."""
        logging = self._config.logging
        if self._directory is not None and logging.store_trajectories:
            path = RunDirectory(self._directory).trajectories_path
            origin = origin_of(self._config.model, self._config.inference, ("verl", "ray"))
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
        """Return the training episodes that ended since the last call, sorted by their ids."""
        played, self._played = self._played, EndedEpisodes()
        self._failures.clear()
        return self._settled(played)

    def take_held_out(self) -> EndedEpisodes:
        """Return the episodes of evaluations that ended since the last call, sorted by their ids."""
        played, self._held_out = self._held_out, EndedEpisodes()
        return self._settled(played)

    def _settled(self, played: EndedEpisodes) -> EndedEpisodes:
        settle_outcomes(played.episodes, self._speakers)
        return EndedEpisodes(*(sorted(some, key=lambda t: t.id) for some in (played.episodes, played.attempts)))

    def report_error(self, error: Exception) -> None:
        """Keep the first error that is meant for the user."""
        self._first_error = self._first_error or error

    def first_error(self) -> Exception | None:
        """Return that error; None: there is none."""
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
    config: dict[str, Any], directory: Path | str | None, objects: bytes | None = None
) -> tuple[str, Any]:
    """Start a `RunCoordinator` on this machine and return (name, handle); it ends with the process that started it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"uirl-coordinator-{uuid.uuid4().hex[:8]}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = ray.remote(RunCoordinator).options(name=name, num_cpus=0.1, scheduling_strategy=here)
    actor: Any = options.remote(config, None if directory is None else str(directory), objects)
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


_UPDATE = {
    "actor/pg_loss": "policy_loss",
    "actor/entropy": "entropy",
    "actor/ppo_kl": "approx_kl",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/grad_norm": "grad_norm",
    "critic/vf_loss": "value_loss",
    "training/log_prob_gap_max": "log_prob_gap_max",
    "training/log_prob_gap_mean": "log_prob_gap_mean",
    "training/learned_episodes": "count/learned_episodes",
    "training/optimizer_steps": "count/optimizer_steps",
    "training/padding_rows": "count/padding_rows",
    "timing_s/gen": "time/collect",
    "timing_s/update_actor": "time/update",
    "timing_s/step": "time/step",
}
"""verl's name of a number -> ours."""


class StepRecord:
    """`metrics.jsonl` and `summary.json` of a run directory, and the same numbers for verl's own trackers."""

    def __init__(self, settings: Settings, resume_after: int | None, tally: Mapping[str, Any] | None = None) -> None:
        """Open the files of the record. `tally`: what `self.tally` was when the run was saved; None: it begins."""
        self._settings = settings
        self._logger: MetricsLogger | None = None
        self._episodes = self._steps = 0
        self.held_out_row: dict[str, float | None] = {}
        """Of the newest evaluation, for the next row."""
        self.tally = Tally() if tally is None else Tally.from_dict(tally)
        """Of the training episodes: how many are no evidence, and why."""
        self.held_out = Tally()
        """Of the newest evaluation."""
        if settings.directory is not None:
            path = Path(settings.directory) / "metrics.jsonl"
            RunDirectory(settings.directory).summary_path.unlink(missing_ok=True)  # it has not ended
            after = -1 if resume_after is None and path.exists() else resume_after
            self._logger = MetricsLogger(path, resume_after=after)
            rows = read_metrics(path)
            self._episodes = int(rows[-1]["episodes_total"]) if rows else 0
            self._steps = int(rows[-1]["step"]) if rows else 0

    def count(self, played: EndedEpisodes) -> None:
        """Count a step's training episodes, before its checkpoint is written."""
        self.tally.add(played.episodes, played.attempts)

    def count_held_out(self, played: EndedEpisodes) -> None:
        """Keep the numbers of an evaluation for the next row, named as the local trainer names them."""
        if played.episodes:
            report = report_on(played.episodes, played.attempts)
            self.held_out, self.held_out_row = report.tally, report.row()

    def add(
        self, step: int, epoch: int, played: EndedEpisodes, metrics: Mapping[str, Any], of_tasks: Mapping[str, Any]
    ) -> dict[str, float]:
        """Write down all of a step's numbers, and return what verl's trackers shall show of its episodes. `of_tasks`:
        what the curriculum says."""
        held_out, self.held_out_row = self.held_out_row, {}
        if not played.episodes:
            return {}
        row = row_of(played.episodes, {}, {}, played.attempts) | dict(of_tasks) | held_out
        self._episodes += len(played.episodes)
        self._steps = step
        if self._logger is not None:
            update = {ours: float(metrics[theirs]) for theirs, ours in _UPDATE.items() if theirs in metrics}
            self._logger.log(step, {**row, **update, "epoch": epoch, "episodes_total": self._episodes})
        return {f"uirl/{name}": float(value) for name, value in row.items() if value is not None}

    def add_start(self) -> None:
        """Write down what an evaluation before the first step found."""
        if self._logger is not None:
            self._logger.log(0, {**self.held_out_row, "episodes_total": 0})

    def finish(self) -> None:
        """Write the summary of a run that has come to its end."""
        if self._settings.directory is None:
            return
        config = self._settings.store()
        summary = {
            "steps": self._steps,
            "episodes": self._episodes,
            "excluded": {"training": self.tally.to_dict(), "after": self.held_out.to_dict()},
            "stopped_because": "all updates are done",
            "seed": config.training.seed,
            "algorithm": config.training.adv_estimator,
        }
        RunDirectory(self._settings.directory).write_json("summary.json", summary)


STATE = "uirl.json"
"""File in a checkpoint of verl's that holds what is ours."""


def write_state(folder: Path, dataset: Any, record: StepRecord | None) -> None:
    """Write the dataset's state and the tally of the run into a checkpoint of verl's."""
    state = {
        "format": 1,
        "dataset": dataset.state_dict() if hasattr(dataset, "state_dict") else None,
        "tally": None if record is None else record.tally.to_dict(),
    }
    write_atomically(folder / STATE, json.dumps(state))


def continue_record(trainer: Any, settings: Settings, coordinator: Any) -> StepRecord:
    """Restore what is ours from the checkpoint that a trainer of verl's has loaded, and open the record after it.
    Raises CheckpointError where the checkpoint holds no such state."""
    import ray

    step, state = trainer.global_steps or None, {}
    if step is not None:
        section = trainer.config.trainer
        folder = Path(section.default_local_dir) / f"global_step_{step}"
        if section.resume_mode == "resume_path":
            folder = Path(section.resume_from_path)
        try:
            state = json.loads((folder / STATE).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{folder} holds no readable {STATE}: {error}; it was not saved by a run of ours "
                "(trainer.checkpoint_callback_class), or is damaged. Continue an older global_step_* with "
                "trainer.resume_mode=resume_path"
            ) from error
        trainer.train_dataset.load_state_dict(state["dataset"])
    ray.get(coordinator.begin.remote(step))
    return StepRecord(settings, step, state.get("tally"))


def check_world_size(section: Any) -> None:
    """Raise CheckpointError where FSDP's shards (one file per rank) were written by another number of GPUs."""
    if section.resume_mode == "disable":
        return
    newest = Path(section.default_local_dir) / "latest_checkpointed_iteration.txt"
    if section.resume_mode == "resume_path":
        step = Path(section.resume_from_path)
    elif newest.is_file():
        step = newest.parent / f"global_step_{newest.read_text().strip()}"
    else:
        return
    described = step / "actor" / "fsdp_config.json"
    if not described.is_file():
        return  # Megatron's, which say nothing of it
    gpus, world_size = section.nnodes * section.n_gpus_per_node, int(json.loads(described.read_text())["world_size"])
    if world_size != gpus:
        raise CheckpointError(
            f"{step} was written by {world_size} GPUs, one file each, and this run has {gpus}; continue with as many "
            "(trainer.nnodes, trainer.n_gpus_per_node), or start a new run from what `uirl verl --export` makes of it "
            "(--sft_model_path)"
        )
