"""Several engines as one: who is asked, what a lost engine costs, and which weights one serves that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.fake_engines import FakeEngine
from tests.inference.prompts import contract
from tests.patience import until
from uirl.errors import ContractError, EngineFailure, PromptTooLong
from uirl.inference import GenerationRequest, LoadedModel, SamplingParams, TransformersInferenceEngine
from uirl.inference.router import Router, RouterLimits
from uirl.inference.weight_files import WeightFiles

Routed = Callable[..., Router]
QUICK = RouterLimits(patience=20.0, first_pause=0.001, longest_pause=0.002)


@pytest.fixture
async def routed(tmp_path: Path) -> AsyncIterator[Routed]:
    """A function that makes a router of engines; all of them are closed with the test."""
    made: list[Router] = []

    def make(*engines: FakeEngine, **options: Any) -> Router:
        usual: dict[str, Any] = {"files": WeightFiles(tmp_path), "limits": QUICK}
        made.append(Router(engines, **{**usual, **options}))
        return made[-1]

    yield make
    for router in made:
        await router.close()


def request(session: str | None = None, seed: int = 1, tokens: int = 4) -> GenerationRequest:
    return GenerationRequest((1, 2, 3), (), SamplingParams(max_tokens=tokens, seed=seed), session)


def weights(value: float) -> list[tuple[str, torch.Tensor]]:
    return [("a.weight", torch.full((2,), value)), ("b.weight", torch.full((3,), -value))]


@pytest.mark.parametrize("count", [1, 3])
async def test_it_keeps_the_contract_of_an_engine(count: int) -> None:
    models = [tiny_model("uirl/tiny-lm") for _ in range(count)]
    router = Router([TransformersInferenceEngine(model) for model in models])
    report = await contract(router, models[0])
    assert (report.log_prob_gap < 1e-4, report.cached_tokens > 0) == (True, True)
    await router.close()
    with pytest.raises(EngineFailure, match="closed"):
        await router.generate(request())


async def test_an_episode_stays_where_its_cache_is_and_others_go_to_the_least_loaded(routed: Routed) -> None:
    engines = [FakeEngine() for _ in range(3)]
    router = routed(*engines)
    for turn in range(4):
        await asyncio.gather(*[router.generate(request(f"e{n}", turn)) for n in range(9)])
    assert [len(engine.asked) for engine in engines] == [12, 12, 12]
    assert all(len({session for session, _ in engine.served}) == 3 for engine in engines)
    # two episodes of the second engine end: it has room for the next two
    ended = sorted({session for session, _ in engines[1].served})[:2]
    for session in ended:
        router.release(session)
    assert [engine.released for engine in engines] == [[], ended, []]
    for name in ("new", "newer"):
        await router.generate(request(name))
    assert [session for session, _ in engines[1].served[-2:]] == ["new", "newer"]
    router.release("nobody")
    await router.close()
    assert [engine.closed for engine in engines] == [1, 1, 1]


async def test_calls_without_an_episode_go_to_whoever_has_the_fewest(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    for engine in engines:
        engine.hold()
    calls = [asyncio.ensure_future(router.generate(request(seed=n))) for n in range(6)]
    await until(lambda: sum(len(engine.asked) for engine in engines) == 6)
    assert [len(engine.asked) for engine in engines] == [3, 3]
    for engine in engines:
        engine.let_go()
    await asyncio.gather(*calls)


async def test_a_request_whose_engine_dies_gets_the_same_reply_from_another(routed: Routed) -> None:
    undisturbed = routed(FakeEngine())
    expected = [await undisturbed.generate(request(f"e{n}", n)) for n in range(4)]
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    for engine in engines:
        engine.hold()
    replies = [asyncio.ensure_future(router.generate(request(f"e{n}", n))) for n in range(4)]
    await until(lambda: len(engines[0].asked) == len(engines[1].asked) == 2)
    engines[0].die()
    engines[1].let_go()
    assert await asyncio.gather(*replies) == expected
    assert len(engines[1].served) == 4
    # the episodes moved: their next turns go where they were answered
    moved = [session for session, _ in engines[1].served[-2:]]
    asked = len(engines[0].asked)
    for session in moved:
        await router.generate(request(session, 7))
    assert len(engines[0].asked) == asked
    assert router.stats()["engine_moves"] == 2


async def test_an_engine_that_comes_back_gets_the_newest_weights_before_it_serves(
    routed: Routed, tmp_path: Path
) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    await router.update_weights(weights(1.0), 1)
    engines[0].die()
    await asyncio.gather(*[router.generate(request(f"e{n}")) for n in range(4)])
    assert list(router.out) == ["engine 0"]
    await router.update_weights(weights(2.0), 2)
    engines[0].come_back()
    await until(lambda: not router.out)
    assert engines[0].weights == engines[1].weights == {"a.weight": [2.0, 2.0], "b.weight": [-2.0, -2.0, -2.0]}
    for n in range(10, 14):
        await router.generate(request(f"e{n}"))
    assert engines[0].served
    assert {version for _, version in engines[0].served} == {2}
    assert len(list(tmp_path.glob("*/0*"))) == 1  # of the newest version alone


async def test_weights_that_an_engine_refuses_stop_the_run(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    engines[1].refuses_update = ContractError("weight update holds 'x', which tiny does not have")
    with pytest.raises(ContractError, match="does not have"):
        await router.update_weights(weights(3.0), 5)


async def test_updates_and_requests_run_together(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)

    async def episode(number: int) -> list[int]:
        return [(await router.generate(request(f"e{number}", turn))).policy_version for turn in range(50)]

    async def learner() -> None:
        for version in range(1, 6):
            await router.update_weights(weights(float(version)), version)

    *versions, _ = await asyncio.gather(*[episode(n) for n in range(8)], learner())
    assert all(seen == sorted(seen) for seen in versions)
    assert router.policy_version == 5


async def test_an_update_reaches_every_engine_also_one_that_is_lost_meanwhile(routed: Routed) -> None:
    engines = [FakeEngine(takes_adapters=True), FakeEngine(takes_adapters=True)]
    router = routed(*engines)
    assert router.takes_adapters
    assert not routed(engines[0], FakeEngine()).takes_adapters
    engines[1].dead = True
    await router.update_weights(weights(1.0), 5, adapter={"r": 4})
    assert (router.policy_version, engines[0].policy_version, list(router.out)) == (5, 5, ["engine 1"])
    engines[1].come_back()
    await until(lambda: not router.out)
    assert [(engine.policy_version, engine.adapter) for engine in engines] == [(5, {"r": 4})] * 2


async def test_with_all_engines_out_a_request_waits_and_then_says_why(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    limits = replace(QUICK, patience=0.05)
    router = routed(*engines, names=["left", "right"], limits=limits)
    for engine in engines:
        engine.die()
    with pytest.raises(
        EngineFailure, match=r"no engine can be asked.*left: EngineLost.*right: EngineLost: it was killed"
    ):
        await router.generate(request("e"))
    patient = routed(*engines)
    reply = asyncio.ensure_future(patient.generate(request("e")))
    await until(lambda: len(patient.out) == 2)
    engines[1].come_back()
    assert (await reply).token_ids


async def test_a_request_that_no_engine_can_answer_takes_none_of_them_out(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    router = routed(*engines)
    for engine in engines:
        engine.broken = EngineFailure("no reply")
    with pytest.raises(EngineFailure, match="no reply"):
        await router.generate(request("poison"))
    assert [len(engine.asked) for engine in engines] == [1, 1, 1]
    assert not router.out
    for engine in engines:
        engine.broken = PromptTooLong("4097 tokens")
    with pytest.raises(PromptTooLong):
        await router.generate(request("long"))
    assert sum(len(engine.asked) for engine in engines) == 4  # it would be too long for the others as well


async def test_an_engine_that_fails_what_another_can_is_taken_out(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines, limits=replace(QUICK, first_pause=60.0, longest_pause=60.0))
    engines[0].broken = EngineFailure("out of memory")
    for n in range(4):
        await router.generate(request(f"e{n}", n))
    assert router.out == {"engine 0": "EngineFailure: out of memory"}
    assert len(engines[0].asked) == 1


async def test_an_engine_under_suspicion_gets_no_new_episodes_and_holds_none_that_left(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    engines[0].broken = EngineFailure("out of memory")
    engines[1].hold()
    replies = [asyncio.ensure_future(router.generate(request("e0")))]
    await until(lambda: engines[1].asked)
    assert engines[0].released == ["e0"]
    assert [place.sessions for place in router._places] == [0, 1]
    replies += [asyncio.ensure_future(router.generate(request(f"e{n}"))) for n in range(1, 4)]
    await until(lambda: len(engines[1].asked) == 4)
    assert len(engines[0].asked) == 1
    engines[1].let_go()
    await asyncio.gather(*replies)


async def test_weights_that_come_while_an_engine_comes_back_reach_it_as_well(routed: Routed) -> None:
    class Slow(FakeEngine):
        loading = 0

        async def update_weights(self, weights, version, *, adapter=None):
            await super().update_weights(weights, version, adapter=adapter)
            self.loading = version
            await self._free.wait()

    engines = [FakeEngine(), Slow()]
    router = routed(*engines)
    engines[1].dead = True
    await router.update_weights(weights(1.0), 1)
    engines[1].hold()
    engines[1].come_back()
    await until(lambda: engines[1].loading == 1)
    await router.update_weights(weights(2.0), 2)
    engines[1].let_go()
    await until(lambda: not router.out)
    assert (engines[1].policy_version, engines[1].weights["a.weight"]) == (2, [2.0, 2.0])


async def test_an_engine_alone_that_never_answers_is_taken_out_and_tried_again() -> None:
    engine = FakeEngine(keeps_weights=True)
    router = Router([engine], limits=replace(QUICK, first_pause=60.0))
    engine.broken = EngineFailure("out of memory")
    for _ in range(3):
        with pytest.raises(EngineFailure, match="out of memory"):
            await router.generate(request())
    assert list(router.out) == ["engine 0"]
    await router.close()


async def test_a_request_that_ends_one_engine_after_the_other_is_given_up(routed: Routed) -> None:
    class Fragile(FakeEngine):
        async def generate(self, request: GenerationRequest):
            if request.session_id == "poison":
                self.dead = True
            return await super().generate(request)

    engines = [Fragile() for _ in range(5)]
    router = routed(*engines)
    with pytest.raises(EngineFailure, match="3 engines were lost over one request"):
        await router.generate(request("poison"))
    assert sum(engine.dead for engine in engines) == 3
    assert (await router.generate(request("healthy"))).token_ids


async def test_an_engine_that_answers_nobody_is_lost(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    limits = replace(QUICK, stall=0.05, first_pause=60.0, longest_pause=60.0)
    router = routed(*engines, limits=limits)
    engines[0].hold()
    replies = await asyncio.gather(*[router.generate(request(f"e{n}", n)) for n in range(6)])
    assert len(replies) == len(engines[1].served) == 6
    assert "answered no request for 0.05 s" in router.out["engine 0"]


async def test_a_call_that_is_given_up_is_given_up_by_the_engine(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines)
    engines[0].hold()
    call = asyncio.ensure_future(router.generate(request("e")))
    await until(lambda: engines[0].asked)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    engines[0].let_go()
    await asyncio.sleep(0)
    assert not engines[0].served
    assert not router.out


async def test_sessions_that_nobody_released_are_forgotten_in_time(routed: Routed) -> None:
    engines = [FakeEngine(), FakeEngine()]
    router = routed(*engines, limits=RouterLimits(sessions=100))
    for n in range(1000):
        await router.generate(request(f"e{n}", n))
        await router.generate(request("busy", n))
    assert len(router._sessions) == 100
    assert sum(place.sessions for place in router._places) == 100
    assert "e0" in engines[0].released + engines[1].released
    assert "busy" not in engines[0].released + engines[1].released


async def test_counters_are_summed(routed: Routed) -> None:
    router = routed(FakeEngine(), FakeEngine())
    await asyncio.gather(*[router.generate(request(f"e{n}", n, tokens=5)) for n in range(4)])
    assert router.stats() == {"generated_tokens": 20.0}
    assert router.stats() == {"generated_tokens": 0.0}


def test_what_cannot_be_one_engine_is_refused(lm: LoadedModel) -> None:
    with pytest.raises(ContractError, match="at least one"):
        Router([])
    with pytest.raises(ContractError, match="one sort"):
        Router([TransformersInferenceEngine(lm), TransformersInferenceEngine(lm, shared=True)])
    with pytest.raises(ContractError, match="give the router `files`"):
        Router([FakeEngine()])


async def test_engines_that_share_the_learners_module_are_told_the_version(lm: LoadedModel) -> None:
    router = Router([TransformersInferenceEngine(lm, shared=True)])
    assert router.shares_weights
    await router.update_weights(None, 3)
    reply = await router.generate(GenerationRequest((10, 11), (), SamplingParams(max_tokens=2, seed=1)))
    assert (router.policy_version, reply.policy_version) == (3, 3)
    await router.close()
