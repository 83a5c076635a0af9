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
from uirl.integrations.verl.rollout.coordinator import find_coordinator
from uirl.integrations.verl.rollout.pictures import PictureWorker


class ReportingWorker(PictureWorker):
    """Ray actor: plays episodes, packs their pictures, and reports every error that is no failure of an episode to the
    coordinator."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Ray wraps the constructor of an actor's own class, and breaks `super()` in one that is inherited
        super().__init__(*arguments, **options)

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


class ReportingManager(AgentLoopManagerTQ):
    """verl's manager, with the workers above."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.agent_loop_workers_class = ray.remote(ReportingWorker)


def portable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its message where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception may take any arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
