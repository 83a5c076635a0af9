"""How good a judge was on a stored run: what counts as its word, what as the truth, and how it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from uirl import ConfigStore, RunDirectory, TrajectoryStore
from uirl.cli.main import main
from uirl.errors import ConfigError, JudgeFailure
from uirl.storage.labels import Label, LabelStore
from uirl.training.evaluation.judging import judge_run, read_labels, report_on_judge
from uirl.types import Failure, Observation, Task, Trajectory, Turn
from uirl.verification.evidence import Evidence
from uirl.verification.hybrid import JUDGE, NO_ANSWER, RULE, HybridVerifier

SAID = {  # episode -> rule, judge: the first four are of two tasks, two tries of an instance each
    "a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 1.0), "d": (0.0, 0.0),
    "e": (None, 1.0), "f": (None, 0.0), "g": (1.0, None), "h": (None, None),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose judge said something of most episodes; of 'g', which a rule knows, and 'h' it gave no answer."""
    folder = tmp_path / "run"
    RunDirectory.create(folder, ConfigStore().to_yaml()).close()
    with TrajectoryStore(folder / "trajectories.sqlite") as store:
        for name, (rule, judge) in SAID.items():
            task = "x" if name in "ab" else "y"
            one = Trajectory(name, Task(task), [Turn(Observation("o"))], "terminated", group_id=f"group {task}")
            one.metrics = {key: value for key, value in ((RULE, rule), (JUDGE, judge)) if value is not None}
            one.metrics["success"] = rule or 0.0
            one.metrics |= {NO_ANSWER: 1.0} if name == "g" else {}
            one.failure = Failure("judge", "judge server: down") if name == "h" else None
            store.add(one, step=1, split="train" if name < "e" else "test")
    return folder


def counts(report: dict[str, Any]) -> list[int]:
    return [report[f"{name}s"] for name in ("true_accept", "false_accept", "false_reject", "true_reject")]


def test_the_truth_is_what_people_say_and_else_the_rule(run: Path) -> None:
    report = report_on_judge(run)
    parts = {"drift", "tasks"}
    half = {"precision": 0.5, "false_accept_rate": 0.5, "recall": 0.5, "agreement": 0.5, "f1": 0.5, "kappa": 0.0}
    intervals = dict.fromkeys(("precision_interval", "false_accept_interval", "recall_interval"))
    assert {name: value for name, value in report.items() if name not in {*parts, *intervals}} == {
        **{"source": str(run / "trajectories.sqlite"), "episodes": 4, "instances": 2, "believed_alone": True, **half},
        **dict.fromkeys(("true_accepts", "false_accepts", "false_rejects", "true_rejects"), 1),
        **{"accepts_without_truth": 1, "rejects_without_truth": 1, "no_answer": 2, "from_labels": 0},
        "causes": {"server": 1, "where rules knew": 1},
    }
    assert {name: counts(part) for name, part in report["tasks"].items()} == {"x": [1, 0, 1, 0], "y": [0, 1, 0, 1]}
    assert counts(report_on_judge(run, {"e": True, "f": True})) == [2, 1, 2, 1]
    people = LabelStore(run / "labels.sqlite")
    people.set_many({"d": Label(True), "e": Label(True), "f": Label(None, note="who knows")})
    people.close()
    report = report_on_judge(run, {"e": False})
    assert (counts(report), report["from_labels"]) == ([1, 2, 2, 0], 2), "labels that are handed over come first"
    assert "warning" in report_on_judge(run, dict.fromkeys("cde", True))
    assert "warning" not in report


def test_the_report_as_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge-report", str(run)]) == 0
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    report = report_on_judge(run)
    half = [
        f"50.0 % [{100 * low:.1f}, {100 * high:.1f}]"
        for low, high in (report[f"{name}_interval"] for name in ("precision", "false_accept", "recall"))
    ]
    assert told[:14] == [
        str(run),
        "episodes of which the truth is known 4 of 2 instances",
        *(f"precision of accepts {half[0]}", f"false-accept rate {half[1]}", f"recall {half[2]}"),
        *("kappa 0.00", "agreement 50.0 %", "accepts without truth 1", "rejects without truth 1", "no answer 2"),
        *("from labels 0", "no answer: server 1", "no answer: where rules knew 1", "believed alone True"),
    ]
    assert told[14] == f"source {run / 'trajectories.sqlite'}"
    assert told[-3] == "per task"
    assert told[-2].endswith("false accepts not known, kappa 0.00 (2 episodes of 1 instances)")
    assert told[-1].startswith("y precision 0.0 % [")


