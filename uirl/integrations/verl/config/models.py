"""Folders that verl can load a policy from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import CheckpointError
from uirl.inference.models.loading import load_model
from uirl.inference.models.unpacked import folder_of
from uirl.learner import export_hf, latest_checkpoint, load_policy
from uirl.learner.checkpoint import stored_model
from uirl.runtime.files import write_atomically
from uirl.runtime.folders import MANIFEST


def model_folder(config: ConfigStore, target: Path) -> Path | str:
    """Return the value of verl's `actor_rollout_ref.model.path` for the policy that `config.model` describes.

    A HF id or folder is handed on. A model of ours, one in GGUF, a checkpoint of the local trainer and a run directory
    (its newest checkpoint) are written to `target` as HF does, adapters merged; a `target` that stands already is used
    as it is. Raises CheckpointError for what cannot be loaded.
    """
    model = config.model
    if model.local_path is None and not model.model_name.startswith("uirl/"):
        return model.model_name
    if model.local_path is None or folder_of(model.local_path) != model.local_path:
        if not (target / "config.json").is_file():
            load_model(model, seed=config.training.seed).save(target)
        return target
    return hf_folder(Path(model.local_path), target, trust_remote_code=model.trust_remote_code)


def hf_folder(path: Path, target: Path, *, trust_remote_code: bool = False) -> Path:
    """Return the folder of HF weights for the `path` of a user: a HF folder itself, or a checkpoint or run of the local
    trainer, exported to `target`. `trust_remote_code`: what the user's own config says, not that of the checkpoint.
    Raises CheckpointError."""
    if (path / "config.json").is_file():
        return path
    checkpoint = local_checkpoint(path)
    if not (target / "config.json").is_file():
        export_hf(target, load_policy(checkpoint, trust_remote_code=trust_remote_code))
        write_atomically(target / "exported_from", f"{checkpoint}\n")
    return target


def local_checkpoint(path: Path) -> Path:
    """Return the checkpoint folder of a checkpoint or a run of the local trainer (its newest). Raises
    CheckpointError."""
    checkpoint = latest_checkpoint(path / "checkpoints") if (path / "checkpoints").is_dir() else path
    if checkpoint is None or not (checkpoint / MANIFEST).is_file():
        raise CheckpointError(
            f"{path} is neither a HF folder (no config.json) nor a checkpoint or run of the local trainer; expected "
            "runs/<name>, runs/<name>/checkpoints/step_000120 or a HF folder"
        )
    return checkpoint


def described_model(path: str | Path, config: ConfigStore) -> Any:
    """Return the HuggingFace config of the policy at `path`, whose weights are not read.

    `path`: a HF id or folder, a built-in model, or a checkpoint or run of the local trainer (its newest checkpoint).
    `config`: the run's own, which describes the sizes of built-in models and says whether remote code may run. Raises
    CheckpointError for what cannot be read.
    """
    from transformers import AutoConfig

    remote = config.model.trust_remote_code
    model, folder = (
        config.model.model_copy(update={"local_path": None, "model_name": str(path)}),
        Path(folder_of(str(path))),
    )
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
    """Return the HuggingFace config of a folder or id from which verl's processes can load what they need besides the
    weights.

    Raises CheckpointError for a vision-language model whose processor verl cannot build: it would only warn, and then
    train on tokens without pictures.
    """
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
