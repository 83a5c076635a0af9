"""Checks of `uirl check` on an environment and its tasks: what makes a success rate mean less than it says."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from uirl.environments import BaseEnvironment
from uirl.environments.instances import look_alike, signature_of, takes_seed, takes_task
from uirl.environments.session import EnvironmentSession
from uirl.errors import RolloutFailure
from uirl.metrics import success_interval
from uirl.training.assembly import Assembly
from uirl.training.checks import Finding
from uirl.training.evaluation.evaluation import HELD_OUT_SEED
from uirl.training.record.instances import fingerprint_of
from uirl.training.tasks.sources import UniformTasks
from uirl.training.tasks.task_sets import content_of

TASKS, SEEDS = 4, 8
"""Tasks and seeds that are compared, until two differ."""
TRAINED, EVALUATED = 48, 32
"""Instances of training and of evaluation that are begun, to see whether they are the same."""


async def check_tasks(parts: Assembly) -> list[Finding]:
    """Return what each check found that can be made: whether tasks arrive, whether seeds arrive, and whether
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
    held_out = _held_out_finding(parts, fixed)
    if held_out.ok and not parts.environment.fixed_start:
        with contextlib.suppress(RolloutFailure):  # named by the check of the contract
            held_out = await _content_finding(parts, held_out)
    found.append(held_out)
    return found


async def _tasks_arrive(parts: Assembly) -> list[Finding]:
    distinct: dict[Any, Any] = {}
    for task in parts.tasks.train:
        distinct.setdefault(content_of(task), task)
        if len(distinct) == TASKS:
            break
    if len(distinct) < 2:
        return []
    tasks = [replace(task, seed=None) for task in distinct.values()]
    seed, limit = parts.config.training.seed, parts.config.environment.timeouts[1]
    alike = await look_alike(parts.environment, [(task, seed) for task in tasks], fresh=True, timeout=limit)
    names = ", ".join(repr(task.id) for task in tasks)
    if not alike:
        return [Finding("tasks", True, f"{len(parts.tasks.train)} tasks, and the environment tells them apart")]
    detail = (
        f"the tasks {names} begin, answer and are solved alike: the environment ignores its task; read task.goal, "
        f"task.checks or task.id in {signature_of(parts.environment)}"
    )
    return [Finding("tasks", False, detail)]


async def _seeds_alike(parts: Assembly) -> bool:
    task = replace(parts.tasks.train[0], seed=None)
    first, limit = parts.config.training.seed, parts.config.environment.timeouts[1]
    return await look_alike(parts.environment, [(task, first + i) for i in range(SEEDS)], fresh=True, timeout=limit)


def _seeds_finding(parts: Assembly, alike: bool) -> Finding:
    if not alike:
        return Finding("seeds", True, "other seeds make other instances")
    return Finding(
        "seeds",
        False,
        f"{SEEDS} seeds gave the same episode, though {signature_of(parts.environment)} takes one: every episode is "
        "the same instance, and none is held out; draw the instance from the seed, or, where a task has only one, say "
        "fixed_start = True in the class",
    )


def _held_out_finding(parts: Assembly, fixed: bool) -> Finding:
    tasks = parts.tasks
    remedy = "name other tasks: environment.eval_tasks, environment.eval_options or eval_dataset"
    if tasks.repeated:
        detail = (
            f"{len(tasks.repeated)} of {len(tasks.evaluation)} evaluation tasks, such as {tasks.repeated[0].id!r}, "
        )
        return Finding(
            "held-out tasks",
            False,
            detail + f"name the seed of the very instance that training plays; leave the seed out, or {remedy}",
        )
    if fixed and tasks.shared and len(tasks.train) > 1:
        detail = f"{len(tasks.shared)} of {len(tasks.evaluation)} evaluation tasks are training tasks, and a task has "
        return Finding(
            "held-out tasks",
            False,
            detail + f"one instance: the success of an evaluation is that of training; {remedy}",
        )
    return Finding("held-out tasks", True, tasks.summary.removeprefix("evaluation: "))


async def _content_finding(parts: Assembly, passed: Finding) -> Finding:
    """Return `passed`, or what is wrong: evaluations play instances that begin and are solved like those of training.

    Of those of evaluations a share of at least h (the low end of its interval) is found again among `TRAINED` of
    training. With n of these in the whole run that is 1 - (1 - h)^(n / TRAINED).
    """
    training, seed = parts.config.training, parts.config.training.seed
    trained = await _begun(parts, parts.environment, UniformTasks(parts.tasks.train, seed=seed), TRAINED)
    source = UniformTasks(parts.tasks.evaluation, seed=seed, split="test", instance_seed=HELD_OUT_SEED)
    evaluated = await _begun(parts, parts.eval_environment, source, EVALUATED)
    if len({*trained, *evaluated}) == 1:
        return Finding(
            passed.what,
            True,
            "not known: all instances begin alike, in training and in evaluations; where the environment hides what "
            "makes them differ, it can name it in Observation.state_key",
        )
    hits = sum(one in trained for one in evaluated)
    least = success_interval(hits, EVALUATED)[0]
    groups = training.num_epochs * training.num_iters_per_epoch * training.batch_size / (training.group_size or 1)
    share = 1 - (1 - least) ** max(1.0, groups / TRAINED)
    if share <= 0.5:
        return passed
    return Finding(
        passed.what,
        False,
        f"{hits} of {EVALUATED} instances of an evaluation begin like one of {TRAINED} of training; over the run that "
        f"is at least {100 * share:.0f} % of them, and its success says little of others. Draw from more instances, "
        "or name other tasks: environment.eval_tasks, environment.eval_options or eval_dataset",
    )


async def _begun(parts: Assembly, environment: BaseEnvironment, source: UniformTasks, count: int) -> list[str]:
    """Return the fingerprints of the next `count` instances of `source`. Raises RolloutFailure."""
    limit = parts.config.environment.timeouts[1]
    session = EnvironmentSession(environment.spawn(), limit, limit)
    try:
        found = []
        for (spec,) in source.groups(count, 1):
            found.append(fingerprint_of(spec.task, await session.reset(spec.task, spec.environment_seed)))
        return found
    finally:
        if not session.broken:
            await session.close()
