"""What others see of the package, as text: keys and their defaults, commands and options, tables, names."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sqlite3
from pathlib import Path
from unittest import mock

import uirl
from tests.config.test_store import reference_page
from uirl.cli.main import main
from uirl.storage import TrajectoryStore

COMMANDS = (
    *("train", "eval", "check", "chaos", "environments", "evolve", "export", "judge", "judge-report", "plan"),
    *("serve", "serve-model", "verl", "view"),
)


def config_keys() -> str:
    """Every key and option with its kind of value and its default; not what it means, in words."""
    lines, section = [], ""
    for line in reference_page().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif match := re.match(r"\| `(\w+)` \| (.*)", line):
            kind, default = re.split(r"(?<!\\) \| ", match[2])[:2]
            lines.append(f"{section}.{match[1]} | {kind} | {default}")
        elif match := re.match(r"\| `([\w.]+)` \| ", line):
            lines.append(f"alias {match[1]}")
    return "\n".join(lines) + "\n"


def command_help() -> str:
    """What `--help` says of every command, an option a line, however wide the terminal is."""
    pages = []
    for command in ((), *((name,) for name in COMMANDS)):
        said = io.StringIO()
        wide = mock.patch.dict(os.environ, COLUMNS="200", NO_COLOR="1")
        with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*command, "--help"])
        words = " ".join(said.getvalue().split())
        pages.append(re.sub(r" (?=\[?--\w)", "\n  ", words))
    return "\n\n".join(pages) + "\n"


def store_schema(folder: Path) -> str:
    """The statements that make a trajectory store, with its marks in the header."""
    path = folder / "trajectories.sqlite"
    TrajectoryStore(path).close()
    connection = sqlite3.connect(path)
    marks = [
        f"{name} {connection.execute(f'PRAGMA {name}').fetchone()[0]}" for name in ("application_id", "user_version")
    ]
    made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    statements = [" ".join(sql.split()) for (sql,) in made]
    connection.close()
    return "\n".join([*marks, *statements]) + "\n"


def public_names() -> str:
    return "\n".join(uirl.__all__) + "\n"
