"""`uirl view`: what the agents of runs did, in a browser."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError


def add_command(commands: Any) -> None:
    """Add the command to those of `uirl`."""
    view = commands.add_parser("view", help="show runs in a browser: curves, episodes, pictures, tokens")
    view.add_argument("runs", nargs="*", metavar="RUN", help="run directories, or folders of them (default: runs)")
    view.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    view.add_argument("--port", type=int, default=8123, help="default 8123; 0: any free one")
    view.add_argument("--token", metavar="TOKEN", help="what others must know; needed beyond this machine")
    view.add_argument("--token-env", metavar="VAR", help="environment variable with that token: `ps` shows --token")
    view.add_argument("--text", nargs="?", const="", metavar="ID", help="print a trajectory (default: the newest one)")
    view.add_argument("--export", metavar="FILE", help="write a trajectory to FILE.html; see --id")
    view.add_argument("--id", metavar="ID", help="the trajectory to export (default: the newest one)")
    view.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    paths = options.runs or ["runs"]
    for path in paths:
        if not Path(path).exists():
            raise ConfigError(f"there is nothing at {path}; expected a run directory, or a folder of them")
    if options.text is not None:
        return _print(paths, options.text or None)
    if options.export is not None:
        return _export(paths, Path(options.export), options.id)
    from uirl.viewer.server import serve

    # whoever waits for the line, a script or a test, must not wait for a buffer
    announce = functools.partial(print, flush=True)
    serve(paths, host=options.host, port=options.port, token=_token(options), announce=announce)
    return 0


def _token(options: argparse.Namespace) -> str | None:
    if options.token_env is None:
        return None if options.token is None else str(options.token)
    if options.token is not None:
        raise ConfigError("view: got --token and --token-env; expected one of them")
    token = os.environ.get(options.token_env)
    if not token:
        raise ConfigError(f"view: the environment variable {options.token_env} is not set; expected the token in it")
    return token


def _print(paths: Sequence[str], id: str | None) -> int:
    from uirl.viewer.found import find_episode
    from uirl.viewer.text import WIDTH, text_of

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has not every character
    with find_episode(paths, id) as (_, episode):
        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        for line in text_of(episode, width):
            print(line)
    return 0


def _export(paths: Sequence[str], path: Path, id: str | None) -> int:
    from uirl.runtime.files import write_atomically
    from uirl.viewer.export import page_of
    from uirl.viewer.found import find_episode
    from uirl.viewer.text import one_line

    if path.suffix != ".html":
        raise ConfigError(f"got --export {path}, expected a name that ends in .html")
    with find_episode(paths, id) as (run, episode):
        data = b"".join(page_of(episode, run.store))
        write_atomically(path, data)
        print(f"{one_line(episode['id'])} is in {path} ({len(data)} bytes)")
    return 0
