"""Where rows of metrics go beside the file: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from uirl.runtime.files import storage_errors

PHASES = ("warm_start",)
"""Phases before the first update, which count steps of their own."""


class Tracker(Protocol):
    """A destination of rows beside the metrics file."""

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        """Record a row. `step` counts the updates, or the steps of the `phase` before them."""
        ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Write rows as TensorBoard scalars to `folder`. Imports no torch. Raises ImportError without `tensorboard`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        resume_after: int | None = None,
        phase_after: Mapping[str, int] | None = None,
    ) -> None:
        """Open a new event file; with `resume_after` and `phase_after` (as in `MetricsLogger`), TensorBoard drops what
        older files say about later steps."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError("logging.tensorboard=true needs a package: pip install tensorboard") from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._write_to, self._folder = EventFileWriter, Path(folder)
        self._writers: dict[str, Any] = {}
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        with self._writing():
            self._writer("")
            for phase, last in {"": resume_after, **(phase_after or {})}.items():
                if last is not None:
                    event = self._event(wall_time=time.time(), step=last + 1, session_log=start)
                    self._writer(phase).add_event(event)

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in row.items() if x is not None]
        with self._writing():
            writer = self._writer(phase or "")
            writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
            writer.flush()

    def close(self) -> None:
        with self._writing():
            for writer in self._writers.values():
                writer.close()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(f"cannot write to {self._folder}")

    def _writer(self, phase: str) -> Any:
        """Return the writer of a phase, which is a run of its own in TensorBoard: a resume drops rows by step."""
        if phase not in self._writers:
            self._writers[phase] = self._open(self._folder / phase if phase else self._folder)
        return self._writers[phase]

    def _open(self, folder: Path) -> Any:
        """Return a writer to a new file, which begins in a second of its own: TensorBoard reads files by their names,
        in which the second comes first, and then a number of which 10 stands before 9."""
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.02)
        return self._write_to(os.fspath(folder))


class WandbTracker:
    """Send rows to Weights & Biases. Raises ImportError without `wandb`."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], *, resume: bool = False) -> None:
        """Start the run `run_name` of `project`; with `resume`, continue it."""
        self._run = self.package().init(
            project=project, name=run_name, id=run_name, config=dict(config), resume="allow" if resume else None
        )
        # W&B's own step never goes back, so that neither a second axis nor a resumed run could be drawn over it
        for prefix in ("", *(f"{phase}/" for phase in PHASES)):
            self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}step")

    @staticmethod
    def package() -> Any:
        """Import the module `wandb`. Raises an ImportError that says how to install it."""
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                "logging.wandb=true needs a package: pip install 'uirl[wandb]', or set logging.wandb=false"
            ) from error
        return wandb

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        axis = "step" if phase is None else f"{phase}/step"
        self._run.log({axis: step} | {name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        self._run.finish()
