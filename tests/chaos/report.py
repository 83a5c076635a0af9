"""What chaos did to a run and what came of it: whether everything balanced, from what the run itself wrote down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from uirl.storage.trajectories import TrajectorySummary
from uirl.training.record.ledger import Ledger
from uirl.training.record.progress import percent
from uirl.training.record.tally import kinds

BALANCED, UNBALANCED, FAILED = 0, 1, 2
"""Exit statuses."""


@dataclass(slots=True)
class Event:
    """One process that was killed."""

    at: float
    """Seconds after the run had begun."""
    role: str
    name: str
    pid: int
    back_after: float | None = None
    """Seconds until one of the same name was there again; None: it was not, or it was not waited for."""

    def line(self) -> str:
        """Return '  12.3 s  actor actor-1 (pid 77) killed, back after 1.4 s'."""
        back = "not seen again" if self.back_after is None else f"back after {self.back_after:.1f} s"
        name = self.name if self.name.startswith(self.role) else f"{self.role} {self.name}"
        return f"{self.at:6.1f} s  {name} (pid {self.pid}) killed, {back}"


@dataclass(slots=True)
class ChaosReport:
    """The account of a run under chaos."""

    run: str
    seed: int
    seconds: float
    """In which processes were killed."""
    events: list[Event] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    """Role -> kills for which there was no such process."""
    too_late: Counter[str] = field(default_factory=Counter)
    """Role -> kills that the end of the run came before."""
    ended: str = ""
    """Why the run did not come to its end; empty: it did."""
    ledger: Mapping[str, Any] | None = None
    """As in ledger.json; None: there is none."""
    odd_rows: list[str] = field(default_factory=list)
    """Updates whose row of metrics does not balance."""
    below_floor: int = 0
    """Usable episodes of groups that had fewer of them than the floor."""
    sessions_left: dict[str, int | None] = field(default_factory=dict)
    """Address of a server -> sessions on it after the end; None: it did not answer."""
    processes_left: list[str] = field(default_factory=list)
    """Those of the run that were there after its end."""
    success: float | None = None
    stopped_because: str = ""
    """What the run says of its end."""
    target: float | None = None
    """The success that the config wants (`training.stop_at_success`)."""

    def problems(self) -> list[str]:
        """Return what does not balance, in words; none: everything does."""
        found = []
        if self.ledger is None:
            found.append("there is no ledger")
        elif not balances(self.ledger):
            found.append(f"the ledger does not balance: {ledger_line(self.ledger)}")
        found += self.odd_rows[:3]
        dropped = 0 if self.ledger is None else sum(self.ledger["dropped"].values())
        if self.below_floor > dropped:
            found.append(
                f"{self.below_floor} usable episodes were in groups below their floor and only {dropped} were dropped: "
                "the others were learned from"
            )
        left = {url: count for url, count in self.sessions_left.items() if count != 0}
        if left:
            shown = "; ".join(f"{url} {'does not answer' if n is None else f'{n} sessions'}" for url, n in left.items())
            found.append(f"sessions are left on servers: {shown}")
        if self.processes_left:
            found.append(f"{len(self.processes_left)} processes are left: {'; '.join(self.processes_left[:5])}")
        return found

    def status(self) -> int:
        """Return the exit status: 0 everything balanced, 1 it did not, 2 the run failed."""
        if self.ended:
            return FAILED
        return UNBALANCED if self.problems() else BALANCED

    def rows(self) -> dict[str, object]:
        """Return the lines of a table."""
        killed = Counter(event.role for event in self.events)
        left = sum(count or 0 for count in self.sessions_left.values())
        return {
            "killed": kinds(killed) if killed else "nothing",
            "came back": f"{sum(event.back_after is not None for event in self.events)} of {len(self.events)}",
            **({"not there to kill": kinds(self.missed)} if self.missed else {}),
            **({"the run ended before": kinds(self.too_late)} if self.too_late else {}),
            "ledger": "none" if self.ledger is None else ledger_line(self.ledger),
            "usable episodes in groups below floor": self.below_floor,
            "sessions left on servers": f"{left} on {len(self.sessions_left)} servers" if self.sessions_left else "-",
            "processes left behind": len(self.processes_left),
            "success": percent(self.success) + ("" if self.target is None else f", wanted {percent(self.target)}"),
            **({"the run ended because": self.stopped_because} if self.stopped_because else {}),
            "result": self.result(),
        }

    def result(self) -> str:
        """Return the verdict in one line."""
        if self.ended:
            return f"THE RUN FAILED: {self.ended}"
        return "balanced" if self.status() == BALANCED else f"NOT BALANCED: {'; '.join(self.problems())}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = replace(self, missed=Counter(), too_late=Counter())  # `asdict` cannot copy one that counts
        counts = {
            "missed": dict(self.missed),
            "too_late": dict(self.too_late),
            "problems": self.problems(),
            "status": self.status(),
            "result": self.result(),
        }
        return asdict(plain) | counts


def balances(ledger: Mapping[str, Any]) -> bool:
    """Return whether every episode that was ordered stands in one account, and the run says so too."""
    accounts = ledger["trained"] + sum(ledger["dropped"].values()) + sum(ledger["failed"].values())
    return bool(ledger["balanced"]) and ledger["ordered"] == accounts + ledger["in_flight"]


def ledger_line(ledger: Mapping[str, Any]) -> str:
    """Return '512 ordered: 480 trained, 24 dropped (stale 24), 8 failed (environment 8), 0 in flight'."""
    return Ledger.from_dict({**ledger, "in_flight": range(ledger["in_flight"])}).words()


def odd_rows(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return, in words, the updates whose row of metrics does not balance."""
    found = []
    for row in rows:
        if "ledger/ordered" in row:
            ordered, *accounts = (
                row[f"ledger/{name}"] for name in ("ordered", "trained", "dropped", "failed", "in_flight")
            )
            if ordered != sum(accounts):
                found.append(f"update {row.get('step', '?')} does not balance: {ordered:g} ordered, {accounts}")
    return found


def usable_below_floor(episodes: Sequence[TrajectorySummary], floor: int) -> int:
    """Return how many usable training episodes are in groups with fewer of them than `floor`."""
    usable: defaultdict[str, int] = defaultdict(int)
    for episode in episodes:
        if episode.split == "train" and episode.failure is None:
            usable[episode.group_id or episode.id] += 1
    return sum(count for count in usable.values() if count < floor)
