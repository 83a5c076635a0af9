"""A web app of the standard library alone: tables of a store as lists and forms. What `/crash`, `/spin` and `/spy` do
is its fault."""

from __future__ import annotations

import contextlib
import html
import os
import re
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

TABLES = {
    "tag": ("plain_tag", ["name", "weight"]),
    "note": ("note", ["title", "pages", "price", "day", "tag_id", "mood", "done", "remark"]),
}
SCHEMA = """
CREATE TABLE plain_tag (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, weight INTEGER);
CREATE TABLE note (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, pages INTEGER, price NUMERIC, day TEXT,
  tag_id INTEGER REFERENCES plain_tag, mood TEXT, done INTEGER, remark TEXT, touched INTEGER DEFAULT 0);
CREATE TABLE log (line TEXT);
"""


def begin(app: dict[str, Any], folder: Path) -> tuple[dict[str, str], Callable[[Path], Any]]:
    make_store(folder / app["store"])
    return {"who": "clerk"}, lambda session: App(session / app["store"])


def make_store(file: Path) -> None:
    with sqlite3.connect(file) as store:
        store.executescript(SCHEMA)


class App:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        path = environ["PATH_INFO"]
        if path == "/crash":
            os._exit(3)
        while path == "/spin":
            pass
        if path == "/spy":
            start("200 OK", [("Content-Type", "text/plain")])
            return [self.spy(parse_qs(environ["QUERY_STRING"])).encode()]
        store = sqlite3.connect(self.file)
        store.row_factory = sqlite3.Row
        body = self.page(store, path, environ)
        store.commit()
        store.close()
        if body is None:
            start("303 See Other", [("Location", f"/{path.split('/')[1]}/")])
            return []
        start("200 OK", [("Content-Type", "text/html; charset=utf-8")])
        return [f"<!doctype html><title>notes</title><a href=/>home</a> {body}".encode()]

    def spy(self, wanted: dict[str, list[str]]) -> str:
        """Say what of the machine this process reaches."""
        found = []
        for file in wanted["file"]:
            found.append(f"reads {file}" if os.access(file, os.R_OK) else "no file")
        try:
            socket.create_connection(("127.0.0.1", int(wanted["port"][0])), timeout=5).close()
            found.append("reaches the port")
        except OSError:
            found.append("no network")
        with contextlib.suppress(OSError):
            Path(wanted["file"][0]).with_name("left").write_text("x")
            found.append("writes beside the file")
        return ", ".join(found)

    def page(self, store: sqlite3.Connection, path: str, environ: dict[str, Any]) -> str | None:
        found = re.fullmatch(r"/(tag|note)/(?:(add)|(\d+)(/delete)?)?", path)
        store.execute("INSERT INTO log VALUES (?)", (path,))
        if found is None:
            return f"<a href=/note/>notes</a> <a href=/tag/>tags</a> for {html.escape(environ.get('HTTP_COOKIE', ''))}"
        name, add, key, delete = found.groups()
        table, columns = TABLES[name]
        if environ["REQUEST_METHOD"] == "POST":
            return self.save(store, table, columns, environ, key, bool(delete))
        if not add and not key:
            rows = store.execute(f"SELECT * FROM {table}").fetchall()
            links = "".join(f"<li><a href=/{name}/{row['id']}>{html.escape(str(row[1]))}</a>" for row in rows)
            return f"<a href=/{name}/add>add</a><ul>{links}</ul>"
        if delete:
            return "<form method=post>Sure? <button>delete</button></form>"
        row = dict(store.execute(f"SELECT * FROM {table} WHERE id = ?", (key or 0,)).fetchone() or {})
        fields = "".join(f"<p>{column} {self.field(store, column, row.get(column))}" for column in columns)
        more = f"<a href=/{name}/{key}/delete>delete</a>" if key else ""
        return f"<form method=post>{fields}<p><button>save</button></form>{more}"

    def field(self, store: sqlite3.Connection, column: str, value: Any) -> str:
        if column == "done":
            return f"<input type=checkbox name=done {'checked' if value else ''}>"
        if column not in ("mood", "tag_id"):
            shown = f"{value:.2f}" if column == "price" and value is not None else "" if value is None else value
            return f'<input name={column} value="{html.escape(str(shown))}">'
        tags = store.execute("SELECT id, name FROM plain_tag").fetchall()
        options = [(one, one) for one in ("good", "bad")] if column == "mood" else [tuple(tag) for tag in tags]
        name = column.removesuffix("_id")
        listed = "".join(f"<option value={k} {'selected' if k == value else ''}>{v}" for k, v in options)
        return f"<select name={name}><option>{listed}</select>"

    def save(
        self, store: sqlite3.Connection, table: str, columns: list[str], environ: dict[str, Any], key: Any, delete: bool
    ) -> None:
        if delete:
            store.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
            return
        sent = parse_qs(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)).decode())
        values = [
            int("done" in sent) if column == "done" else sent.get(column.removesuffix("_id"), [""])[0]
            for column in columns
        ]
        if key:
            sets = ", ".join(f"{column} = ?" for column in columns)
            more = ", touched = touched + 1" if table == "note" else ""
            store.execute(f"UPDATE {table} SET {sets}{more} WHERE id = ?", (*values, key))
        else:
            slots = ", ".join("?" * len(columns))
            store.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({slots})", values)


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), App(Path(sys.argv[2]))).serve_forever()
