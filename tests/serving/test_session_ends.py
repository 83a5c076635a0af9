"""How sessions end: failures, expiry, limits, and who may judge."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.patience import PATIENCE
from tests.serving.worlds import Gate, Watched, ask, breaks, client_of, converse, says, user
from uirl.errors import AlignmentError, ContractError, EngineFailure
from uirl.inference import LoadedModel
from uirl.inference.base import GenerationRequest
from uirl.rollout import EpisodeLimits, samples_of
from uirl.serving import ModelEndpoint
from uirl.types import Trajectory, Verdict


async def test_a_failure_of_the_engine_is_on_the_record(lm: LoadedModel) -> None:
    engine = breaks(lm, at=1)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        client = client_of(session, max_retries=2)
        messages = await converse(client, 1)
        with pytest.raises(openai.InternalServerError, match="the card fell out") as told:
            await ask(client, messages)
        assert (told.value.code, told.value.type) == ("engine_failure", "server_error")
        assert len(engine.requests) == 2  # the client was told that a second try is in vain
        with pytest.raises(openai.InternalServerError, match="no evidence"):
            await ask(client, messages)
        record = session.finish(reward=1.0)
        # outside of a session nothing is lost, and the client may try again
        engine.requests.clear()
        with pytest.raises(openai.NotFoundError):
            await ask(client_of(endpoint), messages)
    assert (record.failure.kind, record.failure.turn, record.stop_reason) == ("engine", 1, "failure")
    assert record.rewards == [0.0]
    with pytest.raises(AlignmentError, match="not evidence"):
        samples_of(record)


async def test_a_mistake_of_the_program_reaches_whoever_finishes(lm: LoadedModel) -> None:
    async with ModelEndpoint(breaks(lm, at=0, error=ZeroDivisionError("oops")), lm) as endpoint:
        session = endpoint.session()
        with pytest.raises(openai.InternalServerError, match="oops"):
            await ask(client_of(session), [user("hi")])
        with pytest.raises(ZeroDivisionError):
            session.finish(1.0)
        assert session.failure.kind == "engine"
        assert not endpoint.sessions.active


async def test_a_mistake_in_the_program_tells_a_client_no_address(lm: LoadedModel) -> None:
    for error in (KeyError(object()), EngineFailure(f"the pool {object()!r} is empty")):
        async with ModelEndpoint(breaks(lm, at=0, error=error), lm) as endpoint:
            session = endpoint.session()
            with pytest.raises(Exception, match="object") as told:
                await ask(client_of(session), [user("hi")])
            assert "0x" not in str(told.value)
            record = session.end()
        assert record.failure is not None
        assert "<object object>" in record.failure.message
        assert "0x" not in record.failure.message


async def test_a_session_that_nobody_finishes_expires(lm: LoadedModel) -> None:
    heard: list[Trajectory] = []
    ended = asyncio.Event()

    def hear(record: Trajectory) -> None:
        heard.append(record)
        ended.set()

    engine = says(lm, "yes")
    async with ModelEndpoint(engine, lm, idle_seconds=0.5, on_finished=hear) as endpoint:
        session = endpoint.session("forgotten")
        session.last_used += 3600  # however long the first call takes to come
        await ask(client_of(session), [user("hi")])
        await asyncio.wait_for(ended.wait(), PATIENCE)
        with pytest.raises(openai.NotFoundError, match="over or never was"):
            await ask(client_of(session), [user("hi")])
        with pytest.raises(ContractError, match="finished once"):
            session.finish(1.0)
    assert (heard[0].id, heard[0].failure.kind, len(heard[0])) == ("forgotten", "timeout", 1)
    assert engine.released


async def test_a_call_on_its_way_keeps_a_session_alive(lm: LoadedModel) -> None:
    gate = Gate()
    async with ModelEndpoint(Watched(says(lm, "yes"), gate), lm) as endpoint:
        session = endpoint.session()
        call = asyncio.create_task(ask(client_of(session), [user("hi")]))
        await gate.reached()
        session.last_used -= 3600
        assert session.idle_seconds == 0
        endpoint.sessions.end_idle()
        assert session.open
        gate.opened.set()
        assert (await call).message.content == "yes"
        endpoint.sessions.end_idle()
        assert session.open
        session.last_used -= 3600
        endpoint.sessions.end_idle()
        assert not session.open


async def test_finishing_cuts_off_what_is_on_its_way(lm: LoadedModel) -> None:
    gate = Gate()

    async def second_waits(request: GenerationRequest) -> None:
        if len(engine.requests) > 1:
            await gate(request)

    engine = Watched(says(lm, "yes"), second_waits)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        await ask(client_of(session), [user("hi")])
        call = asyncio.create_task(ask(client_of(session), [user("hi")]))
        await gate.reached()
        record = session.finish(1.0)
        with pytest.raises(openai.NotFoundError, match="over"):
            await asyncio.wait_for(call, PATIENCE)
    assert len(record) == 1
    assert record.failure is None


async def test_limits_refuse_further_calls(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        for limits, reason in [(EpisodeLimits(2), "max_turns"), (EpisodeLimits(9, max_tokens=12), "token_budget")]:
            session = endpoint.session(limits=limits)
            client = client_of(session)
            with pytest.raises(openai.BadRequestError) as told:
                await converse(client, 9)
            assert told.value.code == reason
            record = session.finish(0.25)
            assert (record.stop_reason, record.total_reward(), record.failure) == (reason, 0.25, None)
            assert len(record) == 2


async def test_too_many_sessions_are_refused(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, max_sessions=1) as endpoint:
        session = endpoint.session()
        with pytest.raises(Exception, match="finish some"):
            endpoint.session()
        session.end()
        endpoint.session()


async def test_an_end_without_calls_and_a_reward_that_is_none(endpoint: ModelEndpoint) -> None:
    assert endpoint.session().finish(1.0).failure.kind == "environment"
    session = endpoint.session()
    await ask(client_of(session), [user("hi")])
    record = session.finish(float("nan"))
    assert (record.failure.kind, record.stop_reason) == ("judge", "failure")


async def test_a_reward_by_place_is_never_taken_for_a_success(endpoint: ModelEndpoint) -> None:
    session = endpoint.session()
    end: Any = session.end
    with pytest.raises(TypeError):
        end(1.0)  # what it took before
    assert session.open


async def test_the_score_of_a_verdict_is_the_reward(endpoint: ModelEndpoint) -> None:
    session = endpoint.session()
    await converse(client_of(session), 2)
    record = session.finish(verdict=Verdict(0.75, True, "nice"))
    assert (record.success, record.rewards) == (True, [0.0, 0.75])


async def test_closing_the_endpoint_ends_its_sessions_as_failures(lm: LoadedModel) -> None:
    heard: list[Trajectory] = []
    endpoint = ModelEndpoint(says(lm, "yes"), lm, on_finished=heard.append)
    with pytest.raises(ContractError, match="not started"):
        endpoint.session()
    async with endpoint:
        await ask(client_of(endpoint.session()), [user("hi")])
    await endpoint.close()
    assert [record.failure.kind for record in heard] == ["engine"]
