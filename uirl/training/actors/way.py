"""The way from an actor to its learner. Imports nothing: a process that only starts others needs it too."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Way:
    """Where the learner's gate is, and as whom to go there."""

    host: str
    port: int
    actor: str
    incarnation: int
    """How often the actor was started."""
    token: str = field(repr=False)
