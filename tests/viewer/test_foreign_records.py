"""Records that say something of another kind than any run writes: whatever it is, no page fails over it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.viewer.conftest import client_of
from tests.viewer.runs import make_run, passed, picture, trajectory, turn
from uirl.cli.main import main
from uirl.storage import TrajectoryStore
from uirl.storage.labels import Label, LabelStore
from uirl.types import Failure, Observation
from uirl.viewer.runs import Runs

OTHERS: list[Any] = [None, -1, 10**400, float("nan"), "word", [[1], {}], {"name": [1]}]
"""Values of every kind of JSON."""
ORIGIN = {"software": {"python": "3.11"}, "model": {"name": "m", "lora": 8}, "engine": "embedded"}
ROUTES = (
    *("", "/metrics", "/metrics.csv", "/facets", "/trajectories", "/trajectories?q=goal&sort=reward", "/labels.csv"),
    *("/groups/g", "/trajectories/a", "/trajectories/a/turns/0", "/trajectories/a/tokens?turn=0&context=1"),
    *("/trajectories/a/export.html", "/fed/a/0/0.png"),
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every value in nested data."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths_in(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a copy of nested data with another value at a path."""
    if not path:
        return other
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = changed(value[path[0]], path[1:], other)
    return copied


def in_store(query: str) -> tuple[Callable[[Path], str], Callable[[Path, str], None]]:
    """Return how a text of the store is read and replaced. `query`: table, column and row."""
    table, column, where = query.split("|")

    def read(run: Path) -> str:
        with closing(sqlite3.connect(run / "trajectories.sqlite")) as connection:
            return str(connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()[0])

    def write(run: Path, text: str) -> None:
        with closing(sqlite3.connect(run / "trajectories.sqlite")) as connection:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (text,))
            connection.commit()

    return read, write


def in_file(name: str) -> tuple[Callable[[Path], str], Callable[[Path, str], None]]:
    """Return how a file of the run is read and replaced."""
    return (
        lambda run: (run / name).read_text().splitlines()[0],
        lambda run, text: (run / name).write_text(text + "\n") and None,
    )


RECORDS = {
    "header": in_store("trajectories|record|id = 'a'"),
    "turn": in_store("turns|record|trajectory = 1 AND position = 0"),
    "origin": in_store("origins|record|number = 1"),
    "summary": in_file("summary.json"),
    "serve": in_file("serve.json"),
    "metrics": in_file("metrics.jsonl"),
    "judgement": in_file("judgements/rules.jsonl"),
    "config": in_file("config.yaml"),
}


def make(path: Path) -> Path:
    """Return a run that has every record that the viewer reads."""
    make_run(path)
    shot = picture()
    one = trajectory("a", [turn("click", shot), turn("click", shot)], verdict=passed(), sampling={"temperature": 1.0})
    one = replace(one, final=Observation("end", (shot,)), metrics={"success": 1.0, "verification/judge": 1.0})
    other = trajectory("b", [turn("other", shot)], success=False, failure=Failure("engine", "gone", 0))
    (path / "trajectories.sqlite").unlink()
    with TrajectoryStore(path / "trajectories.sqlite", origin=ORIGIN) as store:
        store.add_many([one, other], step=1)
    LabelStore(path / "labels.sqlite").set("a", Label(True))
    said = {"steps": 3, "success_after": 0.5, "success_after_interval": [0.4, 0.6], "environment": {"name": "x"}}
    (path / "summary.json").write_text(json.dumps(said))
    (path / "serve.json").write_text(json.dumps({"url": "http://127.0.0.1:1/"}))
    (path / "config.yaml").write_text(json.dumps({"environment": {"name": "screen_suite", "options": {}}}))
    (path / "judgements").mkdir()
    judged = {"id": "a", "task": "task", "rule": True, "judge": None, "score": 1.0, "screens": {"x": 1}}
    (path / "judgements" / "rules.jsonl").write_text(json.dumps(judged) + "\n")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with client_of(Runs([run]), raise_server_exceptions=False) as opened:
        yield opened


