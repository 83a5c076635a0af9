"""Self-consistency: several votes of one judge, of which the majority counts and a tie is an abstention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uirl.verification.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Votes:
    """How often a judge said what about one episode."""

    passed: int = 0
    failed: int = 0
    unclear: int = 0
    """It answered that it cannot tell, or contradicted itself."""
    unreadable: int = 0
    """No answer: junk, a refusal, a time-out."""

    @property
    def asked(self) -> int:
        return self.passed + self.failed + self.unclear + self.unreadable

    @property
    def outcome(self) -> Outcome:
        """The majority of the votes that say yes or no. Unknown, which is an abstention: a tie, no such vote, or fewer
        than half of those asked."""
        if self.passed == self.failed or 2 * (self.passed + self.failed) < self.asked:
            return Outcome.UNKNOWN
        return Outcome.of(self.passed > self.failed)

    def settled(self, left: int) -> bool:
        """Return whether `left` more votes can change nothing, whatever they say."""
        lead = abs(self.passed - self.failed)
        return lead > left and 2 * (self.passed + self.failed) >= self.asked + left

    def __str__(self) -> str:
        parts = ((self.passed, "passed"), (self.failed, "failed"), (self.unclear, "unclear"), (self.unreadable, "none"))
        return ", ".join(f"{count} {word}" for count, word in parts if count) or "no votes"


def count_votes(votes: Sequence[Outcome | None]) -> Votes:
    """Return the count of single votes; None: unreadable."""
    kinds = list(votes)
    return Votes(
        kinds.count(Outcome.PASSED), kinds.count(Outcome.FAILED), kinds.count(Outcome.UNKNOWN), kinds.count(None)
    )
