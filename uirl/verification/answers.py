"""What a judge has to answer, as JSON of a fixed form; anything else is junk."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from uirl.runtime.limits import InputError, Limits, clip, read_json
from uirl.runtime.wire import WireAnswer, WireError
from uirl.thoughts import split_thought
from uirl.verification.outcome import Outcome

_LIMITS = Limits(size=2**16, items=2000, depth=8)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_REFUSAL = re.compile(
    r"\W{0,3}(i'?m sorry|sorry[,.]|i can(?:'|no)?t |i am (?:unable|not able)|i'm unable|as an ai\b)", re.I
)

Short = Annotated[str, Field(max_length=2000)]


class KeyPoints(WireAnswer):
    """What must hold for a goal to be reached."""

    key_points: Annotated[list[Short], Field(min_length=1, max_length=12)]


class ScreenScore(WireAnswer):
    """How much one screenshot says about the key points."""

    screen: int
    score: Annotated[int, Field(ge=1, le=5)]


class ScreenScores(WireAnswer):
    """Of all screenshots that were shown."""

    scores: Annotated[list[ScreenScore], Field(max_length=100)]


class PointFound(WireAnswer):
    """One key point."""

    point: Short
    met: Literal["yes", "no", "unsure"]
    evidence: Short = ""


class Judgement(WireAnswer):
    """What a judge found: process apart from outcome, what the agent could not control apart from its mistakes
    [Universal Verifier, arXiv 2604.06240]."""

    key_points: Annotated[list[PointFound], Field(max_length=20)]
    process: Annotated[float, Field(ge=0, le=1, strict=False)]
    """How sensibly the agent went about it, whatever came of it."""
    mistakes: Short = ""
    """What the agent did wrong."""
    obstacle: Literal["none", "environment", "task"] = "none"
    """What the agent could not control and what made the goal impossible: a broken page, a captcha, a goal that cannot
    be reached."""
    outcome: Literal["success", "failure", "unclear"]
    reason: Short

    @property
    def vote(self) -> Outcome:
        """Success where every key point is met, failure, or unknown: it says so, contradicts itself, or claims a
        success of which it shows no key point."""
        if self.outcome == "success" and self.key_points and all(point.met == "yes" for point in self.key_points):
            return Outcome.PASSED
        return Outcome.FAILED if self.outcome == "failure" else Outcome.UNKNOWN


class Progress(WireAnswer):
    """What a judge says of the beginning of an episode."""

    mistakes: Short = ""
    """What the agent did wrong until there."""
    on_track: Literal["yes", "no", "unclear"]
    """Whether all steps until there were right, and the goal can still be reached."""
    reason: Short

    @property
    def vote(self) -> Outcome:
        """Passed where every step was right."""
        return {"yes": Outcome.PASSED, "no": Outcome.FAILED, "unclear": Outcome.UNKNOWN}[self.on_track]


class WouldNotJudge(ValueError):
    """The judge would not answer."""


A = TypeVar("A", bound=WireAnswer)


def read_answer(model: type[A], text: str) -> A:
    """Return the answer in a reply: one JSON object, which may follow a thought or stand in a code fence.
    An object somewhere in other words does not count: it may be quoted from what is judged. Raises WouldNotJudge, and
    ValueError for junk."""
    said = text.strip()
    if not said.startswith(("{", "```")):  # inside the object a thought may be quoted from what is judged
        said = split_thought(said)[1].strip()
    fenced = _FENCED.fullmatch(said)
    try:
        return model.read(read_json(fenced[1] if fenced else said, _LIMITS, "the answer"), "the answer")
    except (InputError, WireError) as error:
        if _REFUSAL.match(said):
            raise WouldNotJudge(clip(said, 120)) from None
        raise ValueError(f"{clip(str(error), 160)}; it said {clip(said, 120)!r}") from None
