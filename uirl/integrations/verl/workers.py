"""verl's agent-loop workers and their client of the rollout servers, changed where our episodes need it.

Pictures are processed beside the event loop and kept as bytes: verl makes pixels of all pictures of a sequence on the
loop on which its episodes are played, as float32 (0.1 s and 22.5 MB for each screenshot of 1280 x 720). An error that
is no failure of an episode reaches the trainer: verl logs it in the worker and goes on. A dead server is left out.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import UserDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ray
import torch
from ray.exceptions import (
    ActorDiedError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from uirl.errors import ProcessLost, RolloutFailure
from uirl.inference.models.picture_cache import PackedPixels, pack_pixels
from uirl.integrations.verl.agent_loop import close_context
from uirl.integrations.verl.record import find_coordinator
from uirl.integrations.verl.settings import Settings

PIXELS = "pixel_values"
"""Under which name HuggingFace's processors give pictures as patches or planes."""


class PackedInputs(UserDict[str, Any]):
    """What a processor made for one sequence, with its pixels packed: every look at them makes them anew.

    No dict, so that verl's queue keeps it as it is and unpacks nothing on the way.
    """

    def __init__(self, inputs: Mapping[str, Any], processor: Any = None) -> None:
        super().__init__(inputs)
        pixels = self.data.get(PIXELS)
        packed = pack_pixels(pixels, processor) if isinstance(pixels, torch.Tensor) else None
        if packed is not None:
            self.data[PIXELS] = packed

    def __getitem__(self, key: str) -> Any:
        value = self.data[key]
        return value.unpack() if isinstance(value, PackedPixels) else value

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_Worker: type = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__


class EpisodeWorker(_Worker):
    """Ray actor: verl's worker of the V1 trainers, with one thread beside it for pictures."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # one: HuggingFace's tokenizers do not bear two callers at once
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="pictures")
        self._packed_inputs: dict[int, PackedInputs] = {}

    async def _run_agent_loop(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super()._run_agent_loop(*arguments, **options)
        except RolloutFailure:
            raise
        except Exception as error:  # whatever it is, the episode is lost and somebody must hear of it
            coordinator = Settings.read(self.config.data).coordinator
            if coordinator is not None:
                await find_coordinator(coordinator).report_error.remote(portable(error))
            raise

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: Any) -> None:
        outputs = output if isinstance(output, list) else [output]
        loop = asyncio.get_running_loop()
        for one in outputs:
            if one.multi_modal_data:
                self._packed_inputs[id(one)] = await loop.run_in_executor(self._beside, self._packed, one)
        try:
            await super()._agent_loop_postprocess(output, validate, **row)
        finally:
            for one in outputs:
                self._packed_inputs.pop(id(one), None)

    def _compute_multi_modal_inputs(self, output: Any, input_ids: torch.Tensor) -> Any:
        packed = self._packed_inputs.pop(id(output), None)
        return super()._compute_multi_modal_inputs(output, input_ids) if packed is None else packed

    def _packed(self, output: Any) -> PackedInputs:
        ids = torch.tensor([*output.prompt_ids, *output.response_ids])
        inputs = super()._compute_multi_modal_inputs(output, ids)
        return PackedInputs(inputs, getattr(self.processor, "image_processor", None))


class EpisodeManager(AgentLoopManagerTQ):
    """verl's manager, with the workers above."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.agent_loop_workers_class = ray.remote(EpisodeWorker)


def portable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its message where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception may take any arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class SurvivingClient(LLMServerClient):
    """verl's client, which takes a dead server out of the balancer and asks another one.

    A dead server answers at once, so verl's balancer finds it idle and sends it everything. A request holds the whole
    prompt: another server, with the same weights, gives the same answer. Raises RuntimeError where no server is left.
    """

    def __init__(self, config: Any, load_balancer_handle: Any = None, **options: Any) -> None:
        super().__init__(config, load_balancer_handle, **options)
        self._server_of: dict[str, str] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server, handle = await super()._acquire_server(request_id, **extra)
        self._server_of[request_id] = server
        return server, handle

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Generate as verl's client does, and ask another server where one is dead. Requests of one `request_id` are in
        flight one at a time, as turns of an episode are."""
        try:
            while True:
                try:
                    return await super().generate(request_id, **request)
                except ActorDiedError:
                    server = self._server_of.pop(request_id, None)
                    if server is None:  # it was the balancer
                        raise
                    await self._load_balancer.remove_servers.remote([server])
        finally:
            self._server_of.pop(request_id, None)


def surviving(client: Any) -> Any:
    """Return `client`, or a `SurvivingClient` in its place where it is verl's plain one."""
    if type(client) is not LLMServerClient:
        return client  # somebody else's, or the one for asynchronous trainers
    return SurvivingClient(client.config, client._load_balancer)


