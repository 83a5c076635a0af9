"""An app of one's own: tasks from what is in its store, a server of its own for every episode."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.environments.apps.notes.notes import make_store
from tests.patience import PATIENCE
from uirl.cli.main import main
from uirl.environments.apps import introspect
from uirl.environments.apps.environment import AppsEnvironment
from uirl.environments.apps.introspect import describe
from uirl.environments.apps.schema import App, read_app
from uirl.environments.apps.store import read_rows
from uirl.environments.apps.tasks import kinds_of, make_problem
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


KILLED = """
import asyncio, os, sys
from uirl.environments.apps.environment import AppsEnvironment
from uirl.environments.session import EnvironmentSession

async def play():
    env = AppsEnvironment(app=sys.argv[1], split="all")
    await EnvironmentSession(env).reset(env.tasks()[0], 1)
    print(env._session.folder, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(play())
"""


def processes_of(folder: str) -> list[str]:
    """Return the command lines of all processes that name a folder."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace") if process.name.isdigit() else ""
            found += [words] if folder in words else []
    return found


def test_no_server_outlives_a_run_that_is_killed(store: Path, tmp_path: Path) -> None:
    words = ["apps", "add", COMMAND, "--store", str(store), "--into", str(tmp_path / "app"), "--shown", str(NOTES)]
    assert main(words) == 0
    with (tmp_path / "said").open("w+") as said:  # a pipe would be held open by what is left
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "app")], stdout=said, check=False)
        said.seek(0)
        folder = said.read().strip()
    assert folder
    end = time.monotonic() + PATIENCE
    while left := processes_of(str(Path(folder).parent)):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def test_a_store_that_makes_no_tasks_is_refused(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.sqlite", tmp_path / "text.sqlite"
    make_store(empty)
    text.write_text("no store at all, but long enough to be read as one " * 20)
    with pytest.raises(ConfigError, match="no table of plain_tag, note, log makes tasks"):
        describe(empty, "mine")
    with pytest.raises(ConfigError, match="expected an SQLite file"):
        describe(text, "mine")


ODD = """
CREATE TABLE Authors (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE "no""tes \u00e9" (
  id INTEGER PRIMARY KEY, shout TEXT GENERATED ALWAYS AS ("ti'tle" || '!'), "ti'tle" TEXT NOT NULL,
  "page count" INTEGER, currency TEXT, remark TEXT NOT NULL DEFAULT '', stars INTEGER,
  author_id INTEGER REFERENCES authors(id));
CREATE TABLE "no_tes \u00e9" (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE label_of (note INTEGER REFERENCES "no""tes \u00e9", label TEXT);
CREATE VIEW seen AS SELECT * FROM Authors;
CREATE VIRTUAL TABLE words USING fts5(text);
INSERT INTO words VALUES ('a'), ('b'), ('c');
"""


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A store with names and tables that are seldom, whose rows lie in its log."""
    file = tmp_path / "odd.sqlite"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(ODD)
    for i in range(8):
        connection.execute("INSERT INTO Authors VALUES (?, ?, ?)", (i + 1, f"Nia {i} Inc.", f"city {i}"))
        row = f"'{i}' \u00e9", 7 * i, "EUR", f"r{i}" * (i % 4 > 0), 5 - i // 6, 1 + i
        connection.execute(f'INSERT INTO "no""tes \u00e9" VALUES (NULL{", ?" * len(row)})', row)
        connection.execute('INSERT INTO "no_tes \u00e9" VALUES (?, ?)', (i, f"n{i}"))
    yield file
    connection.close()


def test_a_store_with_odd_names_and_tables(odd: Path) -> None:
    found = describe(odd, "odd")
    assert list(found["entities"]) == ["odd.Authors", "odd.no_tes_\u00e9", "odd.no_tes_\u00e9_2"]
    assert {table for table, columns in found["own"].items() if not columns} >= {"words", "words_content"}
    notes = found["entities"]["odd.no_tes_\u00e9"]
    assert notes["referred"]  # a label goes with its note
    assert found["own"][notes["table"]] == ["currency"]  # one text in all rows
    fields = {name: (one["column"], one["kind"]) for name, one in notes["fields"].items()}
    assert fields == {
        **{"ti'tle": ("ti'tle", "text"), "page count": ("page count", "integer")},
        **{"remark": ("remark", "text"), "stars": ("stars", "integer"), "author": ("author_id", "reference")},
    }
    assert [name for name, one in notes["fields"].items() if one.get("guessable")] == ["stars"]


async def test_what_lies_in_the_log_of_a_store_is_part_of_it(odd: Path, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    assert main(["apps", "add", COMMAND, "--store", str(odd), "--into", str(folder)]) == 0
    app, _ = read_app(str(folder))
    assert len(read_rows(app, folder / app.store)["Authors"]) == 8
    env = AppsEnvironment(app=str(folder))
    env.prepare(random.Random(0), None)  # the store that an episode begins with
    assert len(read_rows(app, folder / app.store)["no_tes \u00e9"]) == 8


def test_no_empty_word_answers_a_question(odd: Path) -> None:
    app = App.build({"program": "none", **describe(odd, "odd")})
    rows = read_rows(app, odd)
    asked = [kind for kind in kinds_of(app) if kind.template in ("find", "find_two", "find_by", "sum_where")]
    answers = {(kind.id, make_problem(app, rows, kind, random.Random(s)).answer) for kind in asked for s in range(20)}
    assert answers
    assert not [one for one in answers if not all(part.strip() for part in (one[1] or "").split(","))]
    assert not [kind for kind in asked if "stars" in kind.fields]


def test_a_table_that_is_too_long_to_compare_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspect, "MOST_ROWS", 7)
    with pytest.raises(ConfigError, match="the table note has 7 rows; expected fewer than 7"):
        describe(store, "mine")


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
