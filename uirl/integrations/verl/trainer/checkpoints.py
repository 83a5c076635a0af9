"""A checkpoint of verl's as a HF folder that `uirl eval`, `load_model` and plain HF read.

The other way round, a checkpoint of the local trainer continues under verl by its path: `model.local_path` of a config
(see `uirl.integrations.verl.config.models.model_folder`). Weights and tokenizer go along;
optimiser and step count start anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uirl.config import ModelConfig
from uirl.errors import CheckpointError
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.runtime.folders import whole_folder

_PREFIX = "base_model.model."
_STEP = re.compile(r"global_step_(\d+)$")


def export_checkpoint(source: str | Path, target: str | Path | None = None) -> Path:
    """Write a checkpoint that verl's FSDP engines saved as a HF folder and return it; adapters are merged, precisions
    kept.

    Args:
        source: A `global_step_N` folder, its `actor` folder, verl's checkpoint directory or a run directory of ours
            (the newest checkpoint then).
        target: Where to write; None: `step_NNNNNN` beside `global_step_N`, which is where a run directory is looked
            for its newest checkpoint. One that stands there is replaced.

    Raises CheckpointError for what is no such checkpoint, with what to do about one of Megatron's.
    """
    step = find_checkpoint(Path(source))
    actor = step / "actor"
    loaded = _hollow(actor)
    state = _merged_adapters(_whole_state(actor), actor)
    _refuse_foreign(state, loaded, actor)
    number = _STEP.search(step.name)
    default = step.parent / f"step_{int(number[1]):06d}" if number else step / "exported"
    folder = Path(target) if target is not None else default
    with whole_folder(folder) as work:
        loaded.save_parts(work, state)
    return folder


def find_checkpoint(path: Path) -> Path:
    """Return the `global_step_N` folder for the `path` of a user. Raises CheckpointError."""
    if path.name == "actor" and (path / "huggingface").is_dir():
        return path.parent
    if (path / "actor").is_dir():
        return path
    for home in (path, path / "checkpoints"):
        tracker = home / "latest_checkpointed_iteration.txt"
        if tracker.is_file():
            newest = home / f"global_step_{tracker.read_text().strip()}"
            if (newest / "actor").is_dir():
                return newest
            raise CheckpointError(f"{tracker} names {newest.name}, which is not there; give an older global_step_*")
    raise CheckpointError(
        f"{path} holds no checkpoint of verl's; expected global_step_<N> with a folder actor, or the directory with "
        "latest_checkpointed_iteration.txt"
    )


def _hollow(actor: Path) -> LoadedModel:
    """Return the model without weights, its tokenizer and image processor, as verl saved them."""
    folder = actor / "huggingface"
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{actor} is incomplete: huggingface/config.json is missing")
    if not (actor / "fsdp_config.json").is_file():
        raise CheckpointError(
            f"{actor} was not saved by verl's FSDP engines (no fsdp_config.json). For Megatron add hf_model to "
            f"actor_rollout_ref.actor.checkpoint.save_contents, and use {folder} as it is"
        )
    return load_model(ModelConfig(local_path=str(folder), device="cpu"), weights=False)


def _whole_state(actor: Path) -> dict[str, Tensor]:
    """Return the state dict of the model, put together from the shards of all ranks."""
    world = int(json.loads((actor / "fsdp_config.json").read_text())["world_size"])
    first = _shard(actor, world, 0)
    ranks = [first, *(_shard(actor, world, rank) for rank in range(1, _ranks_of_one_copy(first, world)))]
    state = {}
    for name, tensor in first.items():
        state[name] = _joined([rank[name] for rank in ranks]) if hasattr(tensor, "placements") else tensor
    return state


def _shard(actor: Path, world: int, rank: int) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor  # noqa: F401  (what a shard is pickled as)

    path = actor / f"model_world_size_{world}_rank_{rank}.pt"
    try:
        # with weights_only a checkpoint cannot run code
        shard: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing: it was saved on another machine, or verl was still writing. Copy the shards of all "
            "ranks into one folder"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; export an older global_step_*") from error
    return shard


def _ranks_of_one_copy(shard: dict[str, Any], world: int) -> int:
    """Return the number of ranks that hold one whole copy: all, or with replicas (FSDP in groups) the first group."""
    sharded = next((tensor for tensor in shard.values() if hasattr(tensor, "placements")), None)
    if sharded is None:
        return 1
    return int(sharded.device_mesh.mesh.shape[-1]) if len(sharded.placements) > 1 else world


def _joined(parts: list[Any]) -> Tensor:
    placement = parts[0].placements[-1]
    local = [part.to_local() if hasattr(part, "to_local") else part for part in parts]
    if placement.is_replicate():
        return local[0]
    return torch.cat(local, dim=placement.dim)


def _merged_adapters(state: dict[str, Tensor], actor: Path) -> dict[str, Tensor]:
    """Return `state` by the model's own names, with adapters added into the weights they adapt."""
    if not any(".lora_A." in name for name in state):
        return state
    scale = _lora_scale(actor)
    merged = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        plain = name.removeprefix(_PREFIX)
        if plain.endswith(".base_layer.weight"):
            a, b = (state[name.replace(".base_layer.weight", f".lora_{x}.default.weight")] for x in "AB")
            tensor = (tensor.float() + scale * (b.float() @ a.float())).to(tensor.dtype)
        merged[plain.replace(".base_layer.", ".")] = tensor
    return merged


def _lora_scale(actor: Path) -> float:
    path = actor / "lora_train_meta.json"
    try:
        meta = json.loads(path.read_text())
        return float(meta["lora_alpha"]) / float(meta["r"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"the adapters in {actor} cannot be merged: {path.name}: {error}") from error


def _refuse_foreign(state: dict[str, Tensor], loaded: LoadedModel, actor: Path) -> None:
    expected = loaded.model.state_dict()
    odd = sorted(state.keys() ^ expected.keys())
    if odd:
        raise CheckpointError(
            f"{actor} does not fit its own huggingface/config.json: {odd[0]} is "
            f"{'only in the model' if odd[0] in expected else 'only in the shards'} (and {len(odd) - 1} more)"
        )
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{actor}: {name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}; shards of "
                "another run lie in the same folder"
            )