# whether the processes of a run still live: verl waits for their work in a loop that asks nobody

DEATHS = (RayActorError, WorkerCrashedError, NodeDiedError, LocalRayletDiedError, ObjectLostError, OutOfMemoryError)
"""Ray's errors that say a process or its machine is gone."""


class Watch:
    """Asks actors for a sign of life. One that is busy answers late, which is no death; a dead one makes Ray answer."""

    def __init__(self, actors: Mapping[str, Any], every: float = 5.0) -> None:
        """Watch `actors`: what to call them in messages -> handle. `every`: seconds between two questions."""
        self._actors = dict(actors)
        self._every = every
        self._asked: dict[Any, str] = {}
        self._next = 0.0

    def dead(self, seconds: float = 0.0) -> dict[str, ActorDiedError]:
        """Return those found dead since the last call, with what Ray says. Waits at most `seconds` for answers."""
        if time.monotonic() >= self._next:
            silent = set(self._asked.values())
            self._asked |= {a.__ray_ready__.remote(): name for name, a in self._actors.items() if name not in silent}
            self._next = time.monotonic() + self._every
        answers, dead = list(self._asked), {}
        for answer in ray.wait(answers, num_returns=len(answers), timeout=seconds)[0] if answers else ():
            name = self._asked.pop(answer)
            try:
                ray.get(answer)
            except ActorDiedError as error:
                dead[name] = error
            except RayActorError:
                continue  # out of reach for the moment: it is asked again
        return dead

    def lost(self, error: BaseException) -> ProcessLost:
        """Return the error of a run that cannot go on because of what Ray says, with the actor's name."""
        dead = getattr(error, "actor_id", None)
        names = (name for name, actor in self._actors.items() if dead and actor._actor_id.hex() == dead)
        return lost(f"{next(names, 'a process of the run')} died", error)

    def check(self) -> None:
        """Raise ProcessLost where one has died."""
        for name, error in self.dead().items():
            raise lost(f"{name} died", error)


def lost(what: str, error: BaseException) -> ProcessLost:
    """Return the error of a run that cannot go on, with what Ray says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ProcessLost(
        f"{what}: {' '.join(lines)[:600]}. The steps that were saved are not lost: run again with "
        "checkpoint.resume=true and the same logging.run_name. Ray's log of the process (its dashboard, or "
        "/tmp/ray/session_latest/logs) says why it ended"
    )


def actors_of(trainer: Any, manager: Any) -> dict[str, Any]:
    """Return the actors without which a step of verl's V1 trainer never ends, by what they are. Rollout servers are
    none of them: an episode hears of a dead server itself."""
    out = {f"agent-loop worker {i}": worker for i, worker in enumerate(getattr(manager, "agent_loop_workers", ()))}
    for name, title in (("actor_rollout_wg", "learner"), ("critic_wg", "critic")):
        for rank, worker in enumerate(getattr(getattr(trainer, name, None), "workers", ())):
            if worker not in out.values():  # roles share processes
                out[f"{title} rank {rank}"] = worker
    return out | {f"reward worker {i}": worker for i, worker in enumerate(trainer.get_reward_handles() or ())}


def close_environments(manager: Any, seconds: float = 60.0) -> None:
    """Close the environments in the workers of verl's agent-loop manager, which verl ends without a word: an instance
    may hold a phone or a browser somewhere else. A worker that is gone, or needs more than `seconds`, is left alone.
    """
    workers = getattr(manager, "agent_loop_workers", ())
    for answer in [worker.__ray_call__.remote(close_context, seconds) for worker in workers]:
        with suppress(RayActorError, TimeoutError):
            ray.get(answer, timeout=seconds)
