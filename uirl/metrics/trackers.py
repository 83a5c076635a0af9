"""Rows of metrics in a file, and where they go beside it: TensorBoard, Weights & Biases, Trackio, MLflow."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from uirl.errors import StorageError
from uirl.metrics.reduction import plain_row
from uirl.runtime.files import storage_errors, write_atomically
from uirl.runtime.limits import clip

_LOG = logging.getLogger(__name__)


class MetricsLogger:
    """Write one JSON object per line: `step`, `time` (seconds since 1970) and the metrics; and pass it to trackers.

    Rows of a `phase` before the first update (the warm start) have step 0 and count their own steps: every name in
    them begins with the phase, `warm_start/step` is the axis. A line is written in one call and flushed, so a kill
    loses no finished line. Numbers that are not finite become null and are counted in `metrics/nonfinite`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume_after: int | None = None,
        phase_after: Mapping[str, int] | None = None,
        trackers: Iterable[Tracker] = (),
    ):
        """Open `path`, which must not hold rows yet unless `resume_after` says which to keep.

        Args:
            path: The file; its folder is made.
            resume_after: Continue: rows of later steps are dropped (in one atomic replacement) before the first new
                row, so that no step stands twice. None: a new file.
            phase_after: Phase -> its own step, after which its rows are dropped. None: they stay.
            trackers: Get every row as well, and are closed with this logger. A row that one cannot take is a warning.
        """
        self.path = Path(path)
        self._trackers = tuple(trackers)
        with storage_errors(f"cannot open {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if resume_after is not None:
                _keep_until(self.path, resume_after, phase_after or {})
            elif self.path.exists() and self.path.stat().st_size:
                raise StorageError(
                    f"{self.path} already holds metrics of another run; resume that run or choose another run name"
                )
            self._handle: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def log(self, step: int, metrics: Mapping[str, Any], phase: str | None = None) -> dict[str, float | None]:
        """Write a row and return it without `step` and `time`. `phase`: `step` is one of its own, before the first
        update. Raises `StorageError` where it cannot be written; the rows before then stay whole."""
        if self._handle is None:
            raise StorageError(f"{self.path} is closed; a row for step {step} came after close()")
        row = plain_row(metrics)
        if phase is None:
            written = {"step": int(step), "time": time.time(), **row}
        else:
            row = {f"{phase}/{name}": value for name, value in row.items()}
            written = {"step": 0, "time": time.time(), f"{phase}/step": int(step), **row}
        _append(self._handle, (json.dumps(written, allow_nan=False) + "\n").encode(), self.path)
        for tracker in self._trackers:
            with self._whatever_becomes_of(tracker):
                tracker.log(step, row, phase)
        return row

    def close(self) -> None:
        """Close the file and the trackers. A second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            for tracker in self._trackers:
                with self._whatever_becomes_of(tracker):
                    tracker.close()

    @contextlib.contextmanager
    def _whatever_becomes_of(self, tracker: Tracker) -> Iterator[None]:
        """Warn where a tracker fails: the server of somebody else is no reason to lose a run. A full disk is."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            said = clip(f"{type(error).__name__}: {error}", 300)
            _LOG.warning("%s did not take what %s holds: %s", type(tracker).__name__, self.path, said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """Read the rows of the updates in a metrics file, oldest first; with `phase` ('warm_start') those of that phase.
    An unfinished last line (the writer is at work or was killed) is left out.

    Raises `StorageError` where the file is missing, or damaged before its last line.
    """
    phases = [(next((p for p in PHASES if f"{p}/step" in row), None), row) for row in _read_rows(path)]
    return [row for row_phase, row in phases if row_phase == phase]


def _read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the rows of every phase."""
    with storage_errors(f"cannot read {path}"):
        data = Path(path).read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path}, line {number} is no row of metrics: {line[:80]!r} ({error})") from error
    return rows


def _keep_until(path: Path, step: int, phase_after: Mapping[str, int]) -> None:
    if not path.exists():
        return
    rows = _read_rows(path)
    kept = [row for row in rows if row["step"] <= step]
    for phase, last in phase_after.items():
        kept = [row for row in kept if row.get(f"{phase}/step", last) <= last]
    whole = path.read_bytes().endswith(b"\n") or not path.stat().st_size
    if len(kept) < len(rows) or not whole:
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def _append(handle: int, line: bytes, path: Path) -> None:
    before = os.fstat(handle).st_size
    with storage_errors(f"cannot append to {path}"):
        try:
            written = os.write(handle, line)
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, before)
            raise


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
            raise ImportError("logging.trackers names tensorboard: pip install tensorboard") from error
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
    """Send rows to Weights & Biases."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], *, resume: bool = False) -> None:
        """Start the run `run_name` of `project`; with `resume`, continue it. Raises ImportError without `wandb`."""
        self._run = tracker_package("wandb").init(
            project=project, name=run_name, id=run_name, config=dict(config), resume="allow" if resume else None
        )
        # W&B's own step never goes back, so that neither a second axis nor a resumed run could be drawn over it
        for prefix in ("", *(f"{phase}/" for phase in PHASES)):
            self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}step")

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        axis = "step" if phase is None else f"{phase}/step"
        self._run.log({axis: step} | {name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """Send rows to Trackio: to this machine, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` says. What a resumed
    run repeats stands twice."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], *, resume: bool = False) -> None:
        """Start the run `run_name` of `project`; with `resume`, continue it. Raises ImportError without `trackio`."""
        trackio = tracker_package("trackio")
        self._run = trackio.init(
            project=project, name=run_name, config=dict(config), resume="allow" if resume else "never", embed=False
        )

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        self._run.log({name: value for name, value in row.items() if value is not None}, step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """Send rows to MLflow, where `MLFLOW_TRACKING_URI` says. What a resumed run repeats stands twice."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], *, resume: bool = False) -> None:
        """Start the run `run_name` of the experiment `project`; with `resume`, continue it. Raises ImportError without
        `mlflow`."""
        self._mlflow = mlflow = tracker_package("mlflow")
        experiment = mlflow.set_experiment(project).experiment_id
        self._client = client = mlflow.MlflowClient()
        named = f"attributes.run_name = '{run_name}'"
        found = client.search_runs([experiment], named, max_results=1) if resume else []
        self._id = (found[0] if found else client.create_run(experiment, run_name=run_name)).info.run_id
        client.update_run(self._id, status="RUNNING")
        client.log_dict(self._id, dict(config), "config.json")

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        values = {re.sub(r"[^\w./ -]", "_", name): value for name, value in row.items() if value is not None}
        self._mlflow.log_metrics(values, step=step, run_id=self._id)

    def close(self) -> None:
        self._client.set_terminated(self._id)


TRACKERS = {"wandb": WandbTracker, "trackio": TrackioTracker, "mlflow": MlflowTracker}
"""What `logging.trackers` may name beside TensorBoard -> who sends rows there."""


def tracker_package(name: str) -> Any:
    """Import the module `name`. Raises an ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"logging.trackers names {name}, which needs a package: pip install 'uirl[{name}]' ({error})"
        ) from error
