"""How many turns of a failed episode were right: by bisection with the judge, or by fork from a successful one.

A right beginning is worth something where the whole is not: it can be learned from, new episodes can start behind it
(`uirl.rollout.replay`), and its turns need not be blamed for what came after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from uirl.errors import ConfigError, JudgeFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.types import Trajectory, Turn, Verdict
from uirl.verification.evidence import Evidence, Pictures
from uirl.verification.fork import ForkFinder
from uirl.verification.hybrid import judge_named
from uirl.verification.judge import Judge
from uirl.verification.outcome import Outcome
from uirl.verification.similarity import ScreenMatcher

ABSTENTIONS = 3
"""So many turns of one episode may be passed over because the judge abstains there."""

BEGINNING = "; its beginning: "
"""In the reason of a verdict: what follows was said of the beginning of the episode."""


@dataclass(frozen=True, slots=True)
class PrefixFinding:
    """What is known of how far an episode was right."""

    right: int
    """Turns that are known to be right, from the first on; 0: none is."""
    wrong: int | None
    """The fewest turns that are known to hold a mistake; None: no mistake is known."""
    by: Literal["outcome", "judge", "fork", "nobody"]
    """Who says so; 'outcome': the task was solved."""
    reason: str
    other: str | None = None
    """Of a fork: id of the successful episode."""
    other_turn: int | None = None
    """Of a fork: the turn at which the successful episode stood before the same screen."""

    @property
    def error_step(self) -> int | None:
        """Index of the first wrong turn; None: there is none, or it is not known which."""
        return self.right if self.wrong == self.right + 1 else None

    def verdict_on(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict of the record with what was found; score and verifier stay what they were."""
        known = trajectory.verdict
        if known is None:
            passed = bool(trajectory.success)
            known = Verdict(float(passed), passed, "the environment's word", "environment")
        earlier = known.reason.partition(BEGINNING)[0]  # found again, it is said once
        return replace(
            known,
            reason=f"{earlier}{BEGINNING}{self.reason}",
            correct_prefix=None if self.by == "nobody" else self.right,
        )


class FineGrainedTrajectoryAnalyzer:
    """Finds the first wrong turn of failed episodes.

    With `successes` of the same task at hand no judge is asked: the failed episode was right up to where it left the
    way of a successful one (`uirl.verification.fork`). Else the judge is asked about beginnings of the episode, and
    halves the turns in which the first mistake can be. An abstention is no answer: another turn near it is asked. Nor
    is a failure of the judge: what is known until then is the result, and its reason says what is not.
    """

    def __init__(
        self,
        judge_model: str | Judge | None = None,
        extract_correct_prefix: bool = True,
        *,
        matcher: ScreenMatcher | None = None,
    ) -> None:
        """Set up; nobody is asked yet.

        Args:
            judge_model: Name of a model on the server in `UIRL_LLM_BASE_URL` (not set: OpenAI's, with the key in
                `OPENAI_API_KEY`), or a `Judge`; None: forks alone.
            extract_correct_prefix: `analyze_and_extract` returns the right beginning as a record of its own; false: it
                only says where the error is.
            matcher: When screens are the same; None: the defaults.
        """
        self.judge = judge_named(judge_model) if isinstance(judge_model, str) else judge_model
        self.extract_correct_prefix = extract_correct_prefix
        self.matcher = matcher or ScreenMatcher()
        self._loop: EventLoopThread | None = None

    def analyze_and_extract(
        self, task_goal: str, trajectory: Trajectory, successes: Sequence[Trajectory] = ()
    ) -> tuple[Trajectory | None, int | None]:
        """Return (correct prefix, error step) of an episode.

        The prefix holds the turns that are known to be right: all of them where the task was solved, no turn where the
        first was wrong; None without `extract_correct_prefix`. The error step is the index of the first wrong turn;
        None: no turn is wrong or, where the prefix is not the whole, nobody could say which. Raises JudgeFailure where
        nothing is known.
        """
        if self._loop is None:
            self._loop = EventLoopThread("uirl-analyzer")
        task = replace(trajectory.task, goal=task_goal)
        found = self._loop.run(self.analyze(Evidence(replace(trajectory, task=task)), successes))
        if found.by == "nobody":
            raise JudgeFailure(found.reason)
        prefix = trajectory.prefix(found.right) if self.extract_correct_prefix else None
        return prefix, found.error_step

    async def analyze(self, evidence: Evidence, successes: Sequence[Trajectory] = ()) -> PrefixFinding:
        """Return what is known of an episode; `by` is 'nobody' where nothing is. `successes` are solved episodes of the
        same task and instance, with pictures where `evidence` has them."""
        record = evidence.trajectory
        if record.success:
            return PrefixFinding(len(record), None, "outcome", "the task was solved")
        found = fork_of(record, successes, self.matcher, evidence.pictures)
        if found is not None or self.judge is None:
            return found or PrefixFinding(
                0, None, "nobody", "no successful episode shares its way, and no judge is asked"
            )
        return await bisect(self.judge, evidence)

    async def close(self) -> None:
        """Close the connections to the judge's server."""
        if self.judge is not None:
            await self.judge.close()


