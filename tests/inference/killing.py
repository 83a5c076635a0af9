"""An engine among several is killed in the middle of a reply, whatever started its process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.conftest import tiny_model
from tests.patience import until
from uirl.inference import GenerationRequest, Router, SamplingParams, TransformersInferenceEngine
from uirl.inference.models.copying import copy_of
from uirl.inference.workers import RemoteEngine

ASKED = [
    GenerationRequest((10, 11, 12 + n), (), SamplingParams(max_tokens=1500, temperature=0.0), f"e{n}")
    for n in (3, 5, 8, 9)
]
"""Of `tiny_model(init_seed=5)` these have replies of 1500 tokens, in which the best token is always ahead of the next
by 4e-4 nats or more: the rounding of a batch, which another machine does in another way, decides none of them."""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def check_a_kill(router: Router) -> None:
    """The others answer what a killed engine was asked, and its next process has the newest weights."""
    trained = tiny_model(init_seed=5)
    here = TransformersInferenceEngine(copy_of(trained))
    await router.update_weights(trained.model.named_parameters(), 7)
    expected = await asyncio.gather(*[here.generate(request) for request in ASKED])
    engine = router.engines[0]
    assert isinstance(engine, RemoteEngine)
    first = engine.supervisor
    replies = [asyncio.ensure_future(router.generate(request)) for request in ASKED]
    await until(lambda: router._places[0].running)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    answered = await asyncio.gather(*replies)
    assert [reply.token_ids for reply in answered] == [reply.token_ids for reply in expected]
    assert {reply.policy_version for reply in answered} == {7}
    await until(lambda: not router.out and first.state == "ready")
    assert (first.incarnation, engine.policy_version) == (2, 7)
    again = await engine.generate(ASKED[0])
    assert (again.token_ids, again.policy_version) == (expected[0].token_ids, 7)
