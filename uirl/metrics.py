"""Named numbers: how many become one, how they are written down, and how sure a success rate is."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from uirl.errors import StorageError
from uirl.runtime.files import storage_errors, write_atomically

Reduction = Literal["mean", "sum", "max", "min", "last", "rate"]

REDUCTION_OF_PREFIX: dict[str, Reduction] = {"time/": "sum", "count/": "sum"}
REDUCTION_OF_SUFFIX: dict[str, Reduction] = {
    "max": "max",
    "min": "min",
    "sum": "sum",
    "total": "sum",
    "count": "sum",
    "last": "last",
    "learning_rate": "last",
    "version": "last",
    "per_second": "rate",
}
"""How a metric is reduced, by the beginning of its name or by its last word (after '/' or '_'); else 'mean'."""

PHASES = ("warm_start",)
"""What comes before the first update and counts steps of its own."""

NONFINITE = "metrics/nonfinite"
"""How many values of a row were NaN or infinite. The row has it only where there were some."""


def reduction_of(name: str) -> Reduction:
    """How values of this name become one number. A suffix beats a prefix, 'mean' is the rest."""
    for suffix, reduction in REDUCTION_OF_SUFFIX.items():
        if name == suffix or name.endswith(("/" + suffix, "_" + suffix)):
            return reduction
    for prefix, reduction in REDUCTION_OF_PREFIX.items():
        if name.startswith(prefix):
            return reduction
    return "mean"


class Metrics:
    """Collects named numbers of one step and reduces each name to one.

    - mean: sum(weight * value) / sum(weight)
    - rate: sum(value) / sum(weight), as tokens per second with weight = seconds
    - sum, max, min, last of the values; the weight is not read

    Sums are exactly rounded, so the order in which values arrive (episodes end in any order) changes no digit, except
    for 'last'. A value of None is no evidence: a name that has only such, or weights of zero, reduces to None, which is
    not 0. A NaN or an infinity makes its name None and is counted in `metrics/nonfinite`.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = {}
        self._reductions: dict[str, Reduction] = {}

    def add(self, name: str, value: Any, weight: float = 1.0, reduction: Reduction | None = None) -> None:
        """Takes one value (anything `float` accepts, or None).

        Raises TypeError for another value, ValueError for a negative weight and for a name whose reduction changes.
        """
        chosen = reduction or self._reductions.get(name) or reduction_of(name)
        if self._reductions.setdefault(name, chosen) != chosen:
            raise ValueError(f"metric {name!r} is already reduced by {self._reductions[name]!r}, got {chosen!r}")
        if not weight >= 0:
            raise ValueError(f"metric {name!r}: the weight must be 0 or more, got {weight}")
        kept = self._values.setdefault(name, [])
        if value is not None:
            kept.append((_number(name, value), float(weight)))

    def add_all(self, values: Mapping[str, Any], weight: float = 1.0, prefix: str = "") -> None:
        """Takes every entry of a mapping, its name behind `prefix`."""
        for name, value in values.items():
            self.add(prefix + name, value, weight)

    def merge(self, other: Metrics) -> None:
        """Takes everything that `other` has collected, as if it had been added here."""
        for name, pairs in other._values.items():
            self.add(name, None, reduction=other._reductions[name])
            self._values[name].extend(pairs)

    def reduce(self) -> dict[str, float | None]:
        """One number per name, in the order of first appearance. The collected values stay; see `clear`."""
        row: dict[str, float | None] = {}
        strange = 0
        for name, pairs in self._values.items():
            bad = sum(not math.isfinite(value) or not math.isfinite(weight) for value, weight in pairs)
            one = None if bad else _reduced(self._reductions[name], pairs)
            if one is not None and not math.isfinite(one):
                one, bad = None, 1
            row[name] = one
            strange += bad
        if strange:
            row[NONFINITE] = float(strange)
        return row

    def clear(self) -> None:
        """Forgets everything, for the next step."""
        self._values.clear()
        self._reductions.clear()

    def __len__(self) -> int:
        return len(self._values)


