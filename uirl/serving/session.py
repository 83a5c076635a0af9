"""The sessions of an endpoint: an agent's time with the policy, its address, its secrets, its record, and its end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
import uuid
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from uirl.errors import (
    ContractError,
    EngineFailure,
    EnvironmentFailure,
    EpisodeTimeout,
    PromptTooLong,
    RolloutFailure,
    UirlError,
)
from uirl.http.leases import Leases
from uirl.inference.base import SamplingParams
from uirl.rollout.episode import EpisodeLimits, derive_seed
from uirl.rollout.reward import apply_reward
from uirl.serving.options import EndpointOptions
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.replies import Reply
from uirl.serving.transcript import Exchange, Prompt, Transcript
from uirl.types import Failure, Task, Trajectory, Verdict

TOO_LONG = "context_length_exceeded"
"""The code of a refusal of a prompt that is too long, here and at OpenAI."""
NO_LIMITS = EpisodeLimits(max_turns=1 << 30)


class AgentSession:
    """What `ModelEndpoint.session` returns. Point an agent at `base_url`, then call `finish`.

    Use it from the event loop that the endpoint runs on.
    """

    def __init__(
        self,
        id: str,
        task: Task,
        url: str,
        *,
        group_id: str = "",
        environment_seed: int | None = None,
        sampling_seed: int | None = None,
        sampling: SamplingParams | None = None,
        limits: EpisodeLimits = NO_LIMITS,
        for_training: bool = True,
        on_finished: Callable[[AgentSession, Trajectory], None] | None = None,
    ) -> None:
        self.id, self.task, self.limits, self.sampling = id, task, limits, sampling
        self.token = secrets.token_urlsafe(18)
        self.base_url = f"{url}/sessions/{self.token}/v1"
        """For the agent's client. Whoever knows it may call: it is as long as a password."""
        self.api_key = secrets.token_urlsafe(18)
        """For the agent's client, where the endpoint asks for a key."""
        self.failure: Failure | None = None
        """Why the record is no evidence; None: so far it is."""
        self.error: Exception | None = None
        """What a call ran into that is nobody's failure but a mistake in the program: `finish` raises it."""
        self.last_used = time.monotonic()
        self.for_training = for_training
        self._group_id, self._environment_seed, self._sampling_seed = group_id, environment_seed, sampling_seed
        self.transcript = Transcript()
        self._caches: dict[str, Exchange | None] = {}
        self._draws: Counter[str] = Counter()
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._limit: str | None = None
        self.overlong = False
        """A prompt was refused that leaves no room for a reply, and none was answered since. Before the first reply
        the episode fails; later the policy's own words filled the context, and unless the agent shortens its prompt
        that is how the episode ends."""
        self._started = time.perf_counter()
        self._record: Trajectory | None = None
        self._on_finished = on_finished

    @property
    def open(self) -> bool:
        """Whether the agent may still call."""
        return self._record is None

    @property
    def turns(self) -> int:
        """Calls that were answered so far."""
        return sum(exchange.sent for exchange in self.transcript.exchanges)

    def finish(
        self,
        reward: float | None = None,
        success: bool | None = None,
        verdict: Verdict | None = None,
        reward_fn: Callable[[Trajectory], float] | None = None,
    ) -> Trajectory:
        """Return the record, with its total reward on the last turn: `reward`, else the score of `verdict`, else what
        `reward_fn(record)` says; without any of them nobody judged, and the rewards are 0.

        Calls that are still on their way are cut off and not recorded. A record without a call is a failure, and so is
        one whose reward is not a finite number. Raises ContractError where the session is over already, and whatever
        mistake of the program a call ran into.
        """
        value = verdict.score if reward is None and verdict is not None else reward
        judge = reward_fn if value is None else lambda _: value
        record = self.end(success=success, verdict=verdict, reward_fn=judge)
        if self.error is not None:
            raise self.error
        return record

    def end(
        self,
        *,
        success: bool | None = None,
        verdict: Verdict | None = None,
        reward_fn: Callable[[Trajectory], float] | None = None,
    ) -> Trajectory:
        """Return the record, whatever a call ran into; without `reward_fn` nobody judged. Raises ContractError where
        the session is over."""
        if self._record is not None:
            raise ContractError(f"session {self.id} is over ({self._record.stop_reason}); a record is finished once")
        if not self.transcript.exchanges and self.overlong:
            self.fail(PromptTooLong("the agent's first prompt leaves no room for a reply in the model's context"))
        if not self.transcript.exchanges:
            self.fail(EnvironmentFailure("the agent made no call that was answered; is its client given base_url?"))
        self._record = record = self._trajectory(success, verdict)
        for call in self._calls:
            if call is not None:
                call.cancel()
        if record.failure is None and reward_fn is not None:
            try:
                # the total reward goes on the last turn; there is no environment to look at
                apply_reward(record, reward_fn, None)  # type: ignore[arg-type]
            except RolloutFailure as error:
                self.fail(error)
                record.failure, record.stop_reason = self.failure, "failure"
        if self._on_finished is not None:
            self._on_finished(self, record)
        return record

    def fail(self, error: RolloutFailure) -> None:
        """Record that the episode is no evidence. The first failure stands."""
        if self.failure is None:
            self.failure = Failure(error.kind, str(error), self.turns)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Return a context for one call. Raises an APIProblem where the agent may not call any more; inside, a failure
        of the engine and a broken contract leave their mark on the record."""
        self._admit()
        task = asyncio.current_task()
        self._calls.add(task)
        started = time.perf_counter()
        try:
            yield
        except APIProblem as problem:
            self.overlong = self.overlong or problem.code == TOO_LONG
            raise
        except RolloutFailure as error:
            self.fail(error)
            raise
        except asyncio.CancelledError:
            if self.open:
                raise
            raise self._over() from None
        except Exception as error:
            # kept for the person who finishes the session; the agent only learns that its call failed
            self.error = self.error or error
            self.fail(EngineFailure(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._calls.discard(task)
            self._metrics["generate_seconds"] += time.perf_counter() - started
            self.last_used = time.monotonic()

    @property
    def limit(self) -> str | None:
        """The limit that the policy ran into ('max_turns', 'token_budget'); None: none."""
        return self._limit or ("token_budget" if self.overlong and self.turns else None)

    @property
    def idle_seconds(self) -> float:
        """How long nobody has called; 0 while a call is on its way."""
        return 0.0 if self._calls else time.monotonic() - self.last_used

    def draw_seed(self, prompt: Prompt, requested_seed: int | None) -> int | None:
        """Return the seed of the draws for `prompt`; None: not repeatable.

        It follows from the seed of the session, `requested_seed` of the client, the prompt, and how often this prompt
        came before: calls in parallel draw the same whichever comes first, and members of a group draw differently.
        """
        if self._sampling_seed is None:
            return requested_seed
        shown = " ".join([*(shot.hash for shot in prompt.images), str(requested_seed)]).encode()
        digest = hashlib.blake2b(array("q", prompt.ids).tobytes() + shown, digest_size=16).hexdigest()
        self._draws[digest] += 1
        return derive_seed(self._sampling_seed, digest, self._draws[digest])

    def cache_for(self, prompt: Prompt) -> str:
        """Return the engine's name for the kept cache that serves `prompt` best, or a new one."""
        if prompt.parent is not None and self._caches.get(prompt.parent.cache_id) is prompt.parent:
            name = prompt.parent.cache_id
        else:
            name = f"{self.token}/{len(self._caches)}"
        self._caches[name] = None  # taken: nobody else may go on from it meanwhile
        return name

    @property
    def cache_ids(self) -> list[str]:
        """Every name that the engine was given."""
        return list(self._caches)

    def add(self, prompt: Prompt, reply: Reply, info: dict[str, Any], cache_id: str, *, sent: bool = True) -> None:
        """Record one reply. Raises ContractError for one that cannot be learned from, in a session for training."""
        generation = reply.generation
        if generation.log_probs is None and self.for_training:
            raise ContractError(
                "the engine returned no log-probs, so this reply is unfit for training; use an engine that gives them "
                "(transformers, vllm, sglang), or for_training=False to record all the same"
            )
        if not generation.token_ids:
            raise EngineFailure("the engine returned an empty reply")
        self.transcript.add(prompt, reply, {"call": self.turns, **info}, cache_id, sent=sent)
        self.overlong = False
        self._caches[cache_id] = self.transcript.exchanges[-1] if sent else None
        self._metrics["response_tokens"] += len(generation.token_ids)
        self._metrics["parse_errors"] += int(reply.action.parse_error is not None)

    def _admit(self) -> None:
        if not self.open:
            raise self._over()
        if self.failure is not None:
            raise APIProblem(
                503,
                f"the session has failed ({self.failure.kind}: {self.failure.message}); its record is no evidence",
                code="session_failed",
                retry=False,
            )
        limits = self.limits
        tokens = sum(len(e.new_ids) + len(e.response_ids) for e in self.transcript.exchanges)
        if self.turns + len(self._calls) >= limits.max_turns:
            self._limit = "max_turns"
        elif limits.max_tokens is not None and tokens >= limits.max_tokens:
            self._limit = "token_budget"
        if self._limit is not None:
            raise APIProblem(400, f"the episode has reached its limit ({self._limit})", code=self._limit, retry=False)

    def _over(self) -> APIProblem:
        reason = self._record.stop_reason if self._record is not None else "closed"
        return APIProblem(404, f"this session is over ({reason})", code="session_over", retry=False)

    def _trajectory(self, success: bool | None, verdict: Verdict | None) -> Trajectory:
        metrics = {**self._metrics, "seconds": time.perf_counter() - self._started}
        if success is not None:
            metrics["success"] = float(success)
        turns = self.transcript.turns()
        if turns:
            turns[-1] = replace(turns[-1], terminated=self.limit is None)
        return Trajectory(
            self.id,
            self.task,
            turns,
            "failure" if self.failure is not None else self.limit or "terminated",
            self._group_id,
            verdict,
            self.failure,
            self._environment_seed,
            metrics,
        )


