"""Configs that are found with weights, of possibly unknown origin: what they reach needs the user's consent.

A config that names addresses, files, variables or code (`Reach` beside its keys) is obeyed where the user typed these
values, or has begun a run with all of them before: `remember` notes that outside of the run directory, in the user's
own folder, where whoever made an archive could not write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.config.keys import at, reaching
from uirl.config.overrides import apply_overrides
from uirl.config.store import ConfigStore
from uirl.errors import ConfigError
from uirl.runtime.limits import clip

_SHOWN = 200


def override_stored(
    stored: ConfigStore, overrides: Sequence[str], folder: Path, *, section: tuple[str, ...] = ("",)
) -> ConfigStore:
    """Return `stored`, the config that was found at `folder`, with the changes that the user typed.

    Raises ConfigError, with what to type, if it reaches outside of the run and neither was that typed nor has the user
    begun a run with it (`remember`). An environment that is code inside the folder has to be typed. `section`: how
    the keys begin that are used.
    """
    typed, found = ConfigStore().to_dict(), stored.to_dict()
    values = stored.to_dict()
    for plain in (typed, values):
        apply_overrides(ConfigStore, plain, overrides)
    own = _mark(found) in _marks() and not any(_lies_in(folder, text) for text in _texts(values["environment"]))
    unasked = [
        (key, what, value)
        for key, what, value in reaching(ConfigStore, values)
        if key.startswith(section) and at(typed, key) != value and not (own and at(found, key) == value)
    ]
    if unasked:
        lines = "".join(f"\n  {key} ({what}): {clip(_text(value), _SHOWN)}" for key, what, value in unasked)
        words = " ".join(shlex.quote(f"{key}={_text(value)}") for key, _, value in unasked)
        raise ConfigError(
            f"the config at {folder} reaches outside of its run, and you have begun no run with these values on this "
            f"machine:{lines}\nIf you trust where the folder came from, type these values, or others: {words}"
        )
    return stored.override(overrides)


def remember(values: Mapping[str, Any]) -> None:
    """Note that the user begins a run that reaches what a config (`to_dict`) says. Where nothing can be written, he is
    asked."""
    mark = _mark(values)
    if not any(True for _ in reaching(ConfigStore, values)) or mark in _marks():
        return
    with contextlib.suppress(OSError):
        path = _marks_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{mark}\n")


def _marks_path() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "uirl" / "configs"


def _marks() -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(_marks_path().read_text(encoding="ascii").split())
    return frozenset()


def _mark(values: Mapping[str, Any]) -> str:
    """Return what tells one set of reached things from another: a variable goes with its address."""
    reached = {key: value for key, _, value in reaching(ConfigStore, values)}
    return hashlib.sha256(json.dumps(reached, sort_keys=True).encode()).hexdigest()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    """Yield every 'package.module:Class' in plain data: the options of an environment may name others."""
    if isinstance(value, str):
        yield from [value] if re.fullmatch(r"[\w.]{1,200}:[\w.]{1,200}", value) else []
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _lies_in(folder: Path, name: str) -> bool:
    """Return whether the module of 'package.module:Class' would be found inside `folder`. Nothing is imported."""
    module, colon, _ = name.partition(":")
    if not colon:
        return False
    parts, inside = module.split("."), folder.resolve()
    for entry in sys.path:
        for depth in range(1, len(parts) + 1):
            place = Path(entry or ".").joinpath(*parts[:depth])
            found = place.exists() or place.with_name(f"{place.name}.py").exists()
            if found and place.resolve().is_relative_to(inside):
                return True
    return False
