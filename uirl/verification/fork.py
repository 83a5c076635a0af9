"""Where a failed episode left the way of a successful one of the same task: no judge is asked [UI-Voyager, arXiv
2603.24533].

Both show the same screens up to a turn in which they act differently and see different screens next. What the failed
one did before that turn led to a screen from which the task was solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uirl.types import Action, Observation, Trajectory
from uirl.verification.evidence import Evidence, Pictures
from uirl.verification.similarity import ScreenMatcher


@dataclass(frozen=True, slots=True)
class Fork:
    """The turn at which two episodes part."""

    at: int
    """Index in the failed episode; as many turns before it are right."""
    other: int
    """Index of the same screen in the successful episode."""
    successful: str
    """Id of the successful episode."""


class ForkFinder:
    """Compares episodes of one task by their screens; pictures are decoded once."""

    def __init__(self, matcher: ScreenMatcher | None = None, pictures: Pictures | None = None) -> None:
        """`matcher` None: the defaults. `pictures` finds those that episodes name by hash; None: only equal hashes
        are the same."""
        self._matcher, self._pictures = matcher or ScreenMatcher(), pictures

    def find(self, failed: Trajectory, successes: Sequence[Trajectory]) -> Fork | None:
        """Return the fork that leaves the most turns right; None: the episode shares no way with any of `successes`, or
        never leaves it."""
        forks = [fork for one in successes if (fork := self._fork(failed, one)) is not None]
        return max(forks, key=lambda fork: fork.at, default=None)

    def same(self, a: Observation, b: Observation) -> bool:
        """Return whether two observations are the same: by the environment's own key where both have one, else their
        text, tool results and pictures."""
        if a.state_key is not None and b.state_key is not None:
            return a.state_key == b.state_key
        if a.text != b.text or len(a.images) != len(b.images):
            return False
        told = [[(r.name, r.success, r.text) for r in one.tool_results] for one in (a, b)]
        return told[0] == told[1] and all(self._alike(x, y) for x, y in zip(a.images, b.images, strict=True))

    def _fork(self, failed: Trajectory, success: Trajectory) -> Fork | None:
        seen, wanted = screens_of_turns(failed), screens_of_turns(success)
        i = j = 0
        while i < len(failed.turns) and j < len(success.turns):
            if not self.same(seen[i], wanted[j]):
                return None  # the same action led to different screens: nothing follows from one for the other
            alike = same_action(failed.turns[i].action, success.turns[j].action)
            after, other = _at(seen, i + 1), _at(wanted, j + 1)
            if after is None or other is None:
                # the record does not say what came of the last turn
                return None if alike else Fork(i, j, success.id)
            if not alike and self.same(wanted[j], other) and not success.turns[j].done:
                j += 1  # the successful one missed here too, and went on from the same screen
                continue
            if not self.same(after, other) or failed.turns[i].done != success.turns[j].done:
                return None if alike else Fork(i, j, success.id)
            i, j = i + 1, j + 1
        return None

    def _alike(self, a: object, b: object) -> bool:
        if isinstance(a, str) and a == b:
            return True
        finder = Evidence(Trajectory(), pictures=self._pictures)
        first, second = finder.picture(a), finder.picture(b)
        return first is not None and second is not None and self._matcher.same(first, second)


def screens_of_turns(trajectory: Trajectory) -> list[Observation]:
    """Return what the agent saw before each turn and, where it is recorded, after the last."""
    seen = [turn.observation for turn in trajectory.turns]
    return seen if trajectory.final is None else [*seen, trajectory.final]


def same_action(a: Action, b: Action) -> bool:
    """Return whether two actions do the same: equal calls or, where there are none, equal words."""
    if a.tool_calls or b.tool_calls:
        calls = [[(call.name, dict(call.arguments)) for call in action.tool_calls] for action in (a, b)]
        return calls[0] == calls[1]
    return a.text == b.text


def _at(screens: Sequence[Observation], index: int) -> Observation | None:
    return screens[index] if index < len(screens) else None
