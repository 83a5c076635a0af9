"""Folders of models: one that verl loads a policy from, and what becomes of verl's checkpoints.

A checkpoint of the local trainer continues under verl by its path (`model.local_path`), one of verl's becomes a HF
folder that `uirl eval`, `load_model` and plain HF read. Weights and tokenizer go along, optimiser and steps do not.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uirl.config import ModelConfig
from uirl.errors import CheckpointError
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.models.unpacked import folder_of
from uirl.learner import export_hf, latest_checkpoint, load_policy
from uirl.learner.checkpoint import stored_model
from uirl.runtime.files import write_atomically
from uirl.runtime.folders import MANIFEST, whole_folder


def model_folder(model: ModelConfig, target: Path, *, seed: int = 0) -> Path | str:
    """Return the value of verl's `actor_rollout_ref.model.path` for the policy that `model` describes; `seed`: of the
    weights of one of ours.

    A HF id or folder is handed on. A model of ours, one in GGUF, a checkpoint of the local trainer and a run directory
    (its newest checkpoint) are written to `target` as HF does, adapters merged; a `target` that stands already is used
    as it is. Raises CheckpointError for what cannot be loaded.
    """
    if model.local_path is None and not model.model_name.startswith("uirl/"):
        return model.model_name
    built = model.local_path is None or folder_of(model.local_path) != model.local_path
    if not built and (Path(model.local_path or "") / "config.json").is_file():
        return Path(model.local_path or "")
    checkpoint = None if built else local_checkpoint(Path(model.local_path or ""))
    if not (target / "config.json").is_file():
        if checkpoint is None:
            load_model(model, seed=seed).save(target)
        else:
            # whether remote code may run is the word of the user's own config, not that of the checkpoint
            export_hf(target, load_policy(checkpoint, trust_remote_code=model.trust_remote_code))
            write_atomically(target / "exported_from", f"{checkpoint}\n")
    return target


def local_checkpoint(path: Path) -> Path:
    """Return the folder of a checkpoint, or of a run's newest, of the local trainer. Raises CheckpointError."""
    checkpoint = latest_checkpoint(path / "checkpoints") if (path / "checkpoints").is_dir() else path
    if checkpoint is None or not (checkpoint / MANIFEST).is_file():
        raise CheckpointError(
            f"{path} is neither a HF folder (no config.json) nor a checkpoint or run of the local trainer; expected "
            "runs/<name>, runs/<name>/checkpoints/step_000120 or a HF folder"
        )
    return checkpoint


def described_model(path: str | Path, settings: ModelConfig) -> Any:
    """Return the HuggingFace config of the policy at `path`, whose weights are not read.

    `path`: a HF id or folder, a built-in model, or a checkpoint or run of the local trainer (its newest checkpoint).
    `settings`: the run's own, which describe the sizes of built-in models and say whether remote code may run. Raises
    CheckpointError for what cannot be read.
    """
    from transformers import AutoConfig

    remote = settings.trust_remote_code
    model = settings.model_copy(update={"local_path": None, "model_name": str(path)})
    folder = Path(folder_of(str(path)))
    if folder.is_dir() and not (folder / "config.json").is_file():
        checkpoint = local_checkpoint(folder)
        model, folder = stored_model(checkpoint, trust_remote_code=remote), checkpoint / "policy"
        if not folder.is_dir():  # adapters alone: the sizes are those of the model that they adapt
            folder = Path(folder_of(model.source))
    if str(folder).startswith("uirl/"):
        return load_model(model.model_copy(update={"device": "cpu"}), weights=False).config
    try:
        return AutoConfig.from_pretrained(folder if folder.is_dir() else str(folder), trust_remote_code=remote)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read the config.json of {folder}: {error}; name a folder with --sft_model_path, or go online"
        ) from error


def check_model_folder(path: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return the HuggingFace config of a folder or id. Raises CheckpointError for a vision-language model whose
    processor verl cannot build: it would only warn, and then train on tokens without pictures."""
    from transformers import AutoConfig
    from verl.utils.tokenizer import hf_processor

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if not hasattr(config, "vision_config"):
        return config
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        processor = hf_processor(path, trust_remote_code=trust_remote_code)
    if processor is None:
        why = "; ".join(str(w.message).split("\n")[0] for w in caught) or "it gave no reason"
        raise CheckpointError(
            f"verl cannot build the processor of the vision-language model {path}: {why}. Install what it names (for "
            "Qwen-VL the torchvision that belongs to your torch) and see that preprocessor_config.json is there"
        )
    return config


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
    actor, number = step / "actor", re.search(r"global_step_(\d+)$", step.name)
    loaded = _without_weights(actor)
    state = _merged_adapters(_whole_state(actor), actor)
    found, expected = ({n: tuple(t.shape) for n, t in s.items()} for s in (state, loaded.model.state_dict()))
    odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if odd:
        raise CheckpointError(
            f"{actor} does not fit its own huggingface/config.json: {odd[0]} has shape {found.get(odd[0])}, expected "
            f"{expected.get(odd[0])} (and {len(odd) - 1} more); shards of another run may lie in the same folder"
        )
    default = step.parent / f"step_{int(number[1]):06d}" if number else step / "exported"
    folder = Path(target) if target is not None else default
    with whole_folder(folder) as work:
        loaded.save(work, state)
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


def _without_weights(actor: Path) -> LoadedModel:
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
    """Return the state dict put together from the shards of all ranks, with replicas of the first group."""
    world = int(json.loads((actor / "fsdp_config.json").read_text())["world_size"])
    first = _shard(actor, world, 0)
    split = next((tensor for tensor in first.values() if hasattr(tensor, "placements")), None)
    ranks = 1 if split is None else split.device_mesh.mesh.shape[-1] if len(split.placements) > 1 else world
    shards = [first, *(_shard(actor, world, rank) for rank in range(1, int(ranks)))]
    state: dict[str, Tensor] = {}
    for name, tensor in first.items():
        state[name] = tensor
        if hasattr(tensor, "placements"):
            local = [part.to_local() if hasattr(part, "to_local") else part for part in (s[name] for s in shards)]
            whole = tensor.placements[-1].is_replicate()
            state[name] = local[0] if whole else torch.cat(local, dim=tensor.placements[-1].dim)
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


def _merged_adapters(state: dict[str, Tensor], actor: Path) -> dict[str, Tensor]:
    """Return `state` by the model's own names, with adapters added into the weights they adapt."""
    if not any(".lora_A." in name for name in state):
        return state
    path = actor / "lora_train_meta.json"
    try:
        meta = json.loads(path.read_text())
        scale = float(meta["lora_alpha"]) / float(meta["r"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"the adapters in {actor} cannot be merged: {path.name}: {error}") from error
    merged = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.")
        if plain.endswith(".base_layer.weight"):
            a, b = (state[name.replace(".base_layer.weight", f".lora_{x}.default.weight")] for x in "AB")
            tensor = (tensor.float() + scale * (b.float() @ a.float())).to(tensor.dtype)
        merged[plain.replace(".base_layer.", ".")] = tensor
    return merged
