"""Whole agent programs as episodes: they get an address and a task, and say how it went."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from uirl.errors import ContractError, EnvironmentFailure, EpisodeTimeout, JudgeFailure
from uirl.inference.base import SamplingParams
from uirl.rollout.attempts import play_all
from uirl.rollout.episode import EpisodeLimits, EpisodeSpec
from uirl.runtime.limits import in_words
from uirl.runtime.time_limits import Worker, as_raised, awaited
from uirl.serving.endpoint import ModelEndpoint
from uirl.serving.session import AgentSession
from uirl.types import Task, Trajectory, Verdict

AGENT_LIMITS = EpisodeLimits(max_turns=64, max_seconds=600.0)


class AgentProgram(Protocol):
    """A program that uses a model at an OpenAI-compatible address. It knows nothing of who serves the model."""

    def __call__(self, *, base_url: str, api_key: str, task: Task) -> Any:
        """How it went: the total reward (a bool is also the success), a `Verdict`, or None (somebody else judges).

        Plain functions run in a thread of their own; `async def` runs in the endpoint's event loop and must not block.
        """


async def run_agent(
    endpoint: ModelEndpoint,
    agent: AgentProgram,
    spec: EpisodeSpec,
    *,
    sampling: SamplingParams | None = None,
    limits: EpisodeLimits = AGENT_LIMITS,
    reward_fn: Callable[[Trajectory], float] | None = None,
    scored: bool = True,
) -> Trajectory:
    """Run `agent` once and return the record. What fails is on the record (`Trajectory.failure`) and does not raise; a
    mistake in the program around it (an engine without log-probs, a return value that is no judgement) does.

    Args:
        endpoint: A started endpoint.
        agent: Gets `base_url`, `api_key` and `task`, whose `seed` is that of the instance.
        spec: Which episode; everything the policy draws follows from `spec.sampling_seed`.
        sampling: Rules whatever the agent asks; None: its wishes.
        limits: Beyond `max_turns` or `max_tokens`, or with a prompt longer than the model takes, the agent's calls are
            refused with a 400; an agent that raises then has ended its episode there ('max_turns', 'token_budget') and
            is judged by `reward_fn`, without one by 0. `max_seconds` ends it too: a failure, because nobody can say
            how it went.
        reward_fn: Judges the record where the agent returned None.
        scored: A record that nobody judged is a failure; False: it is kept without a reward.
    """
    session = endpoint.session(
        spec.trajectory_id,
        spec.task,
        group_id=spec.group_id,
        environment_seed=spec.environment_seed,
        sampling_seed=spec.sampling_seed,
        sampling=sampling,
        limits=limits,
    )
    task = spec.task if spec.environment_seed is None else replace(spec.task, seed=spec.environment_seed)
    try:
        judged, gave_up = await _supervised(session, agent, task, limits.max_seconds)
        reward, success, verdict = _judgement(judged)
    except BaseException:
        if session.open:
            session.fail(EnvironmentFailure("the run of the agent was cut off"))
            session.end()
        raise
    if judged is None and reward_fn is None and scored and not gave_up:
        session.fail(JudgeFailure("the agent returned None, and there is no reward_fn to judge in its place"))
    return session.finish(reward, success, verdict, reward_fn)


@dataclass(slots=True)
class AgentCollector:
    """Runs many episodes of one agent program at a time; the counterpart of `Collector` for agents that bring their
    own loop."""

    endpoint: ModelEndpoint
    agent: AgentProgram
    sampling: SamplingParams | None = None
    """Rules whatever the agent asks; None: its wishes."""
    limits: EpisodeLimits = AGENT_LIMITS
    reward_fn: Callable[[Trajectory], float] | None = None
    """Judges where the agent returns None."""
    parallel: int = 64
    """Episodes at a time, each with a thread of its own where the agent is a plain function."""
    retries: int = 1
    """How often an episode that failed is run again before its group goes without it."""
    on_finished: Callable[[Trajectory], None] | None = None
    """Hears of every episode the moment it ends, failed attempts included."""
    _slots: asyncio.Semaphore | None = field(default=None, repr=False)

    async def collect(self, specs: Sequence[EpisodeSpec], agent: AgentProgram | None = None) -> list[Trajectory]:
        """Return the trajectories of all `specs`, in their order; then those of failed attempts that were repeated.
        `agent` None: the collector's own."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.parallel)
        program = agent if agent is not None else self.agent
        return await play_all(
            specs,
            partial(
                run_agent, self.endpoint, program, sampling=self.sampling, limits=self.limits, reward_fn=self.reward_fn
            ),
            slots=self._slots,
            retries=self.retries,
            on_finished=self.on_finished,
        )


async def _supervised(
    session: AgentSession, agent: AgentProgram, task: Task, seconds: float | None
) -> tuple[Any, bool]:
    """Return (what the agent returned, whether it raised because the policy was at a limit).

    None, with the failure on the session, where it raised otherwise or ran out of time.
    """
    arguments: dict[str, Any] = {"base_url": session.base_url, "api_key": session.api_key, "task": task}
    try:
        async with asyncio.timeout(seconds) as clock:
            if inspect.iscoroutinefunction(agent):
                return await awaited(agent(**arguments)), False
            result = await _in_thread(agent, arguments)
            return (await awaited(result) if inspect.isawaitable(result) else result), False
    except Exception as error:
        # the agent is somebody else's program and may raise anything; the record says what it was
        if clock.expired():
            session.fail(EpisodeTimeout(f"the agent did not return within {seconds:g} s"))
        elif session.limit is not None or session.overlong:
            return None, True  # it was refused: the record says why
        else:
            session.fail(EnvironmentFailure(f"the agent raised {in_words(as_raised(error))}"))
        return None, False


async def _in_thread(agent: AgentProgram, arguments: dict[str, Any]) -> Any:
    """Run the agent in a thread of its own.

    A thread cannot be ended from outside. It is a daemon, so that a hanging agent does not keep the program alive, and
    its session is over, so that its next call fails.
    """
    worker = Worker("uirl-agent")
    try:
        return await worker.run(partial(agent, **arguments), None)
    finally:
        worker.stop()


def _judgement(judged: Any) -> tuple[float | None, bool | None, Verdict | None]:
    """(reward, success, verdict) of what an agent returned; None: it did not say."""
    if isinstance(judged, Verdict):
        return judged.score, None, judged
    if judged is None or isinstance(judged, bool):
        return (None, None, None) if judged is None else (float(judged), judged, None)
    try:
        return float(judged), None, None
    except OverflowError:  # refused with the record, as every reward that is not finite
        return math.inf, None, None
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"an agent returns its total reward (a number), a Verdict or None; got {type(judged).__name__} "
            f"{judged!r:.80}"
        ) from error
