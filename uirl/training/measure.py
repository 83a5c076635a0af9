"""`uirl eval`: how good a finished policy is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import CheckpointError
from uirl.event_loop import EventLoopThread
from uirl.learner import Policy, latest_checkpoint, load_policy
from uirl.rollout.episode import RewardFunction
from uirl.training.assembly import assemble
from uirl.training.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.task_sets import read_tasks, stored_tasks


def measure(
    path: str | Path,
    *,
    tasks_path: str | Path | None = None,
    episodes: int = 256,
    tries: int = 1,
    temperature: float | None = None,
    overrides: Sequence[str] = (),
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFunction | None = None,
) -> EvaluationReport:
    """The report on the policy at `path`: a run directory (its newest checkpoint), a checkpoint, or a HF folder.

    The config is the one stored with the run, with `overrides`. Tasks are those of the file `tasks_path`, else those
    the run itself is measured on, unless `overrides` change its environment. Instances are the held-out ones of the
    split 'test', the same that the summary of a run reports on. Raises CheckpointError where there is nothing to load,
    and RolloutFailure where every episode failed.
    """
    folder, stored = locate(Path(path))
    config = stored.override([*overrides])
    tasks = _tasks_for(Path(path), tasks_path, same=config.environment == stored.environment)
    if tasks is not None:
        config.environment.tasks = None  # the file of the training tasks may lie on another machine
    policy = policy_at(folder, config)
    parts = assemble(config, environment, reward_fn, policy=policy, eval_dataset=tasks)
    loop = EventLoopThread()

    async def play() -> EvaluationReport:
        try:
            asked = config.training.eval_temperature if temperature is None else temperature
            return await evaluate_episodes(
                parts.eval_collector,
                parts.player(temperature=asked),
                parts.tasks.evaluation,
                episodes=episodes,
                tries=tries,
                split="test",
                seed=config.training.seed,
            )
        finally:
            await parts.close()

    try:
        report = loop.run(play())
    finally:
        loop.close()
    require_evidence(report.trajectories, "of the evaluation")
    return report


def _tasks_for(path: Path, tasks_path: str | Path | None, *, same: bool) -> list[Any] | None:
    """The tasks that a file says; None: the config says which. `same`: the environment is that of the run."""
    if tasks_path is not None:
        return read_tasks(Path(tasks_path))
    stored = stored_tasks(path) if same else None
    return None if stored is None else read_tasks(stored)


def locate(path: Path) -> tuple[Path, ConfigStore]:
    """(folder with the weights, config) of what a person points at."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; expected a run directory, a checkpoint or a HF model folder")
    if (path / "checkpoints").is_dir():
        config = ConfigStore.from_yaml(path / "config.yaml")
        home = Path(config.checkpoint.output_dir) if config.checkpoint.output_dir else path / "checkpoints"
        newest = latest_checkpoint(home)
        if newest is None:
            raise CheckpointError(f"{path} has no finished checkpoint yet; wait for the first or train longer")
        return newest, config
    for candidate in (path / "config.yaml", path.parent.parent / "config.yaml"):
        if candidate.is_file():
            return path, ConfigStore.from_yaml(candidate)
    if (path / "config.json").is_file():
        return path, ConfigStore()
    raise CheckpointError(
        f"{path} is neither a run directory, nor a checkpoint, nor a HF model folder (no config.json)"
    )


def policy_at(folder: Path, config: ConfigStore) -> Policy:
    """The policy in a checkpoint or in a HF folder."""
    if (folder / "config.json").is_file():
        config.model.local_path = str(folder)
        return Policy.from_config(config)  # with a fresh critic where the estimator wants one: nobody asks it here
    return load_policy(folder)
