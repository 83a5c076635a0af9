"""Per-token figures of an update (advantages, log-probs, entropies), as records and as rows of the store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uirl.errors import StorageError
from uirl.types import Turn

Numbers = tuple[float, ...]
KINDS = {"advantages": "<f4", "old_log_probs": "<f4", "log_probs": "<f4", "entropies": "<f2", "weights": "<f2"}
"""Column -> how its numbers are packed, in the order of the columns."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What one update made of one turn. The numbers align with its `response_ids`."""

    step: int
    """Number of the update."""
    version: int
    """Of the learner's weights when the update began."""
    advantages: Numbers
    old_log_probs: Numbers | None = None
    """The learner's log-probs, in nats, when the update began; None: the engine's stood for them."""
    log_probs: Numbers | None = None
    """The learner's in its last pass over the turn in this update; None: there was no pass, since its group held no
    signal or the update was skipped."""
    entropies: Numbers | None = None
    """Of the learner's distributions, in nats, in the same pass."""
    weights: Numbers | None = None
    """What the advantages were multiplied by, since older weights had sampled the tokens; None: by 1."""

    def ratio(self, turn: Turn) -> Numbers | None:
        """Return pi(token) / pi_old(token) of every token, learner in the last pass over learner at the beginning:
        exp(log_probs - old_log_probs). None: there was no pass, or nothing to compare it with."""
        old = self.old_log_probs or turn.rollout_log_probs
        if self.log_probs is None or not old:
            return None
        return tuple(math.exp(now - then) for now, then in zip(self.log_probs, old, strict=True))

    def gap(self, turn: Turn) -> Numbers | None:
        """Return log-prob of the learner minus that of the engine, in nats: at the beginning of the update where the
        learner's were computed then, else in its last pass. None: there is nothing to compare."""
        ours = self.old_log_probs or self.log_probs
        if ours is None or not turn.rollout_log_probs:
            return None
        return tuple(here - there for here, there in zip(ours, turn.rollout_log_probs, strict=True))


@dataclass(frozen=True, slots=True)
class LearnedTokens:
    """What one update made of one trajectory: arrays [tokens] over the response tokens of all its turns, in order. See
    `Learned` for what they are, and for None."""

    trajectory_id: str
    advantages: np.ndarray
    old_log_probs: np.ndarray | None = None
    log_probs: np.ndarray | None = None
    entropies: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in KINDS:
            values = getattr(self, name)
            if values is not None and values.shape != self.advantages.shape:
                raise ValueError(
                    f"LearnedTokens.{name} of trajectory {self.trajectory_id} must align with its advantages: got "
                    f"{values.shape}, expected {self.advantages.shape}"
                )


def encode_learned(learned: LearnedTokens) -> tuple[bytes | None, ...]:
    """Return the columns of a row: packed numbers, None for those that nobody computed."""
    return tuple(_pack(getattr(learned, name), kind) for name, kind in KINDS.items())


def decode_learned(
    step: int, version: int, columns: Sequence[bytes | None], counts: Sequence[int]
) -> dict[int, Learned]:
    """Return turn -> what the update made of it. `counts`: response tokens of each turn.

    Raises StorageError where the row holds another number of tokens.
    """
    total = sum(counts)
    numbers = [
        None if data is None else _unpack(data, kind, total) for data, kind in zip(columns, KINDS.values(), strict=True)
    ]
    learned, start = {}, 0
    for turn, count in enumerate(counts):
        parts = [None if one is None else tuple(one[start : start + count]) for one in numbers]
        assert parts[0] is not None
        learned[turn] = Learned(step, version, parts[0], *parts[1:])
        start += count
    return learned


def _pack(values: np.ndarray | None, kind: str) -> bytes | None:
    """Return the packed numbers; one number where all are equal, as the advantages of a group are in an episode."""
    if values is None:
        return None
    packed = values.astype(kind)
    same = len(packed) > 1 and packed.tobytes() == packed[:1].tobytes() * len(packed)
    return packed[:1].tobytes() if same else packed.tobytes()


def _unpack(data: bytes, kind: str, count: int) -> list[float]:
    numbers: list[float] = np.frombuffer(data, kind).tolist()
    if len(numbers) == 1:
        return numbers * count
    if len(numbers) != count:
        raise StorageError(
            f"the learner's figures of a trajectory are {len(numbers)} numbers, expected {count}: one for each "
            "response token; was the trajectory changed after it was learned from?"
        )
    return numbers
