"""Episodes played again: whether a beginning is what its record says, and new episodes that start behind one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import RolloutFailure
from uirl.inference.base import SamplingParams
from uirl.rollout.conversation import Context
from uirl.rollout.episode import Agent, Response
from uirl.types import Observation, StepResult, Trajectory, Turn
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import PrefixFinding

Same = Callable[[Observation, Observation], bool]
"""Whether two observations are the same (`uirl.verification.fork.ForkFinder.same`)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What playing the beginning of an episode again has shown."""

    certified: bool
    reason: str


async def certify_prefix(
    session: EnvironmentSession, trajectory: Trajectory, turns: int, same: Same, rest: Sequence[Turn] = ()
) -> Certificate:
    """Play the first `turns` turns of an episode again, and then the turns `rest` of a successful one, which are to
    solve the task from there.

    Certified are turns after which the environment shows what it showed then, at every turn, and from where `rest`
    leads to success; without `rest` they are only repeatable. Raises RolloutFailure where the environment fails, and
    ValueError for turns that the record does not have.
    """
    record = trajectory.prefix(turns)
    if turns == 0:
        return Certificate(False, "no turn is right, so there is nothing to play again")
    if trajectory.seed is None and trajectory.task.seed is None and not session.env.fixed_start:
        return Certificate(False, "not played again: the instance has no seed")
    expected = [turn.observation for turn in trajectory.turns]
    if trajectory.final is not None:
        expected.append(trajectory.final)
    seen = await session.reset(trajectory.task, trajectory.seed)
    for index, turn in enumerate(record.turns):
        if not same(seen, expected[index]):
            return Certificate(False, f"played again, the screen before turn {index} is another")
        result = await session.step(turn.action)
        seen = result.observation
        if result.done != turn.done:
            word = "goes on" if turn.done else "ends"
            return Certificate(False, f"played again, the episode {word} after turn {index}")
    if turns < len(expected) and not same(seen, expected[turns]):
        return Certificate(False, f"played again, the screen after turn {turns - 1} is another")
    if not rest or record.turns[-1].done:
        return Certificate(not rest, f"played again, {turns} turns show the same screens")
    return await _go_on(session, rest)


async def _go_on(session: EnvironmentSession, rest: Sequence[Turn]) -> Certificate:
    result: StepResult | None = None
    for index, turn in enumerate(rest):
        result = await session.step(turn.action)
        if result.done and index < len(rest) - 1:
            break
    said = None if result is None else result.observation.info.get("success")
    if said is None:
        return Certificate(
            False, "played again to its end, but the environment does not say whether that solves the task"
        )
    if not said:
        return Certificate(False, "played again, the way of the successful episode does not solve the task from there")
    return Certificate(True, "played again, the successful episode's way solves the task from there")


class ReplayAgent(Agent):
    """Gives the replies of recorded turns, token for token, and then leaves the episode to another agent.

    What was sampled then keeps the log-probs and the policy version that it was sampled with.
    """

    def __init__(self, turns: Sequence[Turn], then: Agent) -> None:
        self._turns, self._then, self._said = list(turns), then, 0

    @property
    def sampling(self) -> SamplingParams | None:
        return self._then.sampling

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        if self._said == len(self._turns):
            return await self._then.act(context, session, seed, max_tokens)
        turn = self._turns[self._said]
        self._said += 1
        return Response(turn.response_ids, turn.rollout_log_probs, turn.finish_reason, turn.policy_version)

    def finished(self) -> None:
        self._then.finished()


@dataclass(slots=True)
class Certifier:
    """Plays beginnings again on one instance after another, and opens a new one where one broke."""

    environment: BaseEnvironment
    finder: ForkFinder
    step_timeout: float
    reset_timeout: float
    session: EnvironmentSession | None = None

    async def certify(
        self, failed: Trajectory, found: PrefixFinding, successes: Sequence[Trajectory]
    ) -> tuple[PrefixFinding, bool]:
        """Return the finding with what playing it again has shown, and whether that certifies it."""
        other = next((one for one in successes if one.id == found.other), None)
        rest = () if other is None or found.other_turn is None else other.turns[found.other_turn :]
        try:
            if self.session is None or self.session.broken:
                await self.close()
                self.session = EnvironmentSession(self.environment.spawn(), self.step_timeout, self.reset_timeout)
            said = await certify_prefix(self.session, failed, found.right, self.finder.same, rest)
        except RolloutFailure as failure:
            said = Certificate(False, f"it could not be played again ({failure.kind}: {failure})")
        return replace(found, reason=f"{found.reason}; {said.reason}"), said.certified

    async def close(self) -> None:
        """Close the instance."""
        session, self.session = self.session, None
        if session is not None:
            with suppress(RolloutFailure):  # it broke, which is why it goes
                await session.close()
