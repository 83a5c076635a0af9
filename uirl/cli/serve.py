"""`uirl serve`: an environment for agents on other machines."""

from __future__ import annotations

import argparse
import functools
from dataclasses import fields
from typing import Any

from uirl.cli.imports import make_importable
from uirl.errors import ConfigError


def add_command(commands: Any) -> None:
    """Add the command to those of `uirl`."""
    serve = commands.add_parser("serve", help="serve an environment as sessions over HTTP")
    serve.add_argument(
        "--env", dest="environment", required=True, metavar="NAME", help="environment: a name, or package.module:Class"
    )
    serve.add_argument(
        "--option",
        dest="options",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the environment, as in YAML",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    serve.add_argument("--port", type=int, default=8000, help="default 8000; 0: any free one")
    serve.add_argument("--sessions", type=int, default=16, metavar="MAX", help="sessions at a time (default 16)")
    serve.add_argument("--lease", type=float, default=120.0, metavar="S", help="seconds a session lives without a call")
    serve.add_argument("--idle", type=float, default=900.0, metavar="S", help="seconds a session may go unplayed")
    serve.add_argument("--step-timeout", type=float, default=30.0, metavar="S", help="longest step")
    serve.add_argument("--reset-timeout", type=float, default=120.0, metavar="S", help="longest reset")
    serve.add_argument("--token-env", metavar="VAR", help="environment variable with the token of agents")
    serve.add_argument("--grader-token-env", metavar="VAR", help="... with the token that also sees rewards")
    serve.add_argument("--seed", type=int, help="first seed, for protocols without seeds; default: drawn")
    serve.add_argument("--single", action="store_true", help="ui-verifiers' protocol S: one process, one session")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from uirl.environments.remote.server.settings import ServerSettings

    make_importable()
    options.options = dict(_option(text) for text in options.options)
    options.sessions = 1 if options.single else options.sessions
    names = [field.name for field in fields(ServerSettings) if hasattr(options, field.name)]
    settings = ServerSettings(**{name: getattr(options, name) for name in names})
    try:
        import websockets  # noqa: F401  uvicorn speaks WebSocket through it, and says so only when it runs

        from uirl.environments.remote.server.app import serve
    except ImportError as error:
        raise ConfigError(f"a server needs more packages ({error}): pip install 'uirl[server]'") from error
    # whoever waits for the line, a script or a test, must not wait for a buffer
    serve(settings, announce=functools.partial(print, flush=True))
    return 0


def _option(text: str) -> tuple[str, Any]:
    from uirl.config import yaml_text

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"got --option {text!r}, expected key=value, as in --option level=2")
    return key.strip(), yaml_text.parse(value, f"the value of {key.strip()}")
