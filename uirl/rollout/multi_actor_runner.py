"""`MultiActorRunner`: actors that play on many servers at once, for people with a learner of their own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.client.base import RemoteEnvironment
from uirl.errors import ConfigError, ContractError, is_round
from uirl.images import ImageStore
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.models.loading import load_model
from uirl.inference.text_front import TextEngine
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.rollout.task_runner import TaskRunner, TaskRunnerOptions, TrajectoryQueue
from uirl.runtime.time_limits import Worker
from uirl.types import Trajectory

_LOG = logging.getLogger(__name__)
_LOOK = 0.05
"""Seconds between two looks whether a full queue has room."""
_SAY_AGAIN = 60.0
"""Seconds after which a wait for room is told once more."""


class LearnerLike(Protocol):
    """What `publish` takes weights from: a `Learner`, which is `Trainer.learner`."""

    policy: Any
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiActorOptions(TaskRunnerOptions):
    """How the actors of a `MultiActorRunner` play, and what they do where something is in their way."""

    group_size: int = 1
    """So many episodes in a row play the same instance and have one `group_id`, for estimators that compare them."""
    max_waiting: int = 256
    """Episodes that may wait in a queue without a limit of its own; actors then wait too."""
    restart_backoff: float = 1.0
    """Seconds that an actor rests after an episode that failed; they double with each failure in a row."""
    max_backoff: float = 60.0
    """Longest such rest in seconds."""
    images: ImageStore | None = None
    """Where screenshots are kept; a `Trainer` needs the same store, and another process a `SharedImageStore`. None: a
    store of the runner's own, its `images`."""


NO_SERVER = "no server"
"""Where episodes are counted that found none."""


@dataclass(slots=True)
class _Tally:
    """Episodes that ended at one place."""

    episodes: int = 0
    steps: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Kind -> episodes that failed; they are among `episodes`."""
    restarts: int = 0
    state: str = "idle"

    def report(self, seconds: float) -> dict[str, Any]:
        rate = self.steps / seconds if seconds > 0 else 0.0
        told = {"episodes": self.episodes, "failures": dict(self.failures), "steps": self.steps}
        return told | {"steps_per_second": rate}


class _Counts:
    """What the actors did since they were started, counted on the thread they play on and read from any other.

    Every episode that began is played, given up, or under way; every one that was played is delivered, lost at a stop,
    or waits.
    """

    def __init__(self, actors: int, urls: Sequence[str]) -> None:
        self.actors = [_Tally() for _ in range(actors)]
        self.urls = {url: _Tally() for url in urls}
        self.totals: Counter[str] = Counter()
        self.begun = time.monotonic()
        self.ended: float | None = None

    def note(self, actor: int, what: str, state: str) -> None:
        self.totals[what] += 1
        self.actors[actor].state = state

    def played(self, actor: int, url: str, trajectory: Trajectory) -> None:
        """Count an episode that ended on the server `url`; empty: none took it."""
        self.actors[actor].state = "handing over"
        for tally in (self.actors[actor], self.urls.setdefault(url or NO_SERVER, _Tally())):
            tally.episodes += 1
            tally.steps += len(trajectory)
            if trajectory.failure is not None:
                tally.failures[trajectory.failure.kind] += 1

    def report(self, servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return all numbers as plain data; `servers`: url -> what else is known of it."""
        seconds = (time.monotonic() if self.ended is None else self.ended) - self.begun
        whole = _Tally(sum(one.episodes for one in self.actors), sum(one.steps for one in self.actors))
        for one in self.actors:
            whole.failures.update(one.failures)
        return {
            **whole.report(seconds),
            "seconds": seconds,
            **{name: self.totals[name] for name in ("began", "gave_up", "delivered", "not_delivered")},
            "waiting_for_room": sum(one.state == "handing over" for one in self.actors),
            "actors": [one.report(seconds) | {"restarts": one.restarts, "state": one.state} for one in self.actors],
            "urls": {url: {**one.report(seconds), **servers.get(url, {})} for url, one in list(self.urls.items())},
        }


