"""What an engine holds of its GPU before, during and after a sleep. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WEIGHTS, CACHE = "weights", "kv_cache"
"""The two parts of an engine's memory that sleep. They wake one after the other."""

Held = Mapping[str, int]
"""Bytes of a GPU by what they are for: `WEIGHTS`, `CACHE`, and others that no sleep frees."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an engine held at the moments of one sleep."""

    before: Held
    asleep: Held
    loaded: Held
    """When the new weights were there."""
    awake: Held

    def problems(self) -> Iterator[str]:
        """Yield what went wrong, in words.

        Weights that were loaded beside the old ones show as half as many bytes again, or more: what else an engine
        holds outside of cache and weights (workspaces) is small against them.
        """
        for part in (WEIGHTS, CACHE):
            if self.asleep.get(part, 0):
                yield f"asleep it holds {_mib(self.asleep[part])} of {part}, expected none: the learner lacks them"
        if self.loaded.get(CACHE, 0):
            yield (
                f"it held {_mib(self.loaded[CACHE])} of {CACHE} while weights were loaded, expected none: wake up by "
                "tag, the weights first"
            )
        grown = max(_other(self.asleep) - _other(self.before), _uncached(self.awake) - _uncached(self.before))
        if 2 * grown > self.before.get(WEIGHTS, 0):
            yield f"it holds {_mib(grown)} more than before, beside its cache: the weights are there twice"
        for part in (WEIGHTS, CACHE):
            if self.awake.get(part, 0) < self.before.get(part, 0):
                yield f"awake it holds {_mib(self.awake.get(part, 0))} of {part}, expected {_mib(self.before[part])}"

    def __str__(self) -> str:
        moments = ("before", "asleep", "loaded", "awake")
        return ", ".join(f"{_mib(sum(getattr(self, moment).values()))} {moment}" for moment in moments)


def _other(held: Held) -> int:
    return sum(size for part, size in held.items() if part not in (WEIGHTS, CACHE))


def _uncached(held: Held) -> int:
    return sum(held.values()) - held.get(CACHE, 0)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
