"""`uirl apps`: the web applications that `environment.name=apps` can play, and a file for one of your own."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError
from uirl.runtime.files import storage_errors, write_atomically


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    apps = commands.add_parser("apps", help="list the web applications that are environments, or add your own")
    apps.set_defaults(run=_list)
    add = apps.add_subparsers(metavar="").add_parser("add", help="make tasks of the store of your own app")
    add.add_argument("command", metavar="COMMAND", help="what starts it, with {port} and {store} (and {python}, {app})")
    add.add_argument("--store", required=True, metavar="FILE", help="its store in SQLite, with some records")
    add.add_argument("--into", metavar="FOLDER", help="a new folder for the app file (default: named as the store)")
    add.add_argument("--start", default="/", metavar="/PATH", help="the first page (/)")
    add.add_argument(
        "--shown", nargs="*", default=[], metavar="FOLDER", help="what it reads besides the system's files"
    )
    add.set_defaults(run=_add)


def _list(options: argparse.Namespace) -> int:
    from uirl.environments.apps.schema import SHIPPED, read_app
    from uirl.environments.apps.tasks import kinds_of

    for name in SHIPPED:
        app, _ = read_app(name)
        packages = ", ".join(app.packages)
        print(f"{name}  {app.about}; {len(kinds_of(app))} tasks of {len(app.entities)} entities; pip brings {packages}")
    print("FOLDER  your own: uirl apps add 'COMMAND with {port} and {store}' --store FILE")
    return 0


def _add(options: argparse.Namespace) -> int:
    import yaml

    from uirl.environments.apps.introspect import describe
    from uirl.environments.apps.schema import read_app
    from uirl.environments.apps.store import whole_store
    from uirl.environments.apps.tasks import kinds_of

    store = Path(options.store)
    command = shlex.split(options.command)
    for name in ("{port}", "{store}"):
        if not any(name in word for word in command):
            raise ConfigError(f"{options.command!r} has no {name}; every session has a port and a store of its own")
    folder = Path(options.into or store.stem)
    if folder.exists():
        raise ConfigError(f"{folder} is there already; name a new folder with --into")
    group = re.sub(r"\W", "_", store.stem)
    values = {
        **{"about": options.command, "command": command, "store": "app.sqlite", "start": options.start},
        **{"shown": [str(Path(path).resolve()) for path in options.shown], **describe(store, group)},
    }
    with storage_errors(f"cannot write {folder}"):
        folder.mkdir(parents=True)
        (folder / "app.sqlite").write_bytes(whole_store(store))
    write_atomically(folder / "app.yaml", yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110))
    app, _ = read_app(str(folder))
    print(f"{folder}/app.yaml: {len(kinds_of(app))} tasks of {', '.join(app.entities)}")
    print("read it: `own` names what the app writes by itself; with `pages` it has a demonstrator (docs/apps.md)")
    print(f"uirl check environment.name=apps environment.options.app={shlex.quote(str(folder))}")
    return 0
