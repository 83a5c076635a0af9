"""Three answers and how they are combined: passed, failed, and unknown, which is neither.

Several votes of one judge (self-consistency) are combined too: the majority counts, and a tie is an abstention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from uirl.errors import JudgeFailure


class Outcome(Enum):
    """What a verifier says of an episode."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @staticmethod
    def of(passed: bool | None) -> Outcome:
        """Return the outcome of a plain answer; None: unknown."""
        return Outcome.UNKNOWN if passed is None else Outcome.PASSED if passed else Outcome.FAILED

    @property
    def passed(self) -> bool | None:
        """True, False, or None where it is unknown."""
        return {Outcome.PASSED: True, Outcome.FAILED: False, Outcome.UNKNOWN: None}[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """An outcome and why."""

    outcome: Outcome
    reason: str = ""


def all_of(findings: Sequence[Finding]) -> Finding:
    """Return the conjunction of three-valued answers (Kleene's strong logic): one that failed decides, else one that is
    unknown."""
    return _decided(findings, (Outcome.FAILED, Outcome.UNKNOWN), Outcome.PASSED)


def any_of(findings: Sequence[Finding]) -> Finding:
    """Return the disjunction (Kleene): one that passed decides, else one that is unknown."""
    return _decided(findings, (Outcome.PASSED, Outcome.UNKNOWN), Outcome.FAILED)


def not_of(finding: Finding) -> Finding:
    """Return the negation: what is unknown stays unknown."""
    passed = finding.outcome.passed
    return Finding(Outcome.of(None if passed is None else not passed), f"not ({finding.reason})")


def _decided(findings: Sequence[Finding], deciding: Iterable[Outcome], rest: Outcome) -> Finding:
    for outcome in deciding:
        reasons = [finding.reason for finding in findings if finding.outcome is outcome]
        if reasons:
            return Finding(outcome, "; ".join(reasons))
    return Finding(rest, "; ".join(finding.reason for finding in findings))


# -- votes ------------------------------------------------------------------------------------------------------------


class Ballot(Protocol):
    """An answer of a judge that is a vote."""

    @property
    def vote(self) -> Outcome:
        """What it says."""
        ...


B = TypeVar("B", bound=Ballot)


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
    return Votes(*(list(votes).count(kind) for kind in (Outcome.PASSED, Outcome.FAILED, Outcome.UNKNOWN, None)))


async def poll(ask: Callable[[int], Awaitable[B]], wanted: int) -> list[B | None]:
    """Return the answers to `ask(number of the vote)`, at most `wanted`; None: unreadable. As soon as the rest can
    change nothing it is not asked. Raises the newest JudgeFailure where answers that cannot be read leave it open."""
    answers: list[B | None] = []
    failure: JudgeFailure | None = None
    while len(answers) < wanted:
        votes = _counted(answers)
        left = wanted - len(answers)
        if answers and votes.settled(left):
            break
        # as many at once as the outcome needs at least
        ahead = min(left, max(1, wanted // 2 + 1 - max(votes.passed, votes.failed)))
        asked = [_answer(ask, len(answers) + i) for i in range(ahead)]
        for said in await asyncio.gather(*asked):
            failure = said if isinstance(said, JudgeFailure) else failure
            answers.append(None if isinstance(said, JudgeFailure) else said)
    if failure is not None and _counted(answers).outcome is Outcome.UNKNOWN:
        raise failure
    return answers


def _counted(answers: Sequence[Ballot | None]) -> Votes:
    return count_votes([None if answer is None else answer.vote for answer in answers])


async def _answer(ask: Callable[[int], Awaitable[B]], number: int) -> B | JudgeFailure:
    try:
        return await ask(number)
    except JudgeFailure as failure:
        return failure
