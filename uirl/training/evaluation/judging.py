"""Judge what a run stored, without playing anything again; and report how good the judge is."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from uirl.config import ConfigStore
from uirl.config.stored import override_stored
from uirl.errors import ConfigError, JudgeFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.files import storage_errors
from uirl.storage import RunDirectory, TrajectoryStore, clean_run_name, free_run_name
from uirl.storage.labels import FILE, PASSED_WORDS, LabelStore
from uirl.storage.records import made
from uirl.verification.client import cause_of
from uirl.verification.evidence import Evidence
from uirl.verification.hybrid import JUDGE, NO_ANSWER, RULE, HybridVerifier, Verification
from uirl.verification.quality import JudgeQuality
from uirl.verification.setup import verifier_of

FOLDER = "judgements"
"""In a run directory: a file of JSON lines for each time that its episodes were judged."""
AT_ONCE = 4
"""Episodes, or groups of them, in memory: a long one of large screenshots takes a hundred megabytes."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of one stored episode."""

    id: str
    task: str
    rule: bool | None
    judge: bool | None
    score: float | None
    """None: nobody could say."""
    by: str = ""
    reason: str = ""
    failure: str = ""
    """Cause for which there is no answer; empty: there is one."""
    process: float | None = None
    screens: Mapping[str, int] = field(default_factory=dict)
    group: str = ""
    """What it shares with the other episodes of its instance."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, from which `Judged(**...)` makes an equal one."""
        return {name: getattr(self, name) for name in self.__slots__}


def judge_run(
    run: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    split: str | None = None,
    limit: int | None = None,
    where_it_matters: bool = False,
) -> tuple[Path, list[Judged], dict[str, int]]:
    """Judge the stored episodes of a run; return the file with what was found, the same, and what was counted.

    Args:
        run: The run directory.
        overrides: Changes to the run's config, `verification.judge=...` among them.
        split: 'train', 'eval', 'test'; None: all.
        limit: At most so many, the first ones; None: all.
        where_it_matters: Of each group the judge is asked only where its answer can change an advantage.

    Raises:
        ConfigError, StorageError: there is no such run, or no verifier in its config.
    """
    directory = RunDirectory.open(run)
    changes = [*overrides, "verification.enabled=true"]
    config = override_stored(
        ConfigStore.from_yaml(directory.config_path), changes, directory.path, section=("verification.",)
    )
    home = directory.path.resolve()
    config.logging.runs_dir = str(home.parent)
    verifier = verifier_of(config.verification, config.logging, clean_run_name(f"judge-of-{home.name}"))
    assert verifier is not None
    folder = directory.path / FOLDER
    name = free_run_name(folder, config.verification.judge or "rules", ".jsonl")
    loop = EventLoopThread()
    with TrajectoryStore(directory.trajectories_path, read_only=True) as store:
        chosen = [one for one in store.list(split=split, limit=limit) if one.failure in (None, JudgeFailure.kind)]
        groups: dict[str, list[str]] = {}
        for one in chosen:
            together = where_it_matters and one.group_id
            groups.setdefault(one.group_id if together else one.id, []).append(one.id)
        with storage_errors(f"cannot write {folder}"):
            folder.mkdir(exist_ok=True)
        path = folder / f"{name}.jsonl"
        with storage_errors(f"cannot write {path}"), path.open("x", encoding="utf-8") as file:
            try:
                found = loop.run(_judge_all(verifier, store, list(groups.values()), where_it_matters, file))
            finally:
                loop.close()
    counts = dict(verifier.counts)
    if verifier.judge is not None:
        counts |= {f"judge {name}": count for name, count in verifier.judge.client.counts.items()}
    return path, found, counts


async def _judge_all(
    verifier: HybridVerifier, store: TrajectoryStore, groups: list[list[str]], grouped: bool, file: TextIO
) -> list[Judged]:
    slots, found = asyncio.Semaphore(AT_ONCE), []

    async def one(ids: list[str]) -> None:
        async with slots:
            evidence = [Evidence(store.get(id)) for id in ids]
            results: list[Verification | JudgeFailure]
            if grouped:
                results = await verifier.verify_group(evidence)
            else:
                try:
                    results = [await verifier.verify_evidence(evidence[0])]
                except JudgeFailure as failure:
                    results = [failure]
            for item, result in zip(evidence, results, strict=True):
                judged = _judged(item, result)
                found.append(judged)
                file.write(json.dumps(judged.to_dict()) + "\n")  # a kill loses at most what is under way
                file.flush()

    try:
        await asyncio.gather(*(one(ids) for ids in groups))
    finally:
        await verifier.close()
    return found


