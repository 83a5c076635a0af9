"""What a checkpoint of verl's holds of ours: the state of the dataset and the tally of the episodes.

verl's trainers load `StateCallback` by its name (`trainer.checkpoint_callback_class`) in the task-runner actor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ray
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from uirl.errors import CheckpointError
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.trainer.record import StepRecord
from uirl.runtime.files import write_atomically

STATE = "uirl.json"
"""File in a checkpoint of verl's that holds what is ours."""


class StateCallback(CheckpointCallback):
    """Writes what is ours beside verl's shards; `trainer.checkpoint_callback_class` names it."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        write_state(Path(checkpoint_dir), trainer.train_dataset, getattr(trainer, "record", None))


def write_state(folder: Path, dataset: Any, record: StepRecord | None) -> None:
    """Write the dataset's state and the tally of the run into a checkpoint of verl's."""
    state = {
        "format": 1,
        "dataset": dataset.state_dict() if hasattr(dataset, "state_dict") else None,
        "tally": None if record is None else record.tally.to_dict(),
    }
    write_atomically(folder / STATE, json.dumps(state))


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises CheckpointError where the checkpoint holds no such state."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds no readable {STATE}: {error}; it was not saved by a run of ours (trainer."
            "checkpoint_callback_class), or is damaged. Continue an older global_step_* with trainer.resume_mode="
            "resume_path"
        ) from error
    return state


def continue_record(trainer: Any, settings: Settings, coordinator: Any) -> StepRecord:
    """Restore what is ours from the checkpoint that a trainer of verl's has loaded, and open the record after it."""
    step, state = trainer.global_steps or None, {}
    if step is not None:
        folder = Path(trainer.config.trainer.default_local_dir) / f"global_step_{step}"
        if trainer.config.trainer.resume_mode == "resume_path":
            folder = Path(trainer.config.trainer.resume_from_path)
        state = read_state(folder)
        trainer.train_dataset.load_state_dict(state["dataset"])
    ray.get(coordinator.begin.remote(step))
    return StepRecord(settings, step, state.get("tally"))


def check_world_size(config: Any, gpus: int) -> None:
    """Raise CheckpointError where FSDP's shards were written by another number of GPUs: verl gives each
    rank the file of its own number."""
    if config.trainer.resume_mode == "disable":
        return
    folder = Path(config.trainer.default_local_dir)
    if config.trainer.resume_mode == "resume_path":
        step = Path(config.trainer.resume_from_path)
    else:
        newest = folder / "latest_checkpointed_iteration.txt"
        if not newest.is_file():
            return
        step = folder / f"global_step_{newest.read_text().strip()}"
    described = step / "actor" / "fsdp_config.json"
    if not described.is_file():
        return  # Megatron's, which say nothing of it
    world_size = int(json.loads(described.read_text())["world_size"])
    if world_size != gpus:
        raise CheckpointError(
            f"{step} was written by {world_size} GPUs, one file each, and this run has {gpus}; continue with as many "
            "(trainer.nnodes, trainer.n_gpus_per_node), or start a new run from what `uirl verl --export` makes of it "
            "(--sft_model_path)"
        )
