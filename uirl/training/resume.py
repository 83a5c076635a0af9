"""Which run goes on, from which of its checkpoints, and what becomes of the steps that are gone back over."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore, LoggingConfig
from uirl.config.keys import at, leaves
from uirl.config.stored import remember
from uirl.errors import CheckpointError, ConfigError
from uirl.runtime.files import storage_errors
from uirl.runtime.folders import MANIFEST, finished_folders, number_of
from uirl.storage import RunDirectory, RunTaken, TrajectoryStore, clean_run_name, free_run_name

BY_MACHINE = ("model.dtype", "model.gradient_checkpointing", "training.micro_batch_tokens", "rollout.parallel")
"""Keys to which a run gives a value by its model and machine where they are null."""
NOT_COMPARED = ("checkpoint.resume", "checkpoint.from_step", "logging.run_name", "logging.runs_dir")
"""Keys that say where and how a run is continued, not what it is."""
MAY_CHANGE = (
    *("training.num_epochs", "training.num_iters_per_epoch", "training.max_seconds", "training.stop_at_success"),
    *("actors.processes", "actors.engines", "actors.silence", "actors.pictures"),
    *("model.gradient_checkpointing", "training.micro_batch_tokens", "rollout.parallel"),
)
MAY_CHANGE_SECTIONS = ("checkpoint.", "logging.", "ray.")
"""Keys with which a run is still a run of the same config: how long it goes on, what it writes down, in which
processes and on which machines it runs, and what follows from their memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that could be continued."""

    path: Path
    step: int
    """Of its newest checkpoint."""
    saved: float
    """When that was written, in seconds since 1970."""
    changed: tuple[str, ...] | None
    """Keys that differ from the config asked for; None: its config cannot be read by this version."""

    @property
    def same_config(self) -> bool:
        """Whether only keys differ that a continued run may change."""
        return self.changed is not None and all(
            key in MAY_CHANGE or key.startswith(MAY_CHANGE_SECTIONS) for key in map(_key_of, self.changed)
        )

    def __str__(self) -> str:
        return f"{self.path.name} (step {self.step})"


def open_run(config: ConfigStore, *, checkpoints: bool = True) -> tuple[RunDirectory, list[str]]:
    """Return the directory of the run that `config` begins or, with `checkpoint.resume`, continues, locked for this
    process, and what of its config has changed since.

    Where nobody chose its name, the run has one that no other takes, be they started in the same moment. `checkpoints`:
    it puts them into `checkpoint.output_dir`. Raises StorageError, and ConfigError where there is no run to continue or
    where another run has put its checkpoints.
    """
    logging, resume = config.logging, bool(config.checkpoint.resume)
    begun = config.model_copy(deep=True)
    begun.checkpoint.resume, begun.checkpoint.from_step = False, None  # of this start, not of the run
    while True:
        path = logging.runs_path / run_name_for(config)
        earlier = stored_config(path) if resume else None
        if checkpoints and not (path / "config.yaml").is_file():
            refuse_foreign_checkpoints(checkpoints_of(path, config.checkpoint.output_dir, logging))
        try:
            directory = RunDirectory.create(path, begun.to_yaml(), resume=resume)
        except RunTaken:
            if resume or logging.run_name is not None:
                raise
        else:
            remember(config.to_dict())
            return directory, [] if earlier is None else changed_keys(earlier.to_dict(), config.to_dict())


def run_name_for(config: ConfigStore) -> str:
    """Return the name of the run that `config` begins or continues. Where `logging.run_name` is null, `logging.stem`
    names its runs, else the environment; here `stem`.

    With `checkpoint.resume` and no name: of the runs called `stem` or `stem-<n>` that have the same config, the one
    with the newest checkpoint; one of another config only where it is the only one. Raises ConfigError where there is
    nothing to continue (unless `resume` is 'auto'), and where several runs could be meant.
    """
    resume, name, runs = config.checkpoint.resume, config.logging.run_name, config.logging.runs_path
    stem = config.environment.label if config.logging.stem is None else config.logging.stem
    if not resume:
        return name or free_run_name(runs, stem)
    find = partial(candidates, config.logging, config.resolved())
    if name is not None:
        if resume == "auto" or (runs / name / "config.yaml").is_file():
            return name
        raise ConfigError(f"there is no run {name!r} in {runs} to continue; {_choice(find())}")
    found = find(stem)
    same = [candidate for candidate in found if candidate.same_config]
    if same or len(found) == 1:
        return (same or found)[0].path.name
    if found:
        differences = "; ".join(f"{c}: {', '.join(c.changed or ('its config cannot be read',))}" for c in found)
        raise ConfigError(
            f"no run in {runs} has this config, and several could be meant: {differences}. Name one, as in "
            f"logging.run_name={found[0].path.name}"
        )
    if resume == "auto":
        return free_run_name(runs, stem)
    raise ConfigError(
        f"no run called {clean_run_name(stem)} in {runs} has a checkpoint to continue from; {_choice(find())}"
    )


def _choice(found: list[Candidate]) -> str:
    runs = f"runs that can be continued: {', '.join(map(str, found[:8]))}" if found else "no run there has a checkpoint"
    return f"{runs}. To begin a run leave --resume (checkpoint.resume) out"


def candidates(logging: LoggingConfig, asked: Mapping[str, Any], stem: str | None = None) -> list[Candidate]:
    """Return the runs in `logging.runs_dir` that have a checkpoint, newest first. `asked`: the config to compare with,
    `resolved`; `stem`: only those of that name, numbered or not."""
    home = logging.runs_path
    by_machine = {key for key in BY_MACHINE if at(asked, key) is None}
    pattern = re.compile(r".*" if stem is None else rf"{re.escape(clean_run_name(stem))}(-\d+)?")
    found = []
    for path in sorted(home.iterdir()) if home.is_dir() else ():
        if pattern.fullmatch(path.name) and (path / "config.yaml").is_file():
            stored = stored_config(path)
            folder = None if stored is None else stored.checkpoint.output_dir
            newest = finished_folders(checkpoints_of(path, folder, logging))
            if newest:
                differs = [] if stored is None else changed_keys(stored.resolved(), asked)
                changed = None if stored is None else tuple(c for c in differs if _key_of(c) not in by_machine)
                written = (newest[-1] / MANIFEST).stat().st_mtime
                found.append(Candidate(path, number_of(newest[-1]) or 0, written, changed))
    return sorted(found, key=lambda candidate: candidate.saved, reverse=True)


def stored_config(run: Path) -> ConfigStore | None:
    """Return the config of a run, to compare with; None where this version cannot read it."""
    try:
        return ConfigStore.from_yaml(run / "config.yaml")
    except ConfigError:
        return None


def checkpoints_of(run: Path, output_dir: str | None, logging: LoggingConfig) -> Path:
    """Return the folder of a run's checkpoints, by its `checkpoint.output_dir`; `logging` knows from where a relative
    path counts."""
    return run / "checkpoints" if output_dir is None else logging.at(output_dir)


def checkpoint_of(home: Path, step: int) -> Path:
    """Return the folder among the checkpoints in `home` that `step` has."""
    return home / f"step_{step:06d}"


def refuse_foreign_checkpoints(folder: Path) -> None:
    """Raise ConfigError where another run has put checkpoints into `folder`, in which a run is to begin: each would
    delete the other's and be continued from them."""
    found = finished_folders(folder)
    if found:
        raise ConfigError(
            f"checkpoint.output_dir: {folder} holds checkpoints of another run ({found[-1].name}); choose a folder for "
            "each run, or leave it at null"
        )


