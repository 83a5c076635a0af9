"""The sessions of a server: opened within a limit, one environment each, closed when nobody wants them any more."""

from __future__ import annotations

import asyncio
import inspect
import math
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.protocol.ui_verifiers import SubmittedRows
from uirl.environments.remote.server.settings import ServerSettings
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.http.guard import Refusal
from uirl.http.leases import Leases
from uirl.http.wire import plain
from uirl.images import Screenshot
from uirl.runtime.limits import in_words, shown
from uirl.runtime.wire import WireError
from uirl.types import Action, Observation, StepResult, Task

WARM = 60.0
"""Seconds that an instance without a session is kept for the next one."""
RETRY_AFTER = 1.0
"""Seconds after which a client that was refused may ask again: sessions end all the time."""


BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper ends, in seconds, of the histogram of call times."""

_HELP = {
    "uirl_sessions_opened_total": "Sessions opened, by protocol.",
    "uirl_sessions_closed_total": "Sessions closed, by reason.",
    "uirl_sessions_refused_total": "Sessions refused because all were taken.",
    "uirl_sessions_replaced_total": "Environment instances replaced after they broke.",
    "uirl_calls_total": "Calls of the environment, by method.",
    "uirl_failures_total": "Calls that failed, by kind.",
    "uirl_requests_denied_total": "Requests without the right token, too large, or from another web site.",
}

Labels = tuple[tuple[str, str], ...]


class Counters:
    """Numbers that only grow, and a histogram of the seconds that calls of the environment take."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in _HELP}
        self._seconds: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, name: str, **labels: str) -> None:
        """One more of `name`."""
        self._counts[name][tuple(sorted(labels.items()))] += 1

    def count(self, name: str, **labels: str) -> int:
        """Return how many there were, over all labels that are not given."""
        wanted = set(labels.items())
        return int(sum(value for key, value in self._counts[name].items() if wanted <= set(key)))

    def took(self, method: str, seconds: float) -> None:
        """Count a call of `method` that came back after `seconds`."""
        row = self._seconds.setdefault(method, [0] * (len(BUCKETS) + 1))
        row[next((i for i, end in enumerate(BUCKETS) if seconds <= end), len(BUCKETS))] += 1
        self._sums[method] += seconds

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return the whole as Prometheus reads it; `gauges`: name -> (help, value)."""
        lines = []
        for name, (words, value) in gauges.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        for name, words in _HELP.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} counter"]
            rows = self._counts[name] or {(): 0.0}
            lines += [f"{name}{_braces(labels)} {value:g}" for labels, value in sorted(rows.items())]
        return "\n".join([*lines, *self._histogram()]) + "\n"

    def _histogram(self) -> list[str]:
        name = "uirl_call_seconds"
        lines = [f"# HELP {name} Seconds of calls of the environment.", f"# TYPE {name} histogram"]
        for method, row in sorted(self._seconds.items()):
            total = 0
            for end, number in zip([*map(str, BUCKETS), "+Inf"], row, strict=True):
                total += number
                lines.append(f"{name}_bucket{_braces((('method', method), ('le', end)))} {total}")
            labels = _braces((("method", method),))
            lines += [f"{name}_sum{labels} {self._sums[method]:.6f}", f"{name}_count{labels} {total}"]
        return lines


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


class SessionOver(Refusal):
    """A session that was closed by the server."""

    def __init__(self, why: str) -> None:
        super().__init__(410, "lease", f"the session is over: {why}")


class Full(Refusal):
    """All sessions are taken."""

    def __init__(self, active: int, capacity: int) -> None:
        super().__init__(
            503,
            "capacity",
            f"all {capacity} sessions are taken ({active} active); try again later, or start servers with more "
            "(--sessions)",
            retry_after=RETRY_AFTER,
        )
        self.active, self.capacity = active, capacity


@dataclass(slots=True)
class Progress:
    """How far an episode is, in the words of ui-verifiers."""

    rows: list[int] = field(default_factory=list)
    wrong: int = 0

    def note(self, result: StepResult) -> None:
        """Take the environment's own count from `info['progress']`, which has both keys; where it has none, an episode
        is one submission, right where the environment says `success`. Rewards say nothing: they may be for a part."""
        progress = result.observation.info.get("progress")
        if isinstance(progress, Mapping) and progress.keys() >= SubmittedRows.model_fields.keys():
            try:
                submitted = SubmittedRows.read(plain(progress, "info.progress"), "info.progress")
            except WireError as error:
                raise EnvironmentFailure(str(error)) from None
            self.rows, self.wrong = submitted.submitted_row_indices, submitted.num_incorrect_submissions
        elif "success" in result.observation.info:
            self.rows = [0] if result.observation.info["success"] else []
            self.wrong = int(result.done and not self.rows)


@dataclass(slots=True, eq=False)
class Lease:
    """One session of one client, and what its episode has shown so far."""

    id: str
    """Long and random: whoever knows it may play the session."""
    number: int
    """From 1, never used again; for people and for protocols that count."""
    protocol: str
    """The protocol it was opened over."""
    session: EnvironmentSession
    spawn: Callable[[], BaseEnvironment]
    variant: str | None
    renewed: float
    """When the client last called, by the server's clock."""
    touched: float
    """When it last played or looked."""
    lease_seconds: float
    """Without calls it ends after so many; inf: the protocol has no heartbeat, or a socket is one."""
    idle_seconds: float
    """Without being played it ends after so many."""
    graders: bool = False
    """Whether a grader opened it: an agent may then play it, and neither reset nor close it, for the verdict is about
    the instance that the grader chose."""
    opened: datetime = field(default_factory=lambda: datetime.now(UTC))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: str | None = None
    """Why it is closed; None: it is not."""
    ended: datetime | None = None
    """When it was closed."""
    task: Task | None = None
    seed: int | None = None
    observation: Observation | None = None
    """What the agent sees now; None: before the first reset."""
    picture: Screenshot | None = None
    """The last one of the episode: the observation after its end may have none."""
    turns: int = 0
    """Steps since the reset."""
    acts: int = 0
    """Requests to act, those that only look among them: of protocols that count them."""
    episodes: int = 0
    total_reward: float = 0.0
    success: bool | None = None
    terminated: bool = False
    truncated: bool = False
    progress: Progress = field(default_factory=Progress)
    on_close: Callable[[], None] | None = None
    """Hears that it is closed, whoever did it."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def overdue(self, now: float) -> str | None:
        """Return why it ends at that time; None: it does not. A call that it is in is never taken for idleness."""
        if self.lock.locked():
            return None
        if now - self.renewed > self.lease_seconds:
            return f"lease: no call for {self.lease_seconds:g} s"
        return f"idle: not played for {self.idle_seconds:g} s" if now - self.touched > self.idle_seconds else None

    def begin(self, observation: Observation, task: Task | None, seed: int | None) -> None:
        """Note a new episode."""
        self.observation, self.picture, self.task, self.seed = observation, None, task, seed
        self._keep_picture(observation)
        self.turns, self.total_reward, self.success = 0, 0.0, None
        self.terminated = self.truncated = False
        self.progress = Progress()
        self.episodes += 1

    def note(self, result: StepResult) -> None:
        """Note what a step came to."""
        self.observation = result.observation
        self._keep_picture(result.observation)
        self.turns += 1
        self.total_reward += result.reward
        self.terminated, self.truncated = result.terminated, result.truncated
        success = result.observation.info.get("success")
        self.success = self.success if success is None else bool(success)
        self.progress.note(result)

    def _keep_picture(self, observation: Observation) -> None:
        if observation.images:
            self.picture = observation.images[-1]


class Sessions:
    """All sessions of one server. Use it on one event loop."""

    def __init__(
        self,
        environment: BaseEnvironment,
        settings: ServerSettings,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environment` is the template: sessions play what it spawns."""
        self.environment, self.settings, self.counters = environment, settings, counters
        self.clock = clock
        self.active: Leases[Lease] = Leases(settings.sessions, lambda lease: lease.overdue(self.clock()))
        """Every session that holds an environment."""
        self._warm: list[tuple[float, EnvironmentSession]] = []
        """Instances that nobody plays, and since when: the next session takes one over."""
        self._closing: dict[str, asyncio.Future[None]] = {}
        """Sessions that are being closed, by id."""
        self._discarding: set[asyncio.Future[None]] = set()
        """Instances that are being closed."""
        self._opened = 0
        self._closed = False

    @property
    def warm(self) -> int:
        """Instances that wait for a session."""
        return len(self._warm)

    def open(
        self, protocol: str, *, graders: bool, leased: bool = True, idles: bool = True, variant: str | None = None
    ) -> Lease:
        """Open a session; its environment is made, or taken over from one that is over, but not reset.

        `graders`: whether a grader opens it. `leased`: it ends without calls. `idles`: it ends when nobody plays.
        `variant`: name of one of the environment's controls. Raises Full, Refusal for an unknown variant, and
        EnvironmentFailure where the environment cannot be copied.
        """
        if self._closed or self.active.full:
            self.counters.add("uirl_sessions_refused_total")
            raise Full(len(self.active), self.settings.sessions)
        spawn = self._template(variant).spawn
        now = self.clock()
        session = self._warm.pop()[1] if self._warm and variant is None else self._session(spawn)
        self._opened += 1
        seconds = (self.settings.lease if leased else math.inf, self.settings.idle if idles else math.inf)
        id = secrets.token_urlsafe(18)
        lease = Lease(id, self._opened, protocol, session, spawn, variant, now, now, *seconds, graders)
        self.counters.add("uirl_sessions_opened_total", door=protocol)
        return self.active.add(id, lease)

    def find(self, id: str) -> Lease:
        """Return the session of that id, its lease renewed. Raises a Refusal (404), or SessionOver with the reason."""
        lease, why = self.active.get(id), self.active.why_over(id)
        if why is not None:
            raise SessionOver(why)
        if lease is None:
            raise Refusal(404, "session", "no such session")
        lease.renewed = self.clock()
        return lease

    async def reset(self, lease: Lease, task: Task | None, seed: int | None) -> Observation:
        """Return the first observation of a new episode. A session that broke gets a new instance first.

        Raises WireError for a seed of more than 64 bits: what one client asks for could break what all sessions share.
        """
        for value in (seed, task.seed if task else None):
            if value is not None and not -(2**63) <= value < 2**63:
                raise WireError("seed has more than 64 bits")
        async with self._calling(lease, "reset"):
            if lease.session.broken:
                await self._replace(lease)
            observation = await lease.session.reset(task, seed)
            lease.begin(observation, task, seed)
            return observation

    async def step(self, lease: Lease, action: Action, turn: int | None = None) -> StepResult:
        """Return what the environment answers. `turn`: the number of steps the client knows of; another one is a
        Refusal (409), so that a step that somebody sends twice is taken once."""
        async with self._calling(lease, "step"):
            if turn is not None and turn != lease.turns:
                raise Refusal(
                    409, "order", f"step {turn} of the episode was asked for, but {lease.turns} were taken so far"
                )
            result = await lease.session.step(action)
            lease.note(result)
            return result

    async def score(self, lease: Lease) -> tuple[float, dict[str, Any]] | None:
        """End the episode here: what its last action is worth, and what is to be noted; None: that is not known."""
        async with self._calling(lease, "score_now"):
            return await lease.session.score()

    async def expert_action(self, lease: Lease) -> Action | None:
        """Return what the environment's demonstrator would do now."""
        async with self._calling(lease, "expert_action"):
            return await lease.session.expert_action()

    async def state_description(self, lease: Lease) -> str:
        """Return the environment's state as text."""
        async with self._calling(lease, "get_state_description"):
            return await lease.session.state_description()

    def touch(self, lease: Lease) -> None:
        """Note that the client looked: the session is not idle."""
        lease.touched = lease.renewed = self.clock()

    async def close(self, lease: Lease, why: str) -> None:
        """End a session and free its environment, after the call that it may be in. Twice is fine; who is cancelled
        here does not stop it.
        """
        if self.active.get(lease.id) is None:
            return
        closing = self._closing.get(lease.id)
        if closing is None:
            closing = self._closing[lease.id] = asyncio.ensure_future(self._close(lease, why))
        await asyncio.shield(closing)

    async def _close(self, lease: Lease, why: str) -> None:
        try:
            async with lease.lock:
                lease.over = why
                if lease.session.broken or lease.variant is not None or self._closed:
                    await self._discard(lease.session)
                else:
                    self._warm.append((self.clock(), lease.session))
        finally:
            self._closing.pop(lease.id, None)
            self.active.end(lease.id, why)
            lease.ended = datetime.now(UTC)
            self.counters.add("uirl_sessions_closed_total", reason=why.split(":")[0])
            if lease.on_close is not None:
                lease.on_close()

    async def reap(self) -> None:
        """Close the sessions and the instances that nobody uses any more."""
        await asyncio.gather(*[self.close(lease, why) for lease, why in self.active.overdue()])
        long_ago = self.clock() - min(WARM, self.settings.idle)
        cold = [session for since, session in self._warm if since < long_ago]
        self._warm = [(since, session) for since, session in self._warm if since >= long_ago]
        await asyncio.gather(*[self._discard(session) for session in cold])

    async def keep_reaping(self) -> None:
        """Reap until cancelled."""
        pause = min(1.0, self.settings.lease / 4, self.settings.idle / 4)
        while True:
            await asyncio.sleep(pause)
            await self.reap()

    async def close_all(self) -> None:
        """End every session, and what was being ended, and refuse new ones."""
        self._closed = True
        await asyncio.gather(*[self.close(lease, "server: it shuts down") for lease in self.active])
        warm, self._warm = self._warm, []
        await asyncio.gather(*[self._discard(session) for _, session in warm], *self._discarding)
        close: Callable[[], Any] = self.environment.close
        closing = close()
        if inspect.isawaitable(closing):
            await closing

    # -- inside --------------------------------------------------------------------------------------------------

    def _template(self, variant: str | None) -> BaseEnvironment:
        if variant is None:
            return self.environment
        found = self.environment.controls().get(variant)
        if not isinstance(found, BaseEnvironment):
            raise Refusal(400, "request", f"the environment has no variant {shown(variant)}")
        return found

    def _session(self, spawn: Callable[[], BaseEnvironment]) -> EnvironmentSession:
        try:
            instance = spawn()
        except Exception as error:  # whatever a user's class raises, the client is told, and the server goes on
            message = f"{type(self.environment).__name__}.spawn raised {in_words(error)}"
            raise EnvironmentFailure(message) from error
        return EnvironmentSession(instance, self.settings.step_timeout, self.settings.reset_timeout, cuts=True)

    async def _discard(self, session: EnvironmentSession) -> None:
        """Close an instance, to the end also where whoever asked for it is cancelled."""

        async def work() -> None:
            with suppress(RolloutFailure):  # it is gone either way; no client has to do with it any more
                await session.close()

        job = asyncio.ensure_future(work())
        self._discarding.add(job)
        job.add_done_callback(self._discarding.discard)
        await asyncio.shield(job)

    async def _replace(self, lease: Lease) -> None:
        await self._discard(lease.session)
        lease.session = self._session(lease.spawn)
        self.counters.add("uirl_sessions_replaced_total")

    @asynccontextmanager
    async def _calling(self, lease: Lease, method: str) -> AsyncIterator[None]:
        """Return one call at a time; timed, counted, and never taken for idleness."""
        async with lease.lock:
            if lease.over is not None:
                raise SessionOver(lease.over)
            started = time.perf_counter()
            try:
                # an instance that was taken over still stands in the episode of somebody else
                if lease.observation is None and method != "reset":
                    raise Refusal(409, "order", "the session has no episode yet; reset it first")
                yield
            except RolloutFailure as failure:
                self.counters.add("uirl_failures_total", kind=failure.kind)
                raise
            except ConfigError as error:  # of this machine: to the client it is a failure like any
                self.counters.add("uirl_failures_total", kind=EnvironmentFailure.kind)
                raise EnvironmentFailure(f"the environment of the server: {error}") from error
            finally:
                self.counters.add("uirl_calls_total", method=method)
                self.counters.took(method, time.perf_counter() - started)
                self.touch(lease)
