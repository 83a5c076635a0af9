"""Whether the right beginnings that were found are right: played again, one after another, on one instance."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import RolloutFailure
from uirl.rollout.replay import Certificate, certify_prefix
from uirl.types import Trajectory
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import PrefixFinding


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
