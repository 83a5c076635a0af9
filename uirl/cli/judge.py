"""`uirl judge` and `uirl judge-report`: judge what a run stored, and say how good the judge is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from uirl.cli.options import count


def add_command(commands: Any) -> None:
    """Add both commands to the parser of `uirl`."""
    judge = commands.add_parser("judge", help="judge a run's stored episodes; nothing is played")
    judge.add_argument("path", metavar="RUN", help="run directory")
    judge.add_argument("--split", choices=("train", "eval", "test"), help="of these episodes alone")
    judge.add_argument("--limit", type=count, metavar="N", help="the first N episodes")
    judge.add_argument(
        "--where-it-matters",
        action="store_true",
        help="ask the judge only where its answer can change an advantage within a group",
    )
    judge.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="changes to the run's config: verification.judge=..."
    )
    judge.set_defaults(run=_judge)
    report = commands.add_parser("judge-report", help="how good the judge of a run is, with intervals")
    report.add_argument("path", metavar="RUN", help="run directory")
    report.add_argument(
        "--labels",
        metavar="FILE",
        help="JSON (id -> true) or CSV (id,label) of what people say, before what they said in uirl view",
    )
    report.add_argument("--judgements", metavar="FILE", help="what `uirl judge` wrote; default: the newest")
    report.add_argument("--json", action="store_true", help="print the whole report as JSON")
    report.set_defaults(run=_report)


def _judge(options: argparse.Namespace) -> int:
    from uirl.training.evaluation.judging import judge_run
    from uirl.training.record.progress import report_table

    path, found, counts = judge_run(
        options.path,
        options.overrides,
        split=options.split,
        limit=options.limit,
        where_it_matters=options.where_it_matters,
    )
    scored = [one for one in found if one.score is not None]
    rows: dict[str, object] = {
        "episodes": len(found),
        "passed": sum((one.score or 0) > 0.5 for one in scored),
        "no answer": len(found) - len(scored),
        **dict(sorted(counts.items())),
        "judgements": path,
    }
    report_table(options.path, rows)
    return 0


def _report(options: argparse.Namespace) -> int:
    from uirl.training.evaluation.judging import read_labels, report_on_judge
    from uirl.training.record.progress import report_table

    labels = None if options.labels is None else read_labels(options.labels)
    judgements = None if options.judgements is None else Path(options.judgements)
    report = report_on_judge(options.path, labels, judgements=judgements)
    if options.json:
        print(json.dumps(report, indent=2))
        return 0
    rows: dict[str, object] = {
        "episodes of which the truth is known": f"{report['episodes']} of {report['instances']} instances",
        **_lines(report),
    }
    for name in ("accepts_without_truth", "rejects_without_truth", "no_answer", "from_labels"):
        rows[name.replace("_", " ")] = report[name]
    rows |= {f"no answer: {cause}": number for cause, number in sorted(report["causes"].items())}
    rows["believed alone"] = report["believed_alone"]
    rows["source"] = report["source"]
    report_table(options.path, rows)
    report_table("over the run", {f"part {i + 1}": _line(part) for i, part in enumerate(report["drift"])})
    report_table("per task", {name: _line(part) for name, part in report["tasks"].items()})
    if "warning" in report:
        print(f"warning: {report['warning']}")
    return 0


def _lines(report: dict[str, Any]) -> dict[str, object]:
    return {
        "precision of accepts": _rate(report["precision"], report["precision_interval"]),
        "false-accept rate": _rate(report["false_accept_rate"], report["false_accept_interval"]),
        "recall": _rate(report["recall"], report["recall_interval"]),
        "kappa": _number(report["kappa"]),
        "agreement": _rate(report["agreement"], None),
    }


def _line(part: dict[str, Any]) -> str:
    precision = _rate(part["precision"], part["precision_interval"])
    wrong = _rate(part["false_accept_rate"], part["false_accept_interval"])
    counted = f"{part['episodes']} episodes of {part['instances']} instances"
    return f"precision {precision}, false accepts {wrong}, kappa {_number(part['kappa'])} ({counted})"


def _rate(value: float | None, interval: Any) -> str:
    if value is None:
        return "not known"
    return f"{100 * value:.1f} %" + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"