_TURN = ("/trajectories/a/turns/0", "/trajectories/a/tokens?turn=0&context=1")
_EPISODE = ("/trajectories/a", "/trajectories/a/export.html")
READ_BY = {
    "origin": ("", *_EPISODE),
    "summary": ("",),
    "serve": ("",),
    "metrics": ("", "/metrics", "/metrics.csv"),
    "judgement": _EPISODE,
    "config": ("", *_EPISODE, *_TURN),
}
"""Record -> the routes that read it, beside the list of runs; the slow tests ask all of `ROUTES`."""


def failures(client: TestClient, routes: Sequence[str] = ROUTES) -> list[str]:
    """Return what is answered as a fault of the viewer, or said to be one."""
    found = []
    for route in routes:
        try:
            answer = client.get(f"/api/runs/run{route}")
        except Exception as error:  # a stream that breaks off
            found.append(f"{route}: {type(error).__name__}: {error}")
            continue
        if answer.status_code >= 500 or "the viewer failed" in answer.text:
            found.append(f"{route}: {answer.text[:200]}")
    listed = client.get("/api/runs").json()["runs"]
    return found + [run["problem"] for run in listed if "the viewer failed" in (run["problem"] or "")]


@pytest.mark.parametrize(
    ("name", "routes"), [*READ_BY.items(), *(pytest.param(name, ROUTES, marks=pytest.mark.slow) for name in RECORDS)]
)
def test_no_page_fails_over_a_value_of_another_kind(
    run: Path, client: TestClient, name: str, routes: Sequence[str]
) -> None:
    read, write = RECORDS[name]
    whole = json.loads(read(run)) if name != "config" else json.loads((run / "config.yaml").read_text())
    assert failures(client) == []
    found = {}
    for path in paths_in(whole):
        for other in OTHERS:
            write(run, json.dumps(changed(whole, path, other)))
            if failed := failures(client, routes):
                found[f"{path} = {other!r:.30}"] = failed
    assert [f"{what}: {failed}" for what, failed in found.items()] == []


def test_no_report_fails_over_a_judgement_of_another_kind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read, write = RECORDS["judgement"]
    whole = json.loads(read(run))
    ended = set()
    for path in paths_in(whole):
        for other in OTHERS:
            write(run, json.dumps(changed(whole, path, other)))
            ended.add(main(["judge-report", str(run)]))
    assert 0 in ended
    assert ended <= {0, 2}


COLUMNS = {
    "trajectories.sqlite": {
        "trajectories": (
            "id",
            "step",
            "split",
            "created",
            "task_id",
            "group_id",
            "reward",
            "success",
            "turns",
            "record",
        ),
        "turns": ("position", "record", "context_ids", "response_ids", "log_probs"),
        "images": ("data",),
        "origins": ("record",),
    },
    "labels.sqlite": {"labels": ("passed", "error_step", "note", "by", "time")},
}


@pytest.mark.slow
@pytest.mark.parametrize("file", COLUMNS)
def test_no_page_fails_over_a_column_of_another_kind(run: Path, client: TestClient, file: str) -> None:
    found = {}
    for table, columns in COLUMNS[file].items():
        for column in columns:
            for other in ("word", b"\xff\xfe", 2**62, -1, 1e300, float("inf")):
                with closing(sqlite3.connect(run / file)) as connection:
                    connection.execute(f"CREATE TEMP TABLE before AS SELECT rowid AS at, * FROM {table}")
                    connection.execute("PRAGMA ignore_check_constraints = ON")
                    first = f"(SELECT min(rowid) FROM {table})"
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {first}", (other,))
                    connection.commit()
                    if failed := failures(client):
                        found[f"{table}.{column} = {other!r}"] = failed
                    connection.execute(
                        f"UPDATE {table} SET {column} = (SELECT {column} FROM before WHERE at = {table}.rowid)"
                    )
                    connection.commit()
    assert [f"{what}: {failed}" for what, failed in found.items()] == []
