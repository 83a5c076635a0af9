"""A web app of one page: what is in its store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any


def begin(app: dict[str, Any], folder: Path) -> tuple[dict[str, str], Callable[[Path], Any]]:
    with sqlite3.connect(folder / app["store"]) as store:
        store.execute("CREATE TABLE label (id INTEGER PRIMARY KEY, name TEXT, weight INTEGER)")

    def make(session: Path) -> Any:
        def serve(environ: dict[str, Any], start: Any) -> list[bytes]:
            rows = sqlite3.connect(session / app["store"]).execute("SELECT name, weight FROM label").fetchall()
            start("200 OK", [("Content-Type", "text/html")])
            return [f"<!doctype html><title>labels</title><p>{rows}".encode()]

        return serve

    return {}, make
