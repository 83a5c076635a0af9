"""Checks of `uirl check` on an environment and its tasks: what makes a success rate mean less than it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uirl.environments.instances import look_alike, signature_of, takes_seed, takes_task
from uirl.errors import RolloutFailure
from uirl.training.assembly import Assembly
from uirl.training.tasks.task_sets import content_of

TASKS, SEEDS = 4, 8
"""Tasks and seeds that are compared, until two differ."""


async def check_tasks(parts: Assembly) -> list[tuple[str, bool, str]]:
    """Return (what, ok, detail) of each check that can be made: whether tasks arrive, whether seeds arrive, and whether
    evaluations are held out. An environment that fails here is named by the check of its contract."""
    found = []
    try:
        if takes_task(parts.environment):
            found += await _tasks_arrive(parts)
        fixed = parts.environment.fixed_start
        if takes_seed(parts.environment) and not fixed:
            alike = await _seeds_alike(parts)
            found.append(_seeds_finding(parts, alike))
            fixed = alike
    except RolloutFailure:
        return found
    found.append(_held_out_finding(parts, fixed))
    return found


async def _tasks_arrive(parts: Assembly) -> list[tuple[str, bool, str]]:
    distinct: dict[Any, Any] = {}
    for task in parts.tasks.train:
        distinct.setdefault((task.goal, content_of(task)[2]) if task.goal or task.checks else task.id, task)
        if len(distinct) == TASKS:
            break
    if len(distinct) < 2:
        return []
    tasks = [replace(task, seed=None) for task in distinct.values()]
    seed, limit = parts.config.training.seed, parts.config.environment.reset_timeout or float("inf")
    alike = await look_alike(parts.environment, [(task, seed) for task in tasks], fresh=True, timeout=limit)
    names = ", ".join(repr(task.id) for task in tasks)
    if not alike:
        return [("tasks", True, f"{len(parts.tasks.train)} tasks, and the environment tells them apart")]
    return [
        (
            "tasks",
            False,
            f"the tasks {names} begin, answer and are solved alike: the environment ignores its task; read task.goal, "
            f"task.checks or task.id in {signature_of(parts.environment)}",
        )
    ]


async def _seeds_alike(parts: Assembly) -> bool:
    task = replace(parts.tasks.train[0], seed=None)
    first, limit = parts.config.training.seed, parts.config.environment.reset_timeout or float("inf")
    return await look_alike(parts.environment, [(task, first + i) for i in range(SEEDS)], fresh=True, timeout=limit)


def _seeds_finding(parts: Assembly, alike: bool) -> tuple[str, bool, str]:
    if not alike:
        return ("seeds", True, "other seeds make other instances")
    return (
        "seeds",
        False,
        f"{SEEDS} seeds gave the same episode, though {signature_of(parts.environment)} takes one: every episode is "
        "the same instance, and none is held out; draw the instance from the seed, or, where a task has only one, say "
        "fixed_start = True in the class",
    )


def _held_out_finding(parts: Assembly, fixed: bool) -> tuple[str, bool, str]:
    tasks = parts.tasks
    remedy = "name other tasks: environment.eval_tasks, environment.eval_options or eval_dataset"
    if tasks.repeated:
        detail = (
            f"{len(tasks.repeated)} of {len(tasks.evaluation)} evaluation tasks, such as {tasks.repeated[0].id!r}, "
        )
        return (
            "held-out tasks",
            False,
            detail + f"name the seed of the very instance that training plays; leave the seed out, or {remedy}",
        )
    if fixed and tasks.shared and len(tasks.train) > 1:
        detail = f"{len(tasks.shared)} of {len(tasks.evaluation)} evaluation tasks are training tasks, and a task has "
        return (
            "held-out tasks",
            False,
            detail + f"one instance: the success of an evaluation is that of training; {remedy}",
        )
    return ("held-out tasks", True, tasks.summary.removeprefix("evaluation: "))