def test_a_stored_run_is_judged_anew_by_its_rules(run: Path) -> None:
    path, found, _ = judge_run(run, split="train")
    assert (path, {one.id for one in found}) == (run / "judgements" / "rules.jsonl", set("abcd"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [one.to_dict() for one in found]
    by_id = {one["id"]: one for one in lines}
    assert by_id["a"] == {
        **{"id": "a", "task": "x", "group": "group x", "rule": True, "judge": True, "score": 1.0, "by": "rules"},
        **{"reason": by_id["a"]["reason"], "failure": "", "process": None, "screens": {}},
    }
    assert {name: (one["rule"], one["score"]) for name, one in by_id.items()} == {
        **{"a": (True, 1.0), "b": (True, 1.0)},
        **{"c": (False, 0.0), "d": (False, 0.0)},
    }
    assert len(judge_run(run, limit=3)[1]) == 3
    assert judge_run(run)[0].name == "rules-3.jsonl"


@pytest.mark.parametrize("grouped", [False, True])
def test_members_of_a_group_are_judged_together_where_it_matters(
    run: Path, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        for name in "ij":  # of no group
            store.add(Trajectory(name, Task("z"), [Turn(Observation("o"))], "terminated"), step=1, split="train")
    asked: list[str] = []

    async def group(verifier: HybridVerifier, items: list[Evidence]) -> list[JudgeFailure]:
        asked.append("".join(sorted(item.trajectory.id for item in items)))
        return [JudgeFailure("judge server: down") for _ in items]

    async def alone(verifier: HybridVerifier, item: Evidence) -> None:
        asked.append(item.trajectory.id)
        raise JudgeFailure("judge server: down")

    monkeypatch.setattr(HybridVerifier, "verify_group", group)
    monkeypatch.setattr(HybridVerifier, "verify_evidence", alone)
    _, found, _ = judge_run(run, split="train", where_it_matters=grouped)
    assert sorted(asked) == (["ab", "cd", "i", "j"] if grouped else list("abcdij"))
    assert {one.failure for one in found} == {"server"}


def test_the_newest_judgements_count_but_for_a_line_that_a_kill_cut(run: Path) -> None:
    folder = run / "judgements"
    folder.mkdir()
    whole = {"id": "a", "task": "x", "rule": False, "judge": True, "score": 1.0}
    for moment, name in enumerate(("b-old", "a-new")):
        (folder / f"{name}.jsonl").write_text(json.dumps(whole) + '\n{"id": "b", "ta')
        os.utime(folder / f"{name}.jsonl", (moment, moment))
    report = report_on_judge(run)
    assert (report["source"], counts(report)) == (str(folder / "a-new.jsonl"), [0, 1, 0, 0])
    assert report_on_judge(run, judgements=folder / "b-old.jsonl")["source"] == str(folder / "b-old.jsonl")
    (folder / "a-new.jsonl").write_text(f'{json.dumps(whole)}\n{{"id": "b"}}\n{json.dumps(whole)}\n')
    with pytest.raises(ConfigError, match=r"a-new\.jsonl, line 2, is no judgement"):
        report_on_judge(run)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (' {"a": true, "b": 0}', {"a": True, "b": False}),
        ("id,label\na,1\nb, No \nc,TRUE\n", {"a": True, "b": False, "c": True}),
        ("id,passed\na,yes\nb,\nc,0\n", {"a": True, "c": False}),
        ("id,label\na,\n", "the label of 'a' is ''; expected true or false"),
        ("id,label\na,maybe\n", "the label of 'a' is 'maybe'; expected true or false"),
        ("name,label\na,1\n", "cannot read labels from .*KeyError: 'id'; expected a JSON object"),
        ("{", "cannot read labels from .*JSONDecodeError"),
    ],
)
def test_labels_are_read_from_json_and_sheets(text: str, labels: dict[str, bool] | str, tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_text(text)
    if isinstance(labels, dict):
        assert read_labels(file) == labels
        return
    with pytest.raises(ConfigError, match=labels):
        read_labels(file)