def _judged(evidence: Evidence, result: Verification | JudgeFailure) -> Judged:
    record = evidence.trajectory
    rule, judge = (
        None if said is None else said == 1.0 for said in (record.metrics.get(RULE), record.metrics.get(JUDGE))
    )
    if isinstance(result, JudgeFailure):
        cause = cause_of(str(result))
        group = record.group_id
        return Judged(record.id, record.task.id, rule, judge, None, reason=str(result), failure=cause, group=group)
    said = result.judge
    screens = {} if said is None else {name: getattr(said.screens, name) for name in said.screens.__slots__}
    return Judged(
        record.id,
        record.task.id,
        rule,
        judge,
        result.score,
        result.by,
        result.reason,
        result.failure or ("of this one alone" if NO_ANSWER in record.metrics else ""),
        process=None if said is None or not said.votes.asked else said.process,
        screens=screens,
        group=record.group_id,
    )


# -- the report ----------------------------------------------------------------------------------------------------


def read_labels(path: str | os.PathLike[str]) -> dict[str, bool]:
    """Return episode id -> whether a person says that it solved its task, of a JSON object or a CSV file with the
    columns `id` and `label` (1, 0, true, false, yes, no), or of a sheet that `uirl view` wrote, whose column `passed`
    may be empty. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            pairs = list(json.loads(text).items())
        else:
            rows = list(csv.DictReader(text.splitlines()))
            name = "passed" if rows and "label" not in rows[0] else "label"
            pairs = [(row["id"], row[name]) for row in rows if name == "label" or row[name]]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"cannot read labels from {path}: {type(error).__name__}: {error}; expected a JSON object, id -> true or "
            "false, or CSV with the columns id and label"
        ) from error
    return {str(id): _label(id, value, path) for id, value in pairs}


def _label(id: Any, value: Any, path: Any) -> bool:
    passed = PASSED_WORDS.get(str(value).strip().lower())
    if passed is None:
        raise ConfigError(f"{path}: the label of {id!r} is {value!r}; expected true or false")
    return passed


def report_on_judge(
    run: str | os.PathLike[str], labels: Mapping[str, bool] | None = None, *, judgements: Path | None = None
) -> dict[str, Any]:
    """Return how good the judge of a run is: against human labels where there are some, else against decisive rules.

    People's labels are those that they gave in `uirl view` (`labels.sqlite` in the run) and, before them, `labels`.
    `judgements`: a file that `judge_run` wrote; None: the newest one of the run or, where there is none, what the judge
    said while the run was going. Raises ConfigError and StorageError where there is nothing of either.
    """
    directory = RunDirectory.open(run)
    source = judgements or _newest(directory.path / FOLDER)
    said = _of_file(source) if source is not None else _of_store(directory)
    config = ConfigStore.from_yaml(directory.config_path)
    labels = labels_of(directory) | dict(labels or {})
    quality = JudgeQuality(limit=config.verification.precision_limit)
    counts = {"accepts_without_truth": 0, "rejects_without_truth": 0, "no_answer": 0, "from_labels": 0}
    causes: dict[str, int] = {}
    for one in said:
        if one.failure:
            causes[one.failure] = causes.get(one.failure, 0) + 1
        if one.judge is None:
            counts["no_answer"] += bool(one.failure)
            continue
        label = labels.get(one.id)
        truth = one.rule if label is None else label
        counts["from_labels"] += label is not None
        if truth is None:
            counts["accepts_without_truth" if one.judge else "rejects_without_truth"] += 1
        else:
            quality.add(one.task, truth, one.judge, one.group or one.id)
    report = {"source": str(source or directory.trajectories_path)} | quality.report() | counts | {"causes": causes}
    if quality.pairs and not quality.overall.unsolved:
        report["warning"] = (
            "nobody knows of an unsolved episode here (rules whose no is 'unknown' only ever say 'passed'), so "
            "precision says nothing: declare a rule decisive, or give labels"
        )
    return report


def labels_of(directory: RunDirectory) -> dict[str, bool]:
    """Return episode id -> whether a person said in `uirl view` that it solved its task."""
    store = LabelStore(directory.path / FILE)
    try:
        return {id: label.passed for id, label in store.all().items() if label.passed is not None}
    finally:
        store.close()


def _newest(folder: Path) -> Path | None:
    files = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []
    return files[-1] if files else None


def _of_file(path: Path) -> list[Judged]:
    found = []
    with storage_errors(f"cannot read {path}"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        try:
            found.append(made(Judged, json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            if number < len(lines) - 1:  # the last one may be cut by a kill
                raise ConfigError(f"{path}, line {number + 1}, is no judgement: {error}") from error
    return found


def _of_store(directory: RunDirectory) -> Iterator[Judged]:
    with TrajectoryStore(directory.trajectories_path, read_only=True) as store:
        for summary in store.list():
            record = store.get(summary.id)
            rule, judge = record.metrics.get(RULE), record.metrics.get(JUDGE)
            why = "where rules knew" if NO_ANSWER in record.metrics else ""
            if record.failure is not None and record.failure.kind == JudgeFailure.kind:
                why = cause_of(record.failure.message)
            yield Judged(
                record.id,
                record.task.id,
                None if rule is None else rule == 1.0,
                None if judge is None else judge == 1.0,
                None if record.verdict is None else record.verdict.score,
                failure=why,
                group=record.group_id,
            )
