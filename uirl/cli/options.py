"""Options that several commands share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from uirl.cli.begin import path_of
from uirl.cli.imports import make_importable
from uirl.errors import ConfigError, UirlError
from uirl.runtime.files import leads_out

if TYPE_CHECKING:
    from uirl.config import ConfigStore


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add what `read_config` reads: a config, as an option or not, and changes to it."""
    parser.add_argument("overrides", nargs="*", metavar="config.yaml | section.key=value", help="a config and changes")
    parser.add_argument("--config", metavar="FILE", help="the config, as an option")


def read_config(options: argparse.Namespace) -> tuple[str | None, ConfigStore]:
    """Return (path or None, the config in that file or run directory, with the changes that were typed).

    Modules beside the config can be imported from here on.
    """
    from uirl.config import ConfigStore, load_config
    from uirl.config.stored import override_stored

    paths = [a for a in [options.config] if a is not None] + [a for a in options.overrides if "=" not in a]
    changes = [a for a in options.overrides if "=" in a]
    if len(paths) > 1:
        raise UirlError(f"expected one config file, got {len(paths)}: {', '.join(paths)}")
    path = path_of(paths[0]) if paths else None
    if path is None or not Path(path).is_dir():
        make_importable(config=path)
        return path, load_config(path, changes)
    make_importable(opened=path)
    stored = Path(path) / "config.yaml"
    if leads_out(stored, path):
        raise ConfigError(f"{stored} is a link out of its run; expected the file itself: copy it there")
    if not stored.is_file():
        raise ConfigError(f"{path} is a folder without a config.yaml; expected a YAML file or a run directory")
    return path, override_stored(ConfigStore.from_yaml(stored), changes, Path(path))


def count(text: str) -> int:
    """Read a whole number of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number of 0 or more."""
    return 0 if text == "0" else count(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value