_log = logging.getLogger("uirl.endpoint")


class OpenSessions:
    """Sessions by the token in their address."""

    def __init__(
        self, options: EndpointOptions, release: Callable[[str], None], on_finished: Callable[[Trajectory], None] | None
    ) -> None:
        """`release` frees a cache of the engine by its name; `on_finished` hears of every record."""
        self._options, self._release, self._on_finished = options, release, on_finished
        self.active: Leases[AgentSession] = Leases(options.max_sessions, self._why_overdue)
        """By the token in the address."""
        self._grading_secret = secrets.token_bytes(32)
        self.address: str | None = None
        """Where the server listens; None: it does not."""

    @property
    def url(self) -> str:
        """Where the server listens. Raises ContractError before it does."""
        if self.address is None:
            raise ContractError("the endpoint is not started; use 'async with endpoint:' or await endpoint.start()")
        return self.address

    def open(self, id: str | None, task: Task | str | None, **options: Any) -> AgentSession:
        """Open a new session; `options` are those of `AgentSession`. Raises a 429 where too many are open."""
        if self.active.full:
            raise APIProblem(
                429, f"{len(self.active)} sessions are open, which is the limit; finish some", code="too_many_sessions"
            )
        session = AgentSession(
            id or uuid.uuid4().hex,
            task if isinstance(task, Task) else Task(task or "agent"),
            self.url,
            for_training=self._options.for_training,
            on_finished=self._finished,
            **options,
        )
        return self.active.add(session.token, session)

    def grader_key(self, token: str) -> str:
        """Return the secret that finishes the session with that token in its address, and opens nothing else."""
        return hmac.new(self._grading_secret, token.encode(), hashlib.sha256).hexdigest()

    def end_all(self) -> None:
        """End every session as a failure."""
        for session in self.active:
            self._end(session, EngineFailure("the endpoint was closed before the session was finished"))

    def end_idle(self) -> None:
        """End, as failures, the sessions that nobody has used for `idle_seconds`."""
        for session, why in self.active.overdue():
            self._end(session, EpisodeTimeout(why))

    def _why_overdue(self, session: AgentSession) -> str | None:
        limit = self._options.idle_seconds
        return f"no call for {limit:g} s, and nobody finished the session" if session.idle_seconds > limit else None

    def _finished(self, session: AgentSession, record: Trajectory) -> None:
        self.active.end(session.token, record.stop_reason or "closed")
        for cache in session.cache_ids:
            self._release(cache)
        if self._on_finished is not None:
            self._on_finished(record)

    def _end(self, session: AgentSession, failure: RolloutFailure) -> None:
        """Finish a session that nobody waits for; what goes wrong is told in the log."""
        session.fail(failure)
        try:
            session.end()
        except UirlError as error:
            _log.error("session %s ended badly: %s", session.id, error)
