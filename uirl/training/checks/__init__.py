"""`uirl check`: what silently ruins runs, proved in seconds on the real model and environment."""

from typing import NamedTuple


class Finding(NamedTuple):
    """The outcome of one check, in plain words."""

    what: str
    ok: bool
    detail: str
