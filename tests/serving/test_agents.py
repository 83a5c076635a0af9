"""Agent programs as episodes: what they return, how they fail, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import Any

import openai
import pytest

from tests.patience import PATIENCE
from tests.serving.worlds import Watched, ask, breaks, client_of, fed, says, user
from uirl.errors import ContractError, EngineFailure
from uirl.inference import GenerationRequest, InferenceEngine, LoadedModel, SamplingParams, TransformersInferenceEngine
from uirl.rollout import EpisodeLimits, EpisodeSpec
from uirl.serving import AgentCollector, ModelEndpoint, run_agent
from uirl.types import Task, Trajectory, Verdict


def spec(i: int = 0, group: str = "g") -> EpisodeSpec:
    return EpisodeSpec(Task("greet"), 7 + i, 100 + i, f"{group}-{i}", group)


def greet(base_url: str, api_key: str, task: Task) -> float:
    """A plain program: one call."""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        made = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": f"{task.seed}"}])
    return float(made.choices[0].message.content == "yes")


async def test_a_plain_program_and_an_async_one_are_episodes(lm: LoadedModel) -> None:
    async def greet_async(base_url: str, api_key: str, task: Task) -> bool:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            await client.chat.completions.create(model="x", messages=[user(f"{task.seed}")])
        return True

    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        plain = await run_agent(endpoint, greet, spec())
        later = await run_agent(endpoint, greet_async, spec(1))
    assert (plain.id, plain.group_id, plain.seed, plain.rewards, plain.success) == ("g-0", "g", 7, [1.0], None)
    assert plain.turns[0].observation.text == "7"  # the seed of the instance
    assert plain.task.seed is None
    assert (later.rewards, later.success) == ([1.0], True)
    assert plain.turns[-1].terminated


@pytest.mark.parametrize(
    ("returned", "reward", "passed", "failure"),
    [
        (0.5, 0.5, None, None),
        (3, 3.0, None, None),
        (False, 0.0, False, None),
        (Verdict(0.25, False, "late"), 0.25, False, None),
        (None, 0.0, None, "judge"),
        (float("inf"), 0.0, None, "judge"),
        (10**400, 0.0, None, "judge"),
    ],
)
async def test_what_a_program_returns(
    lm: LoadedModel, returned: Any, reward: float, passed: bool | None, failure: str | None
) -> None:
    def agent(**given: Any) -> Any:
        greet(**given)
        return returned

    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        record = await run_agent(endpoint, agent, spec())
    assert record.total_reward() == reward
    assert record.success is passed
    assert (record.failure.kind if record.failure else None) == failure


async def test_somebody_else_may_judge_or_nobody(lm: LoadedModel) -> None:
    def agent(**given: Any) -> None:
        greet(**given)

    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        judged = await run_agent(endpoint, agent, spec(), reward_fn=lambda record: 2.0 * len(record))
        unjudged = await run_agent(endpoint, agent, spec(1), scored=False)
        badly = await run_agent(endpoint, agent, spec(2), reward_fn=lambda record: record.nonsense)
    assert judged.rewards == [2.0]
    assert (unjudged.failure, unjudged.rewards) == (None, [0.0])
    assert badly.failure.kind == "judge"


def raises(**given: Any) -> float:
    greet(**given)
    raise KeyError("lost the plot")


def leaves(**given: Any) -> float:
    greet(**given)
    raise SystemExit(3)


def calls_nobody(**given: Any) -> float:
    return 1.0


async def fails_async(**given: Any) -> float:
    await asyncio.to_thread(greet, **given)
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (raises, "KeyError: 'lost the plot'"),
        (leaves, "SystemExit"),
        (calls_nobody, "no call"),
        (fails_async, "its own"),
    ],
)
async def test_an_agent_that_breaks_is_no_evidence(lm: LoadedModel, agent: Any, why: str) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        record = await run_agent(endpoint, agent, spec())
        assert not endpoint.sessions.active
    assert record.failure.kind == "environment"
    assert why in record.failure.message
    assert record.stop_reason == "failure"


async def test_the_engines_failure_is_not_blamed_on_the_agent(lm: LoadedModel) -> None:
    async with ModelEndpoint(breaks(lm, at=0), lm) as endpoint:
        record = await run_agent(endpoint, greet, spec())
    assert (record.failure.kind, record.failure.message) == ("engine", "the card fell out")


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_agent_that_hangs_is_cut_off(lm: LoadedModel, asynchronous: bool) -> None:
    told = threading.Event()
    late: list[Exception] = []

    async def hangs(**given: Any) -> float:
        await asyncio.sleep(1000)
        return 1.0

    def hangs_in_a_thread(**given: Any) -> float:
        told.wait(60)
        try:
            return greet(**given)
        except openai.NotFoundError as error:
            late.append(error)
            raise

    limits = EpisodeLimits(9, max_seconds=0.5)
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        record = await run_agent(endpoint, hangs if asynchronous else hangs_in_a_thread, spec(), limits=limits)
        assert (record.failure.kind, record.stop_reason) == ("timeout", "failure")
        told.set()
        async with asyncio.timeout(PATIENCE):
            while not (late or asynchronous):  # what the thread still asks for is refused
                await asyncio.sleep(0.02)


async def test_a_return_value_that_is_no_judgement_stops_the_program(lm: LoadedModel) -> None:
    def agent(**given: Any) -> Any:
        greet(**given)
        return "well"

    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        with pytest.raises(ContractError, match="got str 'well'"):
            await run_agent(endpoint, agent, spec())
        assert not endpoint.sessions.active


async def test_a_cancelled_run_leaves_no_session_behind(lm: LoadedModel) -> None:
    started = asyncio.Event()

    async def waits(**given: Any) -> float:
        started.set()
        await asyncio.sleep(1000)
        return 1.0

    heard: list[Trajectory] = []
    async with ModelEndpoint(says(lm, "yes"), lm, on_finished=heard.append) as endpoint:
        run = asyncio.create_task(run_agent(endpoint, waits, spec()))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not endpoint.sessions.active
    assert heard[0].failure is not None


async def test_a_program_sees_the_context_of_its_caller(lm: LoadedModel) -> None:
    word = contextvars.ContextVar("word", default="nothing")
    word.set("something")
    seen: list[str] = []

    def agent(**given: Any) -> float:
        seen.append(word.get())
        return greet(**given)

    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        await run_agent(endpoint, agent, spec())
    assert seen == ["something"]


class Moody(InferenceEngine):
    """Fails the first call of every session of which the prompt holds a '3'."""

    def __init__(self, lm: LoadedModel) -> None:
        self.lm, self.engine, self.failed = lm, says(lm, "yes"), 0

    async def generate(self, request: GenerationRequest) -> Any:
        if "3" in self.lm.tokenizer.decode(request.prompt_ids) and not self.failed:
            self.failed += 1
            raise EngineFailure("a bad day")
        return await self.engine.generate(request)

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        raise NotImplementedError


async def test_many_episodes_keep_their_order_and_failed_ones_are_repeated(lm: LoadedModel) -> None:
    heard: list[str] = []
    specs = [EpisodeSpec(Task("greet"), i, i, f"e{i}", f"g{i // 2}") for i in range(6)]
    async with ModelEndpoint(Moody(lm), lm) as endpoint:
        collector = AgentCollector(endpoint, greet, parallel=3, on_finished=lambda record: heard.append(record.id))
        played = await collector.collect(specs)
    assert [record.id for record in played] == ["e0", "e1", "e2", "e3-r1", "e4", "e5", "e3"]
    assert [record.group_id for record in played] == ["g0", "g0", "g1", "g1", "g2", "g2", "g1"]
    assert [record.failure is None for record in played] == [True] * 6 + [False]
    assert sorted(heard) == sorted(record.id for record in played)


async def test_a_collector_without_retries_goes_without(lm: LoadedModel) -> None:
    specs = [EpisodeSpec(Task("greet"), i, i, f"e{i}") for i in (2, 3)]
    async with ModelEndpoint(Moody(lm), lm) as endpoint:
        played = await AgentCollector(endpoint, raises, retries=0).collect(specs, greet)
    assert [record.failure is None for record in played] == [True, False]


async def test_episodes_run_side_by_side(lm: LoadedModel) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def agent(**given: Any) -> float:
        together.wait()  # breaks unless four of them run at a time
        return greet(**given)

    specs = [EpisodeSpec(Task("greet"), i, i, f"e{i}") for i in range(4)]
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        played = await AgentCollector(endpoint, agent, parallel=4).collect(specs)
    assert [record.failure for record in played] == [None] * 4


async def test_members_of_a_group_draw_differently_and_a_repetition_draws_the_same(lm: LoadedModel) -> None:
    async def agent(base_url: str, api_key: str, task: Task) -> float:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            for _ in range(2):
                await ask(client, [user("hi")], seed=1, temperature=0.0)
        return 1.0

    engine = TransformersInferenceEngine(lm)
    sampling = SamplingParams(max_tokens=8)
    async with ModelEndpoint(engine, lm) as endpoint:
        collector = AgentCollector(endpoint, agent, sampling=sampling)
        specs = [spec(i) for i in range(3)]
        first, second = await collector.collect(specs), await collector.collect(specs)
        assert client_of(endpoint)
    await engine.close()
    replies = [[turn.response_ids for turn in record.turns] for record in first]
    assert len({ids for own in replies for ids in own}) == 6
    assert [[turn.response_ids for turn in record.turns] for record in second] == replies
    assert all(len(fed(record)) == 2 for record in first)


async def test_a_repeated_episode_keeps_its_instance_and_has_draws_of_its_own(lm: LoadedModel) -> None:
    seen: list[int | None] = []

    async def agent(base_url: str, api_key: str, task: Task) -> float:
        seen.append(task.seed)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            await ask(client, [user("hi")])
        raise OSError("the cable was pulled")

    engine = Watched(says(lm, "yes"))
    async with ModelEndpoint(engine, lm) as endpoint:
        collector = AgentCollector(endpoint, agent, retries=2, sampling=SamplingParams(max_tokens=4))
        await collector.collect([EpisodeSpec(Task("greet"), 5, 7, "e", "g"), EpisodeSpec(Task("greet"), 5, None, "f")])
    assert seen == [5] * 6
    draws = [request.sampling.seed for request in engine.requests]
    named = [seed for seed in draws if seed is not None]
    assert len(set(named)) == len(named) == 3
    assert draws.count(None) == 3


def chatter(turns: int, words: int) -> Any:
    """An agent that makes its prompt longer by `words` with every call, and minds no error."""

    def agent(base_url: str, api_key: str, task: Task) -> float:
        said = [{"role": "user", "content": "a " * words}]
        with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            for _ in range(turns):
                made = client.chat.completions.create(model="x", messages=said, max_tokens=4)  # type: ignore[arg-type]
                answer = made.choices[0].message.content or ""
                said += [{"role": "assistant", "content": answer}, {"role": "user", "content": "a " * words}]
        return 1.0

    return agent


async def test_an_agent_whose_policy_fills_the_context_ends_there(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, max_context=120) as endpoint:
        collector = AgentCollector(endpoint, chatter(9, 20), retries=2)
        (record,) = await collector.collect([spec()])
        judged = await run_agent(endpoint, chatter(9, 20), spec(1), reward_fn=lambda record: 0.25)
        limited = await run_agent(endpoint, chatter(9, 1), spec(2), limits=EpisodeLimits(max_turns=2))
    assert (record.stop_reason, record.failure, record.total_reward()) == ("token_budget", None, 0.0)
    assert len(record) >= 1
    assert not record.turns[-1].terminated
    assert (judged.stop_reason, judged.total_reward()) == ("token_budget", 0.25)
    assert (limited.stop_reason, limited.failure, len(limited)) == ("max_turns", None, 2)


async def test_an_agent_whose_first_prompt_is_too_long_fails_once(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, max_context=20) as endpoint:
        played = await AgentCollector(endpoint, chatter(2, 60), retries=2).collect([spec()])
    assert [(t.stop_reason, t.failure.kind, t.turns) for t in played if t.failure] == [("failure", "prompt", [])]
    assert len(played) == 1


async def test_an_agent_that_shortens_its_prompt_goes_on(lm: LoadedModel) -> None:
    def agent(base_url: str, api_key: str, task: Task) -> float:
        with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            for text in ("hi", "a " * 60, "hi again"):
                with contextlib.suppress(openai.BadRequestError):
                    client.chat.completions.create(model="x", messages=[{"role": "user", "content": text}])
        return 1.0

    async with ModelEndpoint(says(lm, "yes"), lm, max_context=40) as endpoint:
        record = await run_agent(endpoint, agent, spec())
    assert (record.stop_reason, len(record), record.total_reward()) == ("terminated", 2, 1.0)