def changed_keys(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return 'key: old -> new' for every key that differs between two configs."""
    old, new = ({key: value for key, value in leaves(config) if value != {}} for config in (earlier, now))
    keys = [key for key in [*old, *(key for key in new if key not in old)] if key not in NOT_COMPARED]
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]


def _key_of(change: str) -> str:
    return change.partition(":")[0]


def checkpoint_to_continue(folder: Path, step: int | None) -> Path | None:
    """Return the checkpoint of `step` in `folder`; `step` None: the newest, or None where there is none. Raises
    CheckpointError."""
    found = finished_folders(folder)
    if step is None:
        return found[-1] if found else None
    chosen = next((path for path in found if number_of(path) == step), None)
    if chosen is None:
        steps = ", ".join(str(number_of(path)) for path in found)
        raise CheckpointError(
            f"there is no checkpoint of step {step} in {folder}; "
            + (f"expected one of {steps} (checkpoint.keep_last_n says how many are kept)" if found else "it is empty")
        )
    return chosen


@contextlib.contextmanager
def naming_the_way_back(checkpoint: Path) -> Iterator[None]:
    """Return a context whose CheckpointErrors say how to go on from the checkpoint before this one."""
    try:
        yield
    except CheckpointError as error:
        number = number_of(checkpoint) or 0
        older = [n for path in finished_folders(checkpoint.parent) if (n := number_of(path) or 0) < number]
        if not older:
            raise
        raise CheckpointError(
            f"{error}. Nothing was changed. To go on from an older one: --resume --from-step {older[-1]} "
            f"(checkpoint.from_step={older[-1]}); this one is then set aside"
        ) from error


def set_later_aside(directory: RunDirectory, checkpoints: Path, step: int) -> Path | None:
    """Return the folder that now holds what the run was before it went back to `step`; None where no checkpoint is
    later.

    It is laid out as a run directory: the record up to there, and the later checkpoints. Copies come first and the
    newest checkpoint is moved first, so that a crash leaves two consistent runs.
    """
    later = [path for path in finished_folders(checkpoints) if (number_of(path) or 0) > step]
    if not later:
        return None
    number = 1
    while (aside := directory.path / f"abandoned-{number}").exists():
        number += 1
    with storage_errors(f"cannot set the later steps of {directory.path} aside"):
        (aside / "checkpoints").mkdir(parents=True)
        _copy_record(directory, RunDirectory(aside))
        for path in reversed(later):
            shutil.move(path, aside / "checkpoints" / path.name)
        directory.summary_path.unlink(missing_ok=True)
    return aside


def _copy_record(directory: RunDirectory, aside: RunDirectory) -> None:
    config = stored_config(directory.path)
    if config is not None:
        config.checkpoint.output_dir = None
        config.to_yaml(aside.config_path)
    for path in (directory.metrics_path, directory.summary_path, directory.plot_path("learning_curve")):
        if path.is_file():
            shutil.copy2(path, aside.path / path.name)
    if directory.tensorboard.is_dir():
        shutil.copytree(directory.tensorboard, aside.tensorboard)
    if directory.trajectories_path.is_file():
        store = TrajectoryStore(directory.trajectories_path)
        try:
            store.copy_to(aside.trajectories_path)
        finally:
            store.close()
