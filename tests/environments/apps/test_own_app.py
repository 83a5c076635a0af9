"""An app of one's own: tasks from what is in its store, a server of its own for every episode."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import yaml

from tests.environments.apps.notes.notes import make_store
from uirl.cli.main import main
from uirl.environments.apps.environment import AppsEnvironment
from uirl.environments.apps.introspect import describe
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError

NOTES = Path(__file__).parent / "notes"
COMMAND = f"{{python}} {NOTES}/notes.py {{port}} {{store}}"
PAGES = """pages: {home: /, list: '/{name}/', add: '/{name}/add', edit: '/{name}/{key}',
  delete: '/{name}/{key}/delete', submit: button}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    file = tmp_path / "mine.sqlite"
    make_store(file)
    connection = sqlite3.connect(file)
    connection.executemany("INSERT INTO plain_tag (name, weight) VALUES (?, ?)", [("red", 3), ("sea", 5), ("sky", 9)])
    rows = [(f"t{i}", i, i / 4, f"2024-01-0{i}", 1 + i % 3, ("good", "bad")[i % 2], i % 2, "") for i in range(1, 8)]
    columns = "title, pages, price, day, tag_id, mood, done, remark"
    connection.executemany(f"INSERT INTO note ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("ALTER TABLE note RENAME TO notes")
    connection.execute("ALTER TABLE notes RENAME TO note")
    connection.commit()
    connection.close()
    return file


def test_a_store_says_which_records_and_fields_there_are(store: Path) -> None:
    found = describe(store, "mine")
    kinds = {name: {f: one["kind"] for f, one in e["fields"].items()} for name, e in found["entities"].items()}
    assert kinds == {
        "mine.plain_tag": {"name": "text", "weight": "integer"},
        "mine.note": {
            **{"title": "text", "pages": "integer", "price": "decimal", "day": "date", "tag": "reference"},
            **{"mood": "choice", "done": "flag"},  # of the remark nothing is known: it is always empty
        },
    }
    assert found["own"] == {"log": [], "note": ["touched"]}
    assert found["entities"]["mine.note"]["fields"]["tag"]["column"] == "tag_id"


def test_a_store_that_makes_no_tasks_is_refused(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.sqlite", tmp_path / "text.sqlite"
    make_store(empty)
    text.write_text("no store at all, but long enough to be read as one " * 20)
    with pytest.raises(ConfigError, match="no table of plain_tag, note, log makes tasks"):
        describe(empty, "mine")
    with pytest.raises(ConfigError, match="expected an SQLite file"):
        describe(text, "mine")


async def test_a_command_and_a_store_make_an_environment(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    words = ["apps", "add", COMMAND, "--store", str(store), "--into", str(folder), "--shown", str(NOTES)]
    assert main(words) == 0
    assert "tasks of mine.plain_tag, mine.note" in capsys.readouterr().out
    assert main(words) == 2  # it is there already
    assert not AppsEnvironment(app=str(folder)).has_demonstrator
    file = folder / "app.yaml"
    known = folder.rename(tmp_path / "known") / file.name
    known.write_text(known.read_text() + PAGES)
    env = AppsEnvironment(app=str(known.parent), split="all")
    session = EnvironmentSession(env)
    for template in ("create", "edit", "delete_two", "find_by"):
        task = next(task for task in env.tasks() if template in task.tags and "mine.note" in task.tags)
        assert (await play_episode(session, task=task, seed=5)).success is True, task.id
    await session.close()
    assert yaml.safe_load(known.read_text())["command"][0] == "{python}"


async def test_a_server_that_does_not_come_up_says_why(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    command = "{python} -c 1/0 {port} {store}"
    assert main(["apps", "add", command, "--store", str(store), "--into", str(folder)]) == 0
    session = EnvironmentSession(AppsEnvironment(app=str(folder)), 60, 60)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await session.reset(None, 0)
    await session.close()


@pytest.mark.parametrize("command", ["serve {port}", "serve {store}"])
def test_a_command_without_port_or_store_is_refused(
    command: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apps", "add", command, "--store", str(store), "--into", str(tmp_path / "x")]) == 2
    assert "of its own" in capsys.readouterr().err