def _reduced(reduction: Reduction, pairs: list[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    if reduction == "sum":
        return _sum(values)
    if reduction == "max":
        return max(values)
    if reduction == "min":
        return min(values)
    if reduction == "last":
        return values[-1]
    weight = _sum(weight for _, weight in pairs)
    total = _sum(values) if reduction == "rate" else _sum(value * weight for value, weight in pairs)
    return total / weight if weight else None


def _sum(values: Iterable[float]) -> float:
    """Exactly rounded; NaN where it is larger than a float."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.nan


def _number(name: str, value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"metric {name!r} must be a number, got the text {value!r:.40}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} must be a number or None, got {type(value).__name__}: {error}") from error


class Tracker(Protocol):
    """Where rows go beside the file: TensorBoard, Weights & Biases."""

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        """Takes a row. `step` counts the updates, or the steps of the `phase` before them."""
        ...

    def close(self) -> None: ...


class MetricsLogger:
    """Writes one JSON object per line: `step`, `time` (seconds since 1970) and the metrics; and passes it to trackers.

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
        """Opens `path`, which must not hold rows yet unless `resume_after` says which to keep.

        Args:
            path: The file; its folder is made.
            resume_after: Continue: rows of later steps are dropped (in one atomic replacement) before the first new
                row, so that no step stands twice. None: a new file.
            phase_after: Phase -> its own step, after which its rows are dropped. None: they stay.
            trackers: Get every row as well, and are closed with this logger.
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
        """The row as written, without `step` and `time`. `phase`: `step` is one of its own, before the first update.
        Raises `StorageError` where it cannot be written; the rows before then stay whole."""
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
            tracker.log(step, row, phase)
        return row

    def close(self) -> None:
        """Closes the file and the trackers. Calling it twice is fine."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            for tracker in self._trackers:
                tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """The rows of the updates in a metrics file, oldest first; with `phase` ('warm_start') those of that phase. An
    unfinished last line (a writer at work or killed) is left out.

    Raises `StorageError` where the file is missing, or damaged before its last line.
    """
    counts = [(next((p for p in PHASES if f"{p}/step" in row), None), row) for row in _read_rows(path)]
    return [row for own, row in counts if own == phase]


def _read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of every phase."""
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
        write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))


def plain_row(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers as they are written: what is not finite is None, and counted in `metrics/nonfinite`."""
    row: dict[str, float | None] = {}
    strange = 0
    for name, value in metrics.items():
        if name in ("step", "time"):
            raise ValueError(f"a metric may not be called {name!r}: the row has that column already")
        number = None if value is None else _number(name, value)
        if number is not None and not math.isfinite(number):
            number, strange = None, strange + 1
        row[name] = number
    if strange:
        row[NONFINITE] = strange + (row.get(NONFINITE) or 0.0)
    return row


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


class TensorBoardTracker:
    """Writes rows as TensorBoard scalars to `folder`. Imports no torch. Raises ImportError without `tensorboard`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        resume_after: int | None = None,
        phase_after: Mapping[str, int] | None = None,
    ) -> None:
        """Opens a new event file; with `resume_after` and `phase_after` (as in `MetricsLogger`), TensorBoard drops what
        older files say about later steps."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError("logging.tensorboard=true needs a package: pip install tensorboard") from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._open, self._folder = EventFileWriter, Path(folder)
        self._writers = {"": EventFileWriter(os.fspath(folder))}
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        for phase, last in {"": resume_after, **(phase_after or {})}.items():
            if last is not None:
                event = self._event(wall_time=time.time(), step=last + 1, session_log=start)
                self._writer(phase).add_event(event)

    def log(self, step: int, row: Mapping[str, float | None], phase: str | None = None) -> None:
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in row.items() if x is not None]
        writer = self._writer(phase or "")
        writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, phase: str) -> Any:
        """A phase has a folder of its own, which TensorBoard shows as a run: dropping goes by step, whatever counts."""
        if phase not in self._writers:
            self._writers[phase] = self._open(os.fspath(self._folder / phase))
        return self._writers[phase]


class WandbTracker:
    """Sends rows to Weights & Biases. Raises ImportError without `wandb`."""

    def __init__(self, project: str, run_name: str, config: Mapping[str, Any], *, resume: bool = False) -> None:
        """Starts the run `run_name` of `project`, or with `resume` goes on with it."""
        self._run = self.package().init(
            project=project, name=run_name, id=run_name, config=dict(config), resume="allow" if resume else None
        )
        # W&B's own step never goes back, so that neither a second axis nor a resumed run could be drawn over it
        for prefix in ("", *(f"{phase}/" for phase in PHASES)):
            self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}step")

    @staticmethod
    def package() -> Any:
        """The module `wandb`. Raises an ImportError that says how to install it."""
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


def success_interval(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """(low, high) of the Wilson interval of a success rate; `z` = 1.96 is 95 % confidence.

    centre = (p + z^2 / 2n) / (1 + z^2 / n), half width = z / (1 + z^2 / n) * sqrt(p (1 - p) / n + z^2 / 4n^2) with
    p = successes / n (Wilson 1927). Never empty and never outside [0, 1], not even at 0 or n successes. Raises
    ValueError where n is 0: no episodes are no rate.
    """
    _check_counts(successes, n)
    p, spread = successes / n, z * z / n
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / n + spread / (4 * n))
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased chance that at least one of `k` tries solves a task, from `c` successes in `n` tries.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021). Raises ValueError where k is more than n.
    """
    _check_counts(c, n)
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= n tries, got n={n}; evaluate each task at least {k} times")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _check_counts(successes: int, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n with n of at least 1, got {successes} of {n}")
