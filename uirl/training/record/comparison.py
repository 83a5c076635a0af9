"""Runs side by side: which settings differ, what each came to, and how sure that is over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.config.keys import leaves
from uirl.errors import StorageError
from uirl.metrics.success_rate import student_t
from uirl.metrics.trackers import read_metrics
from uirl.runtime.terminal import visible
from uirl.storage import RunDirectory
from uirl.training.record.progress import percent
from uirl.training.record.record import save_plot

APART = ("logging.", "checkpoint.", "training.seed")
"""What differs between the runs of one setting."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended, as its directory tells it."""

    path: Path
    settings: Mapping[str, Any]
    """Dotted key -> value, but for those of `APART`."""
    summary: Mapping[str, Any]
    curve: Sequence[tuple[float, float]]
    """(episodes, success or reward) of its evaluations."""
    ends: Sequence[tuple[float, float]]
    """The same before and after it, on instances of their own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Run]

    @property
    def is_success(self) -> bool:
        """Whether the figures are success rates; else they are rewards."""
        return any(run.summary.get("success_after") is not None for run in self.runs)

    @property
    def figures(self) -> list[float]:
        key = "success_after" if self.is_success else "reward_after"
        return [float(run.summary[key]) for run in self.runs if run.summary.get(key) is not None]

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, of the mean over seeds by Student's t; None: there is none. That of success is not narrower than those
        of the evaluations, whose instances the seeds may share; of one run it is that of its evaluation."""
        figures = self.figures
        own = [bound for run in self.runs if (bound := run.summary.get("success_after_interval")) is not None]
        bounds = []
        if len(figures) > 1 and (own or len(set(figures)) > 1):  # alike, they say nothing of others
            half = student_t(0.95, len(figures) - 1) * statistics.stdev(figures) / math.sqrt(len(figures))
            bounds.append((statistics.fmean(figures) - half, statistics.fmean(figures) + half))
        if own:
            bounds.append((statistics.fmean(low for low, _ in own), statistics.fmean(high for _, high in own)))
        if not bounds:
            return None
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return (max(low, 0.0), min(high, 1.0)) if self.is_success else (low, high)


def read_run(path: Path) -> Run:
    """Return the run in a directory. Raises StorageError where it is none, or has not come to its end."""
    directory = RunDirectory(path)
    if not directory.summary_path.is_file():
        raise StorageError(f"{path} has no summary.json: expected a run directory whose run has come to its end")
    summary = directory.read_json("summary.json")
    config = ConfigStore.from_yaml(path / "config.yaml").to_dict()
    settings = {key: value for key, value in leaves(config) if not key.startswith(APART)}
    said = "success" if summary.get("success_after") is not None else "reward"
    curve = [(row.get("episodes_total"), row.get(f"eval/{said}")) for row in read_metrics(path / "metrics.jsonl")]
    ends = [(0, summary.get(f"{said}_before")), (summary.get("episodes"), summary.get(f"{said}_after"))]
    return Run(path, settings, summary, _known(curve), _known(ends))


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Return the runs by setting, in the order in which these first come, each named by what sets it apart."""
    keys = {key for run in runs for key in run.settings}
    differ = sorted(key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(repr(run.settings.get(key)) for key in differ), []).append(run)
    named = [
        ("  ".join(f"{key}={value}" for key, value in zip(differ, values, strict=True)), of)
        for values, of in groups.items()
    ]
    return [Setting(visible(label) or runs[0].path.name, group) for label, group in named]


def table_of(settings: Sequence[Setting]) -> str:
    """Return a line or two for each setting, the best first."""
    lines = []
    for setting in sorted(settings, key=lambda one: -statistics.fmean(one.figures or [-math.inf])):
        lines.append(setting.label)
        figures, interval, count = setting.figures, setting.interval, len(setting.runs)
        if setting.is_success:
            told = f"success {percent(statistics.fmean(figures), interval)}"
        else:
            told = f"reward {statistics.fmean(figures):.4g}" if figures else "no figure"
            told += f" (95 %: {interval[0]:.4g} to {interval[1]:.4g})" if interval is not None else ""
        if count > 1:
            seeds = {run.summary.get("seed") for run in setting.runs}
            told += f", mean of {count} runs" + f" of {len(seeds)} seeds" * (len(seeds) < count)
            told += f", lowest {percent(min(figures))}" if setting.is_success else ""
        if missing := count - len(figures):
            told += f", {missing} without a figure"
        excluded = sum(_excluded(run) for run in setting.runs)
        told += f", {excluded} episodes excluded" * bool(excluded)
        episodes, seconds = (
            statistics.fmean(float(run.summary.get(key) or 0) for run in setting.runs)
            for key in ("episodes", "train_seconds")
        )
        lines.append(f"    {told}")
        lines.append(f"    {episodes:.0f} episodes in {seconds:.0f} s{' each' * (count > 1)}")
    return "\n".join(lines)


def draw_comparison(path: Path, settings: Sequence[Setting]) -> bool:
    """Draw the evaluations of every run over its episodes, a colour for each setting. False: there is none to draw."""
    if not any(run.curve or run.ends for setting in settings for run in setting.runs):
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for number, setting in enumerate(settings):
        for index, run in enumerate(setting.runs):
            label = setting.label[:80].replace("$", r"\$") if index == 0 else None
            colour = f"C{number % 10}"
            axes.plot([at for at, _ in run.curve], [value for _, value in run.curve], color=colour, label=label)
            axes.scatter(
                [at for at, _ in run.ends],
                [value for _, value in run.ends],
                color=colour,
                marker="*",
                s=60,
                clip_on=False,
            )
    label = "success" if all(setting.is_success for setting in settings) else "reward"
    axes.set_ylabel(f"{label} in evaluations (stars: before, after)")
    figure.legend(fontsize=8, frameon=False, loc="outside lower center")
    save_plot(path, figure, axes, success=label == "success")
    return True


def _excluded(run: Run) -> int:
    after = (run.summary.get("excluded") or {}).get("after") or {}
    return sum((after.get("excluded") or {}).values())


def _known(points: Iterable[tuple[Any, Any]]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in points if at is not None and value is not None]
