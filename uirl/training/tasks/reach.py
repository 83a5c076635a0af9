"""What a run asks of `reset`: that tasks arrive, and that the episodes of a group share an instance."""

from __future__ import annotations

from collections.abc import Sequence

from uirl.config.sections.training import GROUP_ESTIMATORS
from uirl.environments import BaseEnvironment
from uirl.environments.instances import look_alike, signature_of, takes_seed, takes_task
from uirl.errors import ConfigError, RolloutFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.training.record.progress import say
from uirl.types import Task

RESETS = 4
"""Resets that are compared where an environment takes no seed."""


def require_tasks_arrive(environment: BaseEnvironment, tasks: Sequence[Task], *, of_environment: bool) -> None:
    """Raise ConfigError where `reset` cannot be told what `tasks` say. `of_environment`: they are the environment's
    own, of which a single one may be no more than its name."""
    if takes_task(environment) or (of_environment and len(tasks) == 1):
        return
    seeded = takes_seed(environment)
    for task in tasks:
        says = task.goal or task.checks or (task.seed is not None and not seeded)
        if says or (len(tasks) > 1 and task.seed is None):
            task_name = f"goal {task.goal!r:.60}" if task.goal else f"id {task.id!r}"
            raise ConfigError(
                f"there are {len(tasks)} tasks, but {signature_of(environment)} takes no `task`: the one with the "
                f"{task_name} would be played like every other; write reset(self, task=None, seed=None) and read "
                "task.goal, task.checks or task.id there"
                + (" (a task that is a seed and nothing else needs no more)" * seeded)
            )


def require_shared_instances(
    environment: BaseEnvironment, tasks: Sequence[Task], estimator: str, reset_timeout: float | None
) -> None:
    """Raise ConfigError where a method compares the episodes of a group and they would be different instances.

    A `reset` that takes no seed is tried a few times: what differs is refused, what does not is said.
    """
    if estimator not in GROUP_ESTIMATORS or environment.fixed_start or takes_seed(environment):
        return
    loop = EventLoopThread()
    timeout = reset_timeout or float("inf")
    try:
        same = loop.run(look_alike(environment, [(tasks[0], None)] * RESETS, fresh=False, timeout=timeout))
    except RolloutFailure as failure:
        say(f"{signature_of(environment)} takes no seed, and whether it repeats itself could not be tried: {failure}")
        return
    finally:
        loop.close()
    why = (
        f"training.adv_estimator={estimator} compares episodes of one instance, and {signature_of(environment)} takes "
        "no `seed`"
    )
    if not same:
        raise ConfigError(
            f"{why}: {RESETS} resets gave different episodes, so a group would compare luck; write reset(self, "
            "seed=None) and draw everything from that seed, or, where every episode does begin in the same state, say "
            "fixed_start = True in the class"
        )
    say(f"{why}; {RESETS} resets gave the same episode, so it is taken to be the same each time (fixed_start = True)")
