"""Requests to verl's rollout servers when one of them dies: verl's own client and balancer, without Ray's processes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from uirl.integrations.verl.rollout.servers import SurvivingClient, surviving

pytestmark = pytest.mark.verl
CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="cpu")))


class Local:
    """An object called as Ray calls an actor, in this process."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **options: Any) -> asyncio.Future[Any]:
            answer = asyncio.get_running_loop().create_future()
            try:
                answer.set_result(getattr(self.inner, name)(*arguments, **options))
            except Exception as error:
                answer.set_exception(error)
                answer.exception()  # not every answer is waited for
            return answer

        return SimpleNamespace(remote=remote)


class Server:
    """Answers with its number, until it is dead."""

    def __init__(self, number: int) -> None:
        self.number, self.dead, self.asked = number, False, 0

    def generate(self, **request: Any) -> TokenOutput:
        self.asked += 1
        if self.dead:
            raise ActorDiedError
        return TokenOutput(token_ids=[self.number], log_probs=[-0.5], stop_reason="completed")


def started(count: int) -> tuple[list[Server], LLMServerClient]:
    servers = [Server(i) for i in range(count)]
    balancer = GlobalRequestLoadBalancer({f"server {s.number}": Local(s) for s in servers})
    return servers, surviving(LLMServerClient(CONFIG, Local(balancer)))


def answers(client: LLMServerClient, ids: list[str]) -> list[int]:
    async def ask() -> list[Any]:
        asked = (client.generate(request_id, prompt_ids=[1], sampling_params={}) for request_id in ids)
        return await asyncio.gather(*asked)

    return [made.token_ids[0] for made in asyncio.run(ask())]


def test_a_dead_server_is_left_out_and_no_request_is_lost() -> None:
    servers, client = started(3)
    ids = [f"episode {i}" for i in range(30)]
    assert set(answers(client, ids)) == {0, 1, 2}
    servers[1].dead, servers[1].asked = True, 0
    assert set(answers(client, ids)) == {0, 2}
    assert servers[1].asked <= len(ids)
    servers[1].asked = 0
    answers(client, ids)
    assert servers[1].asked == 0, "the idlest server of all would get everything"


def test_turns_of_an_episode_stay_at_one_server() -> None:
    _, client = started(3)
    assert len({answers(client, ["one"])[0] for _ in range(10)}) == 1


def test_without_a_server_it_is_told() -> None:
    servers, client = started(2)
    for server in servers:
        server.dead = True
    with pytest.raises(RuntimeError, match="No available servers"):
        answers(client, ["one"])


def test_other_clients_are_left_as_they_are() -> None:
    own = FullyAsyncLLMServerClient(CONFIG, None)
    assert surviving(own) is own
    assert surviving("client") == "client"
    assert isinstance(surviving(LLMServerClient(CONFIG, None)), SurvivingClient)
