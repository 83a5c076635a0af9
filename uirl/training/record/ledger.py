"""The ledger: every episode that was ordered ends in exactly one account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Self

from uirl.errors import LedgerError
from uirl.runtime.limits import clip
from uirl.training.record.tally import kinds

LEDGER = "ledger.json"
"""File of a run directory: the ledger as it was after the newest update."""


@dataclass(slots=True)
class Ledger:
    """Accounts of the training episodes of a run: trained, dropped (why), failed (kind), in flight.

    An episode is known by its id from the order to the account it ends in, so that none can be booked twice or lost.
    The repeated attempts at one are not booked again. Evaluations, demonstrations and controls are not ordered here.
    """

    ordered: int = 0
    trained: int = 0
    """Episodes of updates that took a step."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Why an episode was not learned from -> how many."""
    failed: Counter[str] = field(default_factory=Counter)
    """Kind of the failure -> episodes that failed for good."""
    in_flight: set[str] = field(default_factory=set)
    """Ids of the episodes that are ordered, under way, or played and waiting."""

    def order(self, ids: Iterable[str]) -> None:
        """Note that episodes were ordered. Raises LedgerError for one that is in flight already."""
        for id in ids:
            if id in self.in_flight:
                raise LedgerError(f"episode {clip(id, 80)} was ordered twice; expected ids that no run has had before")
            self.in_flight.add(id)
            self.ordered += 1

    def train(self, ids: Iterable[str]) -> None:
        """Note that an update took a step on episodes."""
        self.trained += self._settle(ids, "trained")

    def drop(self, ids: Iterable[str], reason: str) -> None:
        """Note that nothing is learned from episodes, and why."""
        count = self._settle(ids, f"dropped ({reason})")
        if count:
            self.dropped[reason] += count

    def fail(self, id: str, kind: str) -> None:
        """Note that an episode failed for good."""
        self.failed[kind] += self._settle([id], f"failed ({kind})")

    def _settle(self, ids: Iterable[str], account: str) -> int:
        count = 0
        for id in ids:
            if id not in self.in_flight:
                raise LedgerError(
                    f"episode {clip(id, 80)} cannot be booked as {account}: it is not in flight. It was never ordered, "
                    "or it stands in another account already"
                )
            self.in_flight.remove(id)
            count += 1
        return count

    @property
    def settled(self) -> int:
        """Episodes in every account but in flight."""
        return self.trained + self.dropped.total() + self.failed.total()

    def require_balance(self, held: Set[str]) -> None:
        """Raise LedgerError with the difference, unless every episode ordered is in one account and those in flight are
        the ones `held`: by the channel, or waiting for an update."""
        missing = self.ordered - self.settled - len(self.in_flight)
        lost, foreign = self.in_flight - held, held - self.in_flight
        if not (missing or lost or foreign):
            return
        parts = [f"{self.words()}; {missing:+d} episodes are in no account" if missing else self.words()]
        if lost:
            parts.append(f"{len(lost)} in flight are held by nobody, such as {clip(min(lost), 80)}")
        if foreign:
            parts.append(f"{len(foreign)} are held and not in flight, such as {clip(min(foreign), 80)}")
        raise LedgerError(f"the ledger does not balance: {'; '.join(parts)}")

    def words(self) -> str:
        """Return '512 ordered: 480 trained, 24 dropped (stale 24), 8 failed (environment 8), 0 in flight'."""
        dropped = f" ({kinds(self.dropped)})" if self.dropped else ""
        failed = f" ({kinds(self.failed)})" if self.failed else ""
        return (
            f"{self.ordered} ordered: {self.trained} trained, {self.dropped.total()} dropped{dropped}, "
            f"{self.failed.total()} failed{failed}, {len(self.in_flight)} in flight"
        )

    def row(self) -> dict[str, float]:
        """Return what the metrics of an update say."""
        row: dict[str, float] = {
            "ledger/ordered": self.ordered,
            "ledger/trained": self.trained,
            "ledger/dropped": self.dropped.total(),
            "ledger/failed": self.failed.total(),
            "ledger/in_flight": len(self.in_flight),
        }
        accounts = (("dropped", self.dropped), ("failed", self.failed))
        return row | {
            f"ledger/{name}/{why.replace(' ', '_')}": float(count)
            for name, account in accounts
            for why, count in sorted(account.items())
        }

    def report(self) -> dict[str, Any]:
        """Return what ledger.json and the summary say."""
        in_flight = len(self.in_flight)
        return self.to_dict() | {"in_flight": in_flight, "balanced": self.ordered == self.settled + in_flight}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, from which `from_dict` makes an equal ledger."""
        return {
            "ordered": self.ordered,
            "trained": self.trained,
            "dropped": dict(sorted(self.dropped.items())),
            "failed": dict(sorted(self.failed.items())),
            "in_flight": sorted(self.in_flight),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_dict`."""
        return cls(
            values["ordered"],
            values["trained"],
            Counter(values["dropped"]),
            Counter(values["failed"]),
            set(values["in_flight"]),
        )
