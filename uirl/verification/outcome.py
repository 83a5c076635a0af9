"""Three answers and how they are combined: passed, failed, and unknown, which is neither."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


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
