"""Supervised learning on demonstrations, until the policy succeeds often enough for reinforcement learning to start."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uirl.algorithms import at_most
from uirl.config.sections.training import WarmStartConfig
from uirl.errors import ActorFailure, EnvironmentFailure
from uirl.images import Screenshot
from uirl.metrics import plain_row
from uirl.rollout.collector import EpisodePlayer
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.rollout.players import Order
from uirl.rollout.samples import samples_of_all
from uirl.success import settle_outcomes
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.interrupt import Interrupt
from uirl.training.record.instances import fingerprints_of, packed, unpacked
from uirl.training.record.progress import doing, playing, say, tell_progress
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Sample, Trajectory

HELD = 2**30
"""Bytes of pictures, as they were captured, from which no new demonstrations are made: all of them stay in memory."""
LOST = 3
"""Times that demonstrations are played again whose actor was lost, beside the attempts that every episode has."""


class Demonstrations:
    """Episodes of the environment's demonstrator as samples, made when they are needed.

    The first `size` are new, or fewer where their pictures take `HELD` bytes; from then on batches are drawn from those
    that were made. They are functions of the seed and their number, so that a run which goes on needs no more than how
    many there were.
    """

    def __init__(
        self, parts: Assembly, channel: Channel, size: int, seed: int, speakers: set[str] | None = None
    ) -> None:
        """Have `size` demonstrations played by the actors of `channel`; `speakers`: see `report_on`."""
        self._speakers = set() if speakers is None else speakers
        self._parts, self._channel, self._size, self._seed = parts, channel, size, seed
        self._tasks = self._from_the_first()
        self._samples: list[Sample] = []
        self._pictures: dict[str, Screenshot] = {}  # of what was made: held, the store may not lose them
        self._missing = 0
        self._then = (0, 0)
        """Of the missing ones: how many failed, how many succeeded."""
        self._longest = 0
        """Tokens of a reply of which it was said that the policy has no room for it; 0: of none."""
        self._full = False
        """Their pictures have no more room."""
        self._rng = random.Random(derive_seed(seed, "demonstrations"))
        self.episodes = 0
        """That were played, those that failed included."""
        self.failed = 0
        self.successes = 0
        self.trained: set[str] = set()
        """Fingerprints of their instances."""

    async def batch(self, count: int) -> list[Sample]:
        """Return `count` demonstrations, fewer where some failed: those are left out. Raises EnvironmentFailure once
        more than half of all failed."""
        if self._full or self.episodes >= self._size:
            await self._make_again()
            return self._rng.sample(self._samples, min(count, len(self._samples)))
        count = min(count, self._size - self.episodes)
        played = await self._play(self._tasks, count)
        self.episodes += count
        self._note(played)
        samples = _samples_of(played)
        self._samples += samples
        held = sum(len(picture.data) for picture in self._pictures.values())
        if held >= HELD and self.episodes < self._size:
            say(
                f"the pictures of {self.episodes} demonstrations take {held / 2**30:.1f} GiB: batches are drawn from "
                f"these now, fewer than training.warm_start.demonstrations={self._size}"
            )
            self._full = True
        return samples or await self.batch(count)  # all of these failed, and not half of those before

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues exactly here."""
        version, numbers, spare = self._rng.getstate()
        drawn = {"episodes": self.episodes, "successes": self.successes, "random": [version, list(numbers), spare]}
        return drawn | {"failed": self.failed, "full": self._full, "trained": packed(self.trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken. What was made before then is made again when batches are drawn."""
        self.episodes, self.successes = state["episodes"], state["successes"]
        self.failed, self._full = state.get("failed", 0), state.get("full", False)
        self.trained = unpacked(state.get("trained", ""))
        self._then = self.failed, self.successes
        self._missing, self._samples = self.episodes, []
        self._tasks.load_state_dict({"position": self.episodes})
        version, numbers, spare = state["random"]
        self._rng.setstate((version, tuple(numbers), spare))

    def _from_the_first(self) -> UniformTasks:
        return UniformTasks(self._parts.tasks.train, seed=self._seed, split="demonstration")

    async def _make_again(self) -> None:
        if not self._missing:
            return
        say(f"playing the first {self._missing} demonstrations again: batches are now drawn from all of them")
        played = await self._play(self._from_the_first(), self._missing)
        self.failed, self.successes = self.failed - self._then[0], self.successes - self._then[1]
        self._note(played)
        self._samples, self._missing = _samples_of(played) + self._samples, 0

    def _note(self, played: Sequence[Trajectory]) -> None:
        """Count demonstrations. Raises EnvironmentFailure where more than half of all have failed."""
        settle_outcomes(played, self._speakers)
        self.successes += sum(bool(t.success) for t in played if t.failure is None)
        self.trained |= fingerprints_of(played)
        self._warn_of_length(max((len(turn.response_ids) for t in played for turn in t.turns), default=0))
        failures = [t.failure for t in played if t.failure is not None]
        if not failures:
            return
        self.failed += len(failures)
        told = f"{self.failed} of {self.episodes} demonstrations failed, the last with {failures[-1].kind}: "
        told += failures[-1].message
        if 2 * self.failed > self.episodes:
            raise EnvironmentFailure(f"{told}; expected at least half of them to succeed in being played")
        say(f"warm start: {told}. They are left out")

    def _warn_of_length(self, longest: int) -> None:
        """Say where the policy has no room for a reply of `longest` tokens, once for each length."""
        if longest > max(self._parts.config.inference.max_tokens, self._longest):
            self._longest = longest
            say(
                f"warm start: a demonstration has a reply of {longest} tokens, and replies of the policy end after "
                f"inference.max_tokens={self._parts.config.inference.max_tokens}: expected room for what is shown"
            )

    async def _play(self, tasks: UniformTasks, count: int) -> list[Trajectory]:
        """Return the next `count` demonstrations of `tasks`."""
        images, player = self._parts.images, self._channel.player(Order(expert=True))
        specs = [group[0] for group in tasks.groups(count, 1)]
        what = "demonstrations of the warm start"
        if tasks is self._tasks and count < self._size:
            what += f", from {self.episodes + 1} of {self._size} on"
        with playing(what, player, count), images.holding():
            played = await _played(player, specs)
            shown = {hash for t in played for turn in t.turns for hash in turn.context_images}
            self._pictures |= {hash: images.get(hash) for hash in shown}
        return played


def _samples_of(played: Sequence[Trajectory]) -> list[Sample]:
    return samples_of_all([t for t in played if t.failure is None])


async def _played(player: EpisodePlayer, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
    """Return the trajectories of `specs`. One whose actor was lost is played again: that says nothing of the
    environment."""
    played = (await player.collect(specs))[: len(specs)]
    for _ in range(LOST):
        lost = [i for i, t in enumerate(played) if t.failure is not None and t.failure.kind == ActorFailure.kind]
        again = (await player.collect([specs[i] for i in lost]))[: len(lost)] if lost else []
        for i, trajectory in zip(lost, again, strict=True):
            played[i] = trajectory
    return played


@dataclass(slots=True)
class Position:
    """How far the warm start is, as plain data: it goes into checkpoints."""

    step: int = 0
    seconds: float = 0.0
    success: float | None = None
    """That of the newest evaluation; None: there was none, or nobody says what success is. A reward is none."""
    row: dict[str, Any] | None = None
    """The numbers of the newest step, where its evaluation is still to come; None: they are written down."""


class WarmStart:
    """The warm start of a config. It can be interrupted between any two steps and go on from its `state_dict`."""

    def __init__(
        self,
        parts: Assembly,
        channel: Channel,
        interrupt: Interrupt,
        log: Callable[[int, Mapping[str, Any]], Any],
        speakers: set[str] | None = None,
    ) -> None:
        """Have demonstrations and evaluations played by the actors of `channel`; `log(step, row)` writes the numbers of
        a step down; `speakers`: see `uirl.success.settle_outcomes`."""
        self._speakers = set() if speakers is None else speakers
        self._parts, self._channel, self._interrupt, self._log = parts, channel, interrupt, log
        self._settings: WarmStartConfig = parts.config.training.warm_start
        self._seed = parts.config.training.seed
        self._demonstrations = Demonstrations(parts, channel, self._settings.demonstrations, self._seed, self._speakers)
        self._at = Position()
        self._eta = ""

    @property
    def trained(self) -> set[str]:
        """The fingerprints of the instances that were demonstrated."""
        return self._demonstrations.trained

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues exactly here."""
        return asdict(self._at) | {"demonstrations": self._demonstrations.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the learner must be what it was then."""
        self._at = Position(state["step"], state["seconds"], state["success"], state["row"])
        self._demonstrations.load_state_dict(state["demonstrations"])

    async def run(self, after_step: Callable[[], None]) -> dict[str, Any]:
        """Run it to its end; return steps, seconds, demonstrations, the success that ended it. `after_step` is called
        at every place to go on from. Raises Interrupted where it is asked to stop; it is at such a place then."""
        parts, at = self._parts, self._at
        earlier, started = at.seconds, time.perf_counter()
        while at.row is not None or (at.step < self._settings.steps and not self._reached()):
            await self._step()
            at.seconds = earlier + time.perf_counter() - started
            after_step()
        await parts.publish()
        parts.engine.stats()
        demonstrations = self._demonstrations
        usable = demonstrations.episodes - demonstrations.failed
        return {
            "steps": at.step,
            "seconds": at.seconds,
            "demonstrations": demonstrations.episodes,
            "demonstrations_failed": demonstrations.failed,
            "demonstrations_success": demonstrations.successes / usable if usable and self._speakers else None,
            "stopped_at_success": at.success if self._reached() else None,
        }

    async def _step(self) -> None:
        """Take one step of the optimiser, or the evaluation after it where that was interrupted."""
        at, settings = self._at, self._settings
        if at.row is None:
            batch = await self._interrupt.give_up(self._demonstrations.batch(settings.batch_size))
            await self._parts.engine.sleep()
            with doing(f"step {at.step + 1} of {settings.steps} of the warm start{self._eta}"):
                at.row = plain_row(self._parts.learner.supervised(batch))
            at.row["demonstrations"] = self._demonstrations.episodes
            at.step += 1
            self._eta = tell_progress("warm start", at.step, settings.steps)
        if settings.evaluate_every is not None and at.step % settings.evaluate_every == 0:
            report = await self._interrupt.give_up(self._evaluate())
            at.success, at.row[report.measured_by] = report.success, getattr(report, report.measured_by)
            told = f"reward {report.reward:.3f}" if report.success is None else f"success {report.words()}"
            say(
                f"warm start  step {at.step:>4}/{settings.steps}  loss {at.row['loss']:.3f}  {told}  "
                f"{at.row['demonstrations']} demonstrations{self._eta}"
            )
        self._log(at.step, at.row)
        at.row = None

    async def _evaluate(self) -> EvaluationReport:
        parts, settings = self._parts, self._settings
        await parts.publish()
        report = await evaluate_episodes(
            self._channel.player(Order("eval")),
            parts.tasks.evaluation,
            episodes=settings.evaluate_episodes,
            split="warm-start",
            seed=derive_seed(self._seed, self._at.step),
            speakers=self._speakers,
        )
        require_evidence(report.trajectories, "of an evaluation in the warm start")
        return report

    def _reached(self) -> bool:
        goal, success = self._settings.stop_at_success, self._at.success
        return goal is not None and success is not None and at_most(goal, success, abs(goal))
