"""How many episodes are no evidence, and how much that could change what a run says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Self

from uirl.success import is_silent
from uirl.types import Trajectory

NOTEWORTHY = 0.05
"""A larger share of attempts that are no evidence is told where a run or an evaluation ends."""


@dataclass(slots=True)
class Tally:
    """Counts episodes: those that are evidence, those that are excluded because environment, engine or judge failed or
    because their group did not wait for them, and the failed attempts that were repeated."""

    episodes: int = 0
    """Episodes ordered; repeated attempts are not counted again."""
    judged: int = 0
    """Episodes of which is known whether they succeeded."""
    wins: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    """Kind of failure -> episodes that failed for good, and 'surplus' or 'straggler' -> those that were given up: in no
    success rate and no advantage."""
    failed_attempts: Counter[str] = field(default_factory=Counter)
    """Kind of failure -> attempts that failed and were repeated."""
    silent: Counter[str] = field(default_factory=Counter)
    """Environment -> episodes that ended without a word of whether they are solved: see `settle`."""

    def add(
        self,
        played: Sequence[Trajectory],
        attempts: Sequence[Trajectory] = (),
        given_up: Mapping[str, int] | None = None,
    ) -> None:
        """Count the episodes ordered as they ended, the attempts before that, and reason -> episodes given up."""
        dropped = Counter(given_up or {})
        self.episodes += len(played) + dropped.total()
        self.excluded += dropped
        self.excluded.update(t.failure.kind for t in played if t.failure is not None)
        self.failed_attempts.update(t.failure.kind for t in attempts if t.failure is not None)
        successes = [t.success for t in played if t.failure is None and t.success is not None]
        self.judged += len(successes)
        self.wins += sum(map(bool, successes))
        self.silent.update(t.task.environment for t in played if is_silent(t))

    def settle(self, speakers: Set[str]) -> None:
        """Count the silent episodes of `speakers`, the environments that were heard since, as unsolved."""
        for name in speakers & self.silent.keys():
            self.judged += self.silent.pop(name)

    @property
    def evidence(self) -> int:
        """Episodes that are evidence."""
        return self.episodes - self.excluded.total()

    @property
    def unseen(self) -> int:
        """Attempts that are no evidence: episodes excluded, and attempts that failed and were repeated."""
        return self.excluded.total() + self.failed_attempts.total()

    @property
    def share_unseen(self) -> float:
        """Share of the attempts that are no evidence."""
        attempts = self.episodes + self.failed_attempts.total()
        return self.unseen / attempts if attempts else 0.0

    @property
    def noteworthy(self) -> bool:
        """Whether so many attempts are no evidence that the end of the output says so."""
        return self.share_unseen > NOTEWORTHY

    @property
    def success(self) -> float | None:
        """Share of solved episodes among the evidence; None: nobody says what success is."""
        return self.wins / self.judged if self.judged else None

    @property
    def success_if_lost(self) -> float | None:
        """`success` at worst, if every attempt that is no evidence counted as lost: wins / (judged + excluded + failed
        attempts). An episode that is played again until it is evidence is one that may have been lost before. None as
        `success`."""
        return self.wins / (self.judged + self.unseen) if self.judged else None

    def judged_words(self) -> str:
        """Return '12 of 13 judged', what stands beside a success, and ', at worst 41.2 %' where attempts are unseen."""
        worst = self.success_if_lost if self.unseen else None
        return f"{self.judged} of {self.evidence} judged" + ("" if worst is None else f", at worst {100 * worst:.1f} %")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, from which `from_dict` makes an equal one."""
        return {
            "episodes": self.episodes,
            "judged": self.judged,
            "wins": self.wins,
            "excluded": dict(sorted(self.excluded.items())),
            "failed_attempts": dict(sorted(self.failed_attempts.items())),
            "silent": dict(sorted(self.silent.items())),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_dict`."""
        counters = {name: Counter(values.get(name, {})) for name in ("excluded", "failed_attempts", "silent")}
        return cls(values["episodes"], values["judged"], values["wins"], **counters)

    def report(self) -> dict[str, Any]:
        """Return what a summary says."""
        counts = {name: value for name, value in self.to_dict().items() if name not in ("wins", "silent")}
        return counts | {"success": self.success, "success_if_excluded_were_lost": self.success_if_lost}

    def words(self) -> str:
        """Return '3 of 256 (1.2 %): engine 2, timeout 1; and 1 failed attempt of 257; success 93.0 %, at worst 91.5
        %'."""
        if not self.unseen:
            return f"0 of {self.episodes}"
        count, repeated = self.excluded.total(), self.failed_attempts.total()
        share = 100 * count / self.episodes if self.episodes else 0.0
        text = f"{count} of {self.episodes}" + (f" ({share:.1f} %): {kinds(self.excluded)}" if count else "")
        if repeated:
            text += f"; and {repeated} failed and repeated ({100 * self.share_unseen:.1f} % of all attempts are unseen)"
        if self.success is not None and self.success_if_lost is not None:
            text += f"; success {100 * self.success:.1f} %, at worst {100 * self.success_if_lost:.1f} %"
        return text


def kinds(counts: Mapping[str, int]) -> str:
    """Return 'engine 2, timeout 1'."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def tally_of(played: Sequence[Trajectory], attempts: Sequence[Trajectory] = ()) -> Tally:
    """Return the tally of some episodes."""
    tally = Tally()
    tally.add(played, attempts)
    return tally
