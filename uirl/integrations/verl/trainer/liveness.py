"""Whether the processes of a run still live. verl waits for their work in a loop that asks nobody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from uirl.errors import ProcessLost

DEATHS = (RayActorError, WorkerCrashedError, NodeDiedError, LocalRayletDiedError, ObjectLostError, OutOfMemoryError)
"""Ray's errors that say a process or its machine is gone."""
REMEDY = (
    "The steps that were saved are not lost: run again with checkpoint.resume=true and the same logging.run_name. "
    "Ray's log of the process (its dashboard, or /tmp/ray/session_latest/logs) says why it ended"
)


class Watch:
    """Asks actors for a sign of life. One that is busy answers late, which is no death; a dead one makes Ray answer."""

    def __init__(self, actors: Mapping[str, Any], every: float = 5.0) -> None:
        """Watch `actors`: what to call them in messages -> handle. `every`: seconds between two questions."""
        self._actors = dict(actors)
        self._every = every
        self._asked: dict[Any, str] = {}
        self._next = 0.0

    def dead(self, seconds: float = 0.0) -> dict[str, ActorDiedError]:
        """Return those that have been found dead since the last call, each with what Ray says of it. Waits for those
        that do not answer, at most `seconds`."""
        if time.monotonic() >= self._next:
            silent = set(self._asked.values())
            self._asked |= {a.__ray_ready__.remote(): name for name, a in self._actors.items() if name not in silent}
            self._next = time.monotonic() + self._every
        answers = list(self._asked)
        if not answers:
            return {}
        dead = {}
        for answer in ray.wait(answers, num_returns=len(answers), timeout=seconds)[0]:
            name = self._asked.pop(answer)
            try:
                ray.get(answer)
            except ActorDiedError as error:
                dead[name] = error
            except RayActorError:
                continue  # out of reach for the moment: it is asked again
        return dead

    def lost(self, error: BaseException) -> ProcessLost:
        """Return the error of a run that cannot go on because of what Ray says, with the actor's name where there is
        one."""
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
    return ProcessLost(f"{what}: {' '.join(lines)[:600]}. {REMEDY}")


def actors_of(trainer: Any, manager: Any) -> dict[str, Any]:
    """Return the actors without which a step of verl's V1 trainer never ends, by what they are. Rollout servers are
    none of them: an episode hears of a dead server itself."""
    out = {f"agent-loop worker {i}": worker for i, worker in enumerate(getattr(manager, "agent_loop_workers", ()))}
    for name, title in (("actor_rollout_wg", "learner"), ("critic_wg", "critic")):
        group = getattr(trainer, name, None)
        for rank, worker in enumerate(getattr(group, "workers", ())):
            if worker not in out.values():  # roles share processes
                out[f"{title} rank {rank}"] = worker
    for i, worker in enumerate(trainer.get_reward_handles() or ()):
        out[f"reward worker {i}"] = worker
    return out
