"""`uirl eval`: how good a finished policy is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.config.stored import override_stored
from uirl.environments import BaseEnvironment
from uirl.errors import CheckpointError, ConfigError, StorageError
from uirl.learner import Policy, latest_checkpoint, load_policy
from uirl.learner.checkpoint import read_state
from uirl.rollout.players import Order
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.files import require_plain
from uirl.runtime.folders import number_of
from uirl.storage import TrajectoryStore, free_run_name, origin_of, run_of
from uirl.storage.rows import read_rows
from uirl.training.assembly import assemble
from uirl.training.channels.choose import local_channel, open_channel
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.record.instances import unpacked
from uirl.training.record.progress import doing
from uirl.training.resume import checkpoint_of
from uirl.training.tasks.task_sets import stored_tasks
from uirl.types import Trajectory


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
    record: str | Path | None = None,
) -> EvaluationReport:
    """Return the report on the policy at `path`: a run directory (its newest checkpoint), a checkpoint, or a HF folder.

    The config is the one stored with the run, with `overrides`. Tasks are those of the file `tasks_path`, else those
    the run itself is measured on, unless `overrides` change its environment. Instances are those of the split 'test',
    the same that the summary of a run reports on; the report says which of them the policy was trained on. `record`: a
    new trajectory store for the episodes; None: they are not kept. Raises CheckpointError where there is nothing to
    load, ConfigError where that config would run code (see `override_stored`), and RolloutFailure where every episode
    failed.
    """
    if episodes < 1 or not 1 <= tries <= episodes:
        raise ConfigError(f"expected 1 <= tries <= episodes, got tries={tries} and episodes={episodes}")
    if record is not None:
        record = Path(record).absolute()  # the environment may go to another folder
        _require_free(record)
    path = saved_as(Path(path))
    folder, stored = locate(path)
    config = override_stored(stored, overrides, run_of(path) or path)
    same = config.environment == stored.environment
    tasks = _tasks_for(path, tasks_path, same=same)
    speakers = _speakers_of(path, folder) if same else set()
    if tasks is not None:
        config.environment.tasks = None  # the file of the training tasks may lie on another machine
    with doing(f"loading {folder}"):
        policy = policy_at(folder, config)
        parts = assemble(config, environment, reward_fn, policy=policy, eval_dataset=tasks)
    trained = trained_by(folder)
    loop = EventLoopThread()
    order = Order("eval", config.training.eval_temperature if temperature is None else temperature)

    async def play(on_finished: Callable[[Trajectory], None]) -> EvaluationReport:
        try:
            async with open_channel(parts, make=local_channel) as channel:
                player = channel.player(order)
                player.on_finished = on_finished
                return await evaluate_episodes(
                    player,
                    parts.tasks.evaluation,
                    episodes=episodes,
                    tries=tries,
                    split="test",
                    seed=config.training.seed,
                    speakers=speakers,
                    trained=trained,
                )
        finally:
            await parts.close()

    with _store(record, origin_of(config.model, config.inference, checkpoint=str(folder))) as store:

        def keep(trajectory: Trajectory) -> None:
            if store is not None:
                store.add(trajectory, step=number_of(folder) or 0, split="test", images=parts.images)

        try:
            report = loop.run(play(keep))
        finally:
            loop.close()
    require_evidence(report.trajectories, "of the evaluation")
    return report


@contextlib.contextmanager
def _store(record: str | Path | None, origin: Mapping[str, Any]) -> Iterator[TrajectoryStore | None]:
    if record is None:
        yield None
        return
    _require_free(record)  # another evaluation may have begun while the model was loaded
    store = TrajectoryStore(record, origin=origin)
    try:
        yield store
    finally:
        empty = store.count() == 0
        store.close()
        if empty:  # of an evaluation that did not begin
            Path(record).unlink()


def _require_free(record: str | Path) -> None:
    if Path(record).exists():
        raise StorageError(f"{record} exists already; choose another file for the episodes of this evaluation")


def free_record(path: Path) -> Path:
    """Return where `uirl eval` puts its episodes: a new file in `evaluations` of the run that `path` is or belongs to;
    for other folders, which may be somebody else's, in `runs/evaluations`."""
    folder, config = locate(path)
    home = run_of(path) or Path(config.logging.runs_dir)
    return home / "evaluations" / f"{free_run_name(home / 'evaluations', folder.name, '.sqlite')}.sqlite"


def _tasks_for(path: Path, tasks_path: str | Path | None, *, same: bool) -> list[Any] | None:
    """Return the tasks that a file says; None: the config says which. `same`: the environment is that of the run."""
    if tasks_path is not None:
        return read_rows(str(tasks_path))
    stored = stored_tasks(path) if same else None
    return None if stored is None else read_rows(str(stored))


def _speakers_of(path: Path, folder: Path) -> set[str]:
    """Return the environments that were heard, in the run that `path` is or belongs to and before the
    checkpoint `folder`, to say what success is."""
    run = run_of(path)
    stores = () if run is None else (run / "trajectories.sqlite", *run.glob("round_*/episodes.sqlite"))
    speakers: set[str] = set(_state_of(folder).get("speakers", ()))
    for file in stores:
        if file.is_file():
            with TrajectoryStore(file, read_only=True) as store:
                speakers |= store.speakers
    return speakers


def locate(path: Path) -> tuple[Path, ConfigStore]:
    """Return (folder with the weights, config) of what a person points at."""
    path = saved_as(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; expected a run directory, a checkpoint or a HF model folder")
    run = run_of(path)
    if run is not None:
        require_plain(run)
    if (path / "checkpoints").is_dir():
        config = ConfigStore.from_yaml(path / "config.yaml")
        home = Path(config.checkpoint.output_dir) if config.checkpoint.output_dir else path / "checkpoints"
        newest = latest_checkpoint(home)
        if newest is None:
            raise CheckpointError(f"{path} has no finished checkpoint yet; wait for the first or train longer")
        return newest, config
    for candidate in (path / "config.yaml", path.resolve().parent.parent / "config.yaml"):
        if candidate.is_file():
            return path, ConfigStore.from_yaml(candidate)
    if (path / "config.json").is_file():
        return path, ConfigStore()
    raise CheckpointError(
        f"{path} is neither a run directory, nor a checkpoint, nor a HF model folder (no config.json)"
    )


def saved_as(path: Path) -> Path:
    """Return `path`; where nothing is there and it is called 'checkpoint_step_1000.pt', the checkpoint of that step
    beside it."""
    step = re.fullmatch(r"checkpoint_step_(\d+)(\.pt)?", path.name)
    if path.exists() or step is None:
        return path
    ours = checkpoint_of(path.parent, int(step[1]))
    return ours if ours.exists() else path


def trained_by(folder: Path) -> set[str] | None:
    """Return the fingerprints of what the policy of a checkpoint was trained on; None: it does not say."""
    told = _state_of(folder).get("trained")
    return None if told is None else unpacked(told)


def _state_of(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint says of its run; nothing for a HF folder."""
    if (folder / "config.json").is_file():
        return {}
    state: dict[str, Any] = read_state(folder).extra.get("state", {})
    return state


def policy_at(folder: Path, config: ConfigStore) -> Policy:
    """Return the policy in a checkpoint or in a HF folder."""
    if (folder / "config.json").is_file():
        config.model.local_path = str(folder)
        return Policy.from_config(config)  # with a fresh critic where the estimator wants one: nobody asks it here
    return load_policy(folder, model=config.model)
