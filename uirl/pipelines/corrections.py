"""Corrections at a fork: what a solved episode did there, in the context of the failed one [UI-Voyager, arXiv
2603.24533]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from uirl.pipelines.selection import Example, candidate_of, correction_of
from uirl.storage import TrajectoryStore, TrajectorySummary
from uirl.types import Trajectory, Turn
from uirl.verification.prefixes import fork_of
from uirl.verification.similarity import ScreenMatcher


def corrected(failed: Trajectory, at: int, solved: Turn) -> Trajectory:
    """Return the first `at` turns of a failed episode and then, in its own context, the reply of a solved one, token
    for token. Nobody sampled it there, so it has no log-probs: it can be imitated and nothing else."""
    turn = replace(
        failed.turns[at],
        response_ids=solved.response_ids,
        rollout_log_probs=(),
        action=solved.action,
        finish_reason=solved.finish_reason,
        reward=0.0,
        terminated=False,
        truncated=False,
        info={},
        tool_results=(),
    )
    return replace(failed, turns=[*failed.turns[:at], turn], final=None, stop_reason="truncated", metrics={})


def candidates(store: TrajectoryStore, matcher: ScreenMatcher, *, corrections: bool) -> Iterator[Example | str]:
    """Yield what each training episode of a round has to learn from, or why it has nothing. With `corrections` a
    beginning that ends at a fork has the solved episode's turn behind it."""
    groups: dict[tuple[str, str], list[TrajectorySummary]] = defaultdict(list)
    for one in store.list(split="train"):
        groups[one.task_id, one.group_id].append(one)
    for group in groups.values():
        solved = [store.get(one.id) for one in group if one.success and one.failure is None] if corrections else []
        for one in group:
            record = store.get(one.id)
            found = candidate_of(record)
            if isinstance(found, Example) and found.kind == "beginning":
                yield _with_correction(record, found, solved, matcher)
            else:
                yield found


def view_of(store: TrajectoryStore, example: Example, record: Trajectory) -> Trajectory:
    """Return the turns of an example, as a record of their own; `record` is its episode."""
    if example.kind != "correction":
        return record.prefix(example.turns)
    return corrected(record, example.turns - 1, store.get(example.other).turns[example.other_turn])


def _with_correction(
    failed: Trajectory, beginning: Example, solved: list[Trajectory], matcher: ScreenMatcher
) -> Example:
    fork = fork_of(failed, solved, matcher)
    if fork is None or fork.other is None or fork.other_turn is None or fork.right != beginning.turns:
        return beginning  # the judge found it
    turn = next(one for one in solved if one.id == fork.other).turns[fork.other_turn]
    if not turn.response_ids:
        return beginning
    return correction_of(beginning, corrected(failed, fork.right, turn), fork.other, fork.other_turn)
