"""`uirl view`: what the agents of runs did, in a browser."""

from __future__ import annotations

import argparse
import functools
import os
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
    view.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    paths = options.runs or ["runs"]
    for path in paths:
        if not Path(path).exists():
            raise ConfigError(f"there is nothing at {path}; expected a run directory, or a folder of them")
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