class MultiActorRunner:
    """Plays episodes of one task with `num_actors` actors, and puts their trajectories into a queue until `stop`.

    Actors are players in this process that share an engine: the replies of all are sampled in one batch. Each episode
    opens a session on the server that has the fewest of ours. A server that fails is left alone for a while, and the
    others go on. An episode that failed is a trajectory too, with its `failure`; it must not be learned from.

    A `VLMWrapper` is copied: actors sample from the copy, so that its weights may be trained meanwhile, and `publish`
    brings the copy up to date.
    """

    def __init__(
        self,
        num_actors: int,
        env_urls: Sequence[str],
        model: Any,
        trajectory_queue: TrajectoryQueue,
        task_prompt: str = "",
        session_type: str = "simple_data_entry",
        action_format: str = "json",
        options: MultiActorOptions | None = None,
        *,
        environment: str = "ui_verifiers",
        environment_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise ConfigError or ContractError for what does not fit; servers are first asked by an episode.

        Args:
            num_actors: episodes at a time.
            env_urls: addresses of the servers, 'http://host:8000', all with the same environment.
            model: a `VLMWrapper`, or a `TextEngine` (what `create_inference_engine` returns).
            trajectory_queue: where trajectories go: `queue.Queue`, one of `multiprocessing`, or anything with `put`.
            task_prompt: the goal, told with the first screenshot.
            session_type: which task a session of the servers is, in the protocol of ui-verifiers.
            action_format: name of the parser of the replies.
            options: limits, sampling, seed, prompt and waiting; None: the defaults.
            environment: name in the table of environments; 'remote' and 'openenv' play other protocols.
            environment_options: further options of it.
        """
        if isinstance(num_actors, bool) or not isinstance(num_actors, int) or num_actors < 1:
            raise ConfigError(f"num_actors: got {num_actors!r:.80}, expected whole number >= 1")
        if isinstance(env_urls, str) or not env_urls:
            raise ConfigError(f"env_urls: got {env_urls!r:.80}, expected a list of addresses")
        self.options = options or MultiActorOptions()
        self.num_actors, self.queue = num_actors, trajectory_queue
        self._player = TaskRunner(
            env_urls[0],
            _own_engine(model),
            None,
            task_prompt,
            session_type,
            action_format,
            self.options,
            environment=environment,
            environment_options={"url": None, "urls": list(env_urls), **(environment_options or {})},
            images=self.options.images,
        )
        if not isinstance(self._player.environment, RemoteEnvironment):
            raise ConfigError(f"environment: got {environment!r}, which plays on no servers; expected 'ui_verifiers'")
        self.environment: RemoteEnvironment = self._player.environment
        self.engine, self.images = self._player.engine, self._player.images
        self.error: Exception | None = None
        """What ended the actors before `stop`: the set-up is wrong, and trying again would not help."""
        if self.options.group_size < 1:
            raise ConfigError(f"group_size: got {self.options.group_size}, expected whole number >= 1")
        self._numbers, self._groups = itertools.count(), uuid.uuid4().hex[:12]
        self._group_seed = random.getrandbits(62) if self.options.seed is None else self.options.seed
        self._counts = _Counts(num_actors, [server.url for server in self.environment.pool.servers])
        self._counts.ended = self._counts.begun
        self._actors: list[asyncio.Task[None]] = []
        self._lock = threading.Lock()
        self._putter = Worker("trajectory-queue")

    # -- from any thread -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to play, and return at once. Raises ContractError where the actors are playing already."""
        with self._lock:
            if self._actors:
                raise ContractError("the actors are playing already; stop() them first")
            self.error = None
            self._counts = _Counts(self.num_actors, [server.url for server in self.environment.pool.servers])
            self._actors = self.engine.run(self._begin())
        return self

    def stop(self, timeout: float = 30.0) -> bool:
        """End the episodes under way and their sessions on the servers; return whether all ended in time.

        What is in the queue stays there. A second call does nothing. Raises `error` where there is one.

        Args:
            timeout: seconds that the sessions may take to end.
        """
        with self._lock:
            actors, self._actors = self._actors, []
            late = self.engine.run(self._end(actors, timeout)) if actors else ""
            self._counts.ended = self._counts.ended or time.monotonic()
        if late:
            _LOG.warning("not everything ended within %g s, and is left behind: %s", timeout, late)
        if self.error is not None:
            raise self.error
        return not late

    def publish(self, learner: LearnerLike) -> None:
        """Make the weights of a learner, as they are now, what the actors sample from. Call it where no update is under
        way: replies go on with the new weights from their next token, and every turn names the version it began with.
        """
        weights, adapter = learner.policy.update_for(self.engine.engine)
        self.engine.run(self.engine.engine.update_weights(weights, learner.version, adapter=adapter))

    def stats(self) -> dict[str, Any]:
        """Return what happened since `start`: episodes, failures by kind, steps per second, what waits; and the same
        per actor and per address."""
        pool = self.environment.pool
        servers = {
            server.url: {
                "active": server.active,
                "out_seconds": pool.seconds_out(server),
                "out_because": server.why if pool.seconds_out(server) else "",
            }
            for server in pool.servers
        }
        return self._counts.report(servers) | {"playing": self.playing, "waiting_in_queue": _size(self.queue)}

    @property
    def playing(self) -> bool:
        """Whether there is an actor: False before `start`, after `stop`, and after an `error`."""
        return any(not actor.done() for actor in self._actors)

    def __enter__(self) -> Self:
        return self if self._actors else self.start()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:  # what went wrong in the block is told first
                raise

    # -- on the engine's event loop --------------------------------------------------------------------------------

    async def _begin(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._live(number)) for number in range(self.num_actors)]

    async def _end(self, actors: Sequence[asyncio.Task[None]], timeout: float) -> str:
        """Cancel the actors and wait for them and their sessions; return what did not end."""
        deadline = time.monotonic() + timeout
        for actor in actors:
            actor.cancel()
        _, late = await asyncio.wait(actors, timeout=timeout)
        pool = self.environment.pool
        while pool.active and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        return f"{len(late)} actors; sessions: {pool.describe()}" if late or pool.active else ""

    async def _live(self, number: int) -> None:
        """Play until cancelled. An actor that breaks begins anew, later each time."""
        in_a_row = 0
        while self.error is None:
            broken = ""
            try:
                broken = await self._play_one(number)
            except (ConfigError, ContractError) as error:
                _LOG.error("actor %d found that the set-up is wrong, and all actors stop: %s", number, error)
                self.error = error
                return
            except Exception as error:
                broken = f"{type(error).__name__}: {error}"
                self._counts.actors[number].restarts += 1
                _LOG.exception("actor %d broke and begins anew", number)
            in_a_row = in_a_row + 1 if broken else 0
            if in_a_row:
                rest = min(self.options.restart_backoff * 2.0 ** min(in_a_row - 1, 32), self.options.max_backoff)
                if is_round(in_a_row):
                    _LOG.warning("actor %d failed %d times in a row, rests %.1f s: %s", number, in_a_row, rest, broken)
                await asyncio.sleep(rest)

    async def _play_one(self, number: int) -> str:
        """Play an episode and hand it over; return why it failed, empty: it did not."""
        instances: list[BaseEnvironment] = []

        def spawn() -> BaseEnvironment:
            instances.append(self.environment.spawn())
            return instances[0]

        counts = self._counts
        counts.note(number, "began", "playing")
        try:
            trajectory = await self._player.play(self._next_spec(), spawn)
        except BaseException:
            counts.note(number, "gave_up", "idle")
            raise
        server = next((one.last_url for one in instances if isinstance(one, RemoteEnvironment)), "")
        counts.played(number, server, trajectory)
        try:
            await self._hand_over(number, trajectory)
        except BaseException:
            counts.note(number, "not_delivered", "idle")
            raise
        counts.note(number, "delivered", "idle")
        return "" if trajectory.failure is None else f"{server or 'no server'}: {trajectory.failure.message}"

    def _next_spec(self) -> EpisodeSpec:
        """Return the next episode, in its group where there are groups."""
        spec, size = self._player.next_spec(), self.options.group_size
        if size == 1:
            return spec
        group = next(self._numbers) // size
        instance = derive_seed(self._group_seed, "group", group)
        return replace(spec, environment_seed=instance, group_id=f"{self._groups}-{group}")

    async def _hand_over(self, number: int, trajectory: Trajectory) -> None:
        """Put the trajectory into the queue, and wait while that is full."""
        if not hasattr(self.queue, "put_nowait"):
            await self._putter.run(lambda: self.queue.put(trajectory), None)
            return
        since, told = time.monotonic(), 0.0
        while not self._put(trajectory):
            waited = time.monotonic() - since
            if not told or waited >= told:
                _LOG.warning(
                    "actor %d waits for room in the trajectory queue (%s in it, %.0f s so far): the learner takes "
                    "fewer episodes than the actors play",
                    number, _size(self.queue), waited,
                )  # fmt: skip
                told = waited + _SAY_AGAIN
            await asyncio.sleep(_LOOK)

    def _put(self, trajectory: Trajectory) -> bool:
        """Return whether the queue took the trajectory; nothing else puts into it between the two questions."""
        size = _size(self.queue)
        if size is not None and size >= self.options.max_waiting:
            return False
        try:
            self.queue.put_nowait(trajectory)  # type: ignore[attr-defined]
        except queue.Full:
            return False
        return True


def _size(trajectories: Any) -> int | None:
    """Return how many trajectories wait in a queue; None: it cannot tell (`multiprocessing` on macOS, a bare `put`)."""
    try:
        return int(trajectories.qsize())
    except (AttributeError, NotImplementedError):
        return None


def _own_engine(model: Any) -> TextEngine:
    """Return an engine with weights that training does not change: a `VLMWrapper` is copied."""
    policy = getattr(model, "policy", None)
    if isinstance(model, TextEngine) or policy is None:
        return model  # TaskRunner says what is wrong with anything else
    loaded = load_model(model.config)
    engine = TextEngine(loaded, TransformersInferenceEngine(loaded))
    weights, adapter = policy.update_for(engine.engine)
    engine.run(engine.engine.update_weights(weights, 0, adapter=adapter))
    return engine
