"""verl's agent-loop workers, which hand an error that is meant for the person to the trainer.

verl logs what an episode raises in the process that played it, and goes on with the rest of its group.
"""

from __future__ import annotations

import pickle
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from uirl.errors import RolloutFailure
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.rollout.pictures import PictureWorker
from uirl.integrations.verl.trainer.coordinator import find_office


class TellingWorker(PictureWorker):
    """Ray actor: plays episodes, keeps their pictures small, and tells the office of every error that is no failure of
    an episode."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Ray wraps the constructor of an actor's own class, and breaks `super()` in one that is inherited
        super().__init__(*arguments, **options)

    async def _run_agent_loop(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super()._run_agent_loop(*arguments, **options)
        except RolloutFailure:
            raise
        except Exception as error:  # whatever it is, the episode is lost and somebody must hear of it
            office = Settings.read(self.config.data).office
            if office is not None:
                await find_office(office).complain.remote(portable(error))
            raise


class TellingManager(AgentLoopManagerTQ):
    """verl's manager, with the workers above."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.agent_loop_workers_class = ray.remote(TellingWorker)


def portable(error: Exception) -> Exception:
    """The error, or what it says where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception may take any arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