def fork_of(
    failed: Trajectory, successes: Sequence[Trajectory], matcher: ScreenMatcher, pictures: Pictures | None = None
) -> PrefixFinding | None:
    """Return how far a failed episode went the way of one of `successes`; None: they show nothing of it. Raises
    ConfigError for a success of another task or instance."""
    for one in successes:
        if (one.task.id, one.seed) != (failed.task.id, failed.seed):
            raise ConfigError(
                f"{one.id} plays {one.task.id!r} with seed {one.seed}, and {failed.id} {failed.task.id!r} with seed "
                f"{failed.seed}; forks compare episodes of one instance"
            )
    fork = ForkFinder(matcher, pictures).find(failed, successes)
    if fork is None:
        return None
    reason = f"fork: the same screens as {fork.successful}, which then acted differently at turn {fork.at}"
    return PrefixFinding(fork.at, fork.at + 1, "fork", reason, fork.successful, fork.other)


async def bisect(judge: Judge, evidence: Evidence) -> PrefixFinding:
    """Return how far an unsolved episode was right, as the judge says, in about log2(turns) questions.

    It relies on mistakes that stay mistakes: a beginning that holds one is never right again.
    """
    record = evidence.trajectory
    right, wrong, reason = 0, len(record) + 1, ""
    silent: set[int] = set()
    while open_ := [n for n in range(right + 1, wrong) if n not in silent]:
        middle = min(open_, key=lambda n: abs(2 * n - right - wrong))
        try:
            said = await judge.progress(replace(evidence, trajectory=record.prefix(middle)))
        except JudgeFailure as failure:
            return _as_far_as_known(record, right, wrong, str(failure))
        if said.outcome is Outcome.UNKNOWN:
            silent.add(middle)
            if len(silent) >= ABSTENTIONS:
                break
        elif said.outcome is Outcome.PASSED:
            right = middle
        else:
            wrong, reason = middle, said.reason
    if wrong - right > 1:
        turns = ", ".join(map(str, sorted(silent)))
        return _as_far_as_known(record, right, wrong, f"the judge abstains at {turns} turns")
    if wrong > len(record):
        return PrefixFinding(right, None, "judge", "the judge finds no wrong turn; the episode ended too early")
    return PrefixFinding(right, wrong, "judge", f"the judge finds turn {right} wrong: {reason}")


def step_rewards(
    trajectory: Trajectory, finding: PrefixFinding, *, right: float = 1.0, wrong: float = 0.0
) -> list[float]:
    """Return a reward for each turn, for estimators with credit per turn ('turn_level', 'gigpo') and for 'gae': the
    turns that are known to be right share `right` equally by the length of the episode, the error step gets `wrong`,
    all others 0. A solved episode has `right` in all."""
    share = right / max(1, len(trajectory))
    rewards = [share if i < finding.right else 0.0 for i in range(len(trajectory))]
    if finding.error_step is not None and finding.error_step < len(rewards):
        rewards[finding.error_step] += wrong
    return rewards


def with_step_rewards(trajectory: Trajectory, rewards: Sequence[float]) -> Trajectory:
    """Return the record with these rewards of its turns. Raises ValueError for another number of them."""
    if len(rewards) != len(trajectory):
        raise ValueError(f"got {len(rewards)} rewards, expected one for each of {len(trajectory)} turns")
    turns: list[Turn] = [replace(turn, reward=r) for turn, r in zip(trajectory.turns, rewards, strict=True)]
    return replace(trajectory, turns=turns)


def _as_far_as_known(record: Trajectory, right: int, wrong: int, why: str) -> PrefixFinding:
    known = None if wrong > len(record) else wrong
    if right == 0 and known is None:
        return PrefixFinding(0, None, "nobody", why)
    bound = f"not more than {wrong - 1}" if known is not None else "perhaps all"
    return PrefixFinding(right, known, "judge", f"{right} turns are right, {bound}; the rest is not known: {why}")
