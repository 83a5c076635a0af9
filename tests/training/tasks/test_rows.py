"""Tasks from files and rows of other libraries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.training.test_loop import settings, train
from uirl import ConfigStore, TrajectoryStore
from uirl.errors import ConfigError
from uirl.storage.rows import read_rows
from uirl.training.tasks.sources import task_of
from uirl.types import Task

ROWS = [{"question": "2 + 2", "answer": "4"}, {"question": "3 + 3,\n4", "answer": "é"}]
COLUMNS = {"goal": "question"}


def json_file(path: Path) -> None:
    path.write_text(json.dumps(ROWS))


def json_lines(path: Path) -> None:
    path.write_text("\n\n".join(map(json.dumps, ROWS)) + "\n")


def csv_file(path: Path) -> None:
    path.write_text('question,answer\n2 + 2,4\n"3 + 3,\n4",é\n', encoding="utf-8-sig")


@pytest.mark.parametrize(("write", "ending"), [(json_file, "json"), (json_lines, "jsonl"), (csv_file, "CSV")])
def test_a_file_of_rows(write: Callable[[Path], None], ending: str, tmp_path: Path) -> None:
    write(tmp_path / f"rows.{ending}")
    rows = read_rows(str(tmp_path / f"rows.{ending}"))
    assert rows == ROWS
    assert task_of(rows[0], 0, "sums", COLUMNS) == Task("sums/0", goal="2 + 2", checks={"answer": "4"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "line 2: .*expected a JSON value per line"),
        ("a.json", "{", "expected a JSON list"),
        ("a.csv", "a,b\n1\n", "row 2 has not as many cells"),
        ("a.csv", "a,b\n1,2,3\n", "row 2 has not as many cells"),
        ("a.csv", 'a,b\n1,"2', "line 1: unexpected end"),
        ("a.csv", "a,a\n1,2\n", "a name is there twice"),
        ("a.jsonl", "\n", "no list of tasks"),
        ("a.csv", "a,b\n", "no list of tasks"),
        ("a.txt", "a", r"none of \.json, \.jsonl, \.csv, \.parquet"),
        ("a.parquet", "", "pyarrow"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_was_expected(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_rows(str(tmp_path / name))
    with pytest.raises(ConfigError, match="cannot read tasks" if name != "a.txt" else "none of"):
        read_rows(f"missing/at/all/{name}" if name != "a.parquet" else "missing.json")


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        read_rows("owner/name")
    asked = []

    def load_dataset(*name: str, split: str) -> Iterator[Any]:
        asked.append((*name, split))
        if split == "none":
            raise RuntimeError("no such split")
        return iter(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    for source in ("owner/name", "owner/name:test", "owner/name/main:test"):
        assert read_rows(source) == ROWS
    assert asked == [("owner/name", "train"), ("owner/name", "test"), ("owner/name", "main", "test")]
    with pytest.raises(ConfigError, match="RuntimeError: no such split"):
        read_rows("owner/name:none")


def test_rows_of_trl_and_verl_need_no_mapping() -> None:
    assert task_of({"prompt": "q", "answer": 4}, 0, "e") == Task("e/0", goal="q", checks={"answer": 4})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2"}]
    row = {"data_source": "sums", "prompt": messages, "reward_model": {"ground_truth": "4"}, "day": date(2026, 1, 2)}
    task = task_of(row, 1, "e")
    assert (task.id, task.goal) == ("e/1", "Be brief.\n\n2 + 2")
    assert task.checks == {**row, "day": "2026-01-02"}


def test_a_mapping_names_any_field_of_a_task() -> None:
    row = {"n": 7, "q": "2 + 2", "kind": ["sum"], "answer": "4", "checks": {"tolerance": 1}}
    columns = {"id": "n", "goal": "q", "tags": "kind", "checks": "checks"}
    assert task_of(row, 0, "e", columns) == Task(
        "7", goal="2 + 2", tags=("sum",), checks={"answer": "4", "tolerance": 1}
    )


@pytest.mark.parametrize(
    ("row", "columns", "said"),
    [
        ({"q": "a"}, {"goal": "question"}, "item 5 has no column 'question'; it has q"),
        ({"q": "a"}, {"gaol": "q"}, "unexpected keyword argument 'gaol'"),
        ({"gaol": "a"}, None, "unexpected keyword argument 'gaol'"),
        ({"q": "a", "picture": b"png"}, {"goal": "q"}, "holds bytes, which is no JSON"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, None, "expected messages of system and user"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, None, "is no text"),
        ({"q": None}, {"goal": "q"}, "its goal is None; expected text"),
        ({"q": ""}, {"goal": "q"}, "its goal is ''; expected text"),
        ({"id": None}, None, "its id is None; expected text"),
        ({"goal": "q", "tags": "hard"}, None, "its tags are 'hard'; expected a list"),
        ({"q": "a", "t": "hard"}, {"goal": "q", "checks": "t"}, "its checks are 'hard'; expected a mapping"),
        ({"goal": "q", "seed": "soon"}, None, "its seed is 'soon'; expected a whole number"),
        (3, None, "is a int; expected a Task"),
    ],
)
def test_a_row_that_is_no_task_is_told_with_its_number(row: Any, columns: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        task_of(row, 5, "e", columns)


def test_values_of_numpy_and_of_csv_are_read() -> None:
    row = {"q": 7, "n": np.int64(3), "l": np.arange(2), "d": Decimal("0.10"), "": "0"}
    assert task_of(row, 0, "e", COLUMNS | {"goal": "q"}).checks == {"n": 3, "l": [0, 1], "d": "0.10", "": "0"}
    assert task_of({"id": "1", "goal": "q", "seed": "7"}, 0, "e") == Task("1", goal="q", seed=7)
    messages = [{"role": "user", "content": "q"}]
    assert task_of({"messages": messages}, 0, "e", {"goal": "messages"}).checks == {"prompt": messages}


def test_tasks_that_a_run_has_stored_are_read_beside_its_columns() -> None:
    task = Task("e/0", "questions", goal="2 + 2", checks={"answer": "4"}, tags=("a",))
    assert task_of(json.loads(json.dumps(asdict(task))), 0, "e", COLUMNS) == task


def test_a_config_may_call_its_tasks_a_dataset() -> None:
    config = ConfigStore().override(["environment.dataset=a.jsonl", "environment.eval_dataset=owner/name:test"])
    assert (config.environment.tasks, config.environment.eval_tasks) == ("a.jsonl", "owner/name:test")


def test_a_run_asks_the_questions_of_a_dataset_and_is_measured_on_others(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.environment.name = "questions"
    config.environment.options = {"reward": "tests.environments.test_questions:of_trl"}
    config.environment.columns = COLUMNS
    rows = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(8)]
    train(config, 1, dataset=iter(rows[:6]), eval_dataset=rows[6:])
    with TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True) as store:
        asked = {split: {store.get(one.id).task.goal for one in store.list(split=split)} for split in ("train", "test")}
    parts = {"train": rows[:6], "test": rows[6:]}
    assert asked == {split: {row["question"] for row in part} for split, part in parts.items()}
