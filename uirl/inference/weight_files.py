"""Weights on their way to an engine in another process: files in a folder that both see, of the newest version alone.

A folder goes when it is closed and when its process ends; what a killed process left on this machine goes when the
next folder is made beside it, because a RAM disk that fills up with dead weights takes the machine down.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from uirl.errors import ContractError, StorageError
from uirl.inference.base import Weights
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.files import storage_errors
from uirl.runtime.scratch import ScratchFolder, home_with_room, sweep

SHARD_BYTES = 2 * 1024**3
"""Largest file: one of them is in memory besides the RAM disk while weights are written."""
_PREFIX = "uirl-weights-"


class KeptWeights(ABC):
    """The weights of one version, kept for as many readers as want them, also later: (name, tensor) pairs."""

    version: int
    adapter: Mapping[str, Any] | None
    """Configuration of the adapter that these are the weights of; None: of the whole model. See `update_weights`."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield them. Raises StorageError where they were removed."""

    @abstractmethod
    def remove(self) -> None:
        """Give their room back; whoever reads them now still can. Twice is fine."""


class WeightStore(Protocol):
    """Where the weights of updates are kept for engines that get them later or elsewhere."""

    def write_snapshot(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None, /) -> KeptWeights: ...

    def close(self) -> None:
        """Remove everything. Calling it twice is fine."""
        ...


@dataclass(frozen=True)
class Snapshot(KeptWeights):
    """The weights of one version in files."""

    folder: Path
    version: int  # type: ignore[misc]
    adapter: Mapping[str, Any] | None  # type: ignore[misc]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        if not any(self.folder.glob("*.safetensors")):
            raise StorageError(f"the weights of version {self.version} are gone: there are none in {self.folder}")
        yield from tensors_in(self.folder)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class WeightFiles:
    """The folder of one engine.

    `parent`: where it is made; None: a RAM disk with room for twice `size` bytes (the weights of the model), else the
    system's temporary folder. Raises StorageError where it cannot be made.
    """

    def __init__(self, parent: str | Path | None, *, size: int = 0) -> None:
        home = home_with_room(2 * size) if parent is None else Path(parent).absolute()
        with storage_errors(f"cannot make a folder for weights in {home} (inference.weights_dir)"):
            home.mkdir(parents=True, exist_ok=True)
            if parent is None:
                sweep(_PREFIX, home)
            # a server of another user must be able to read what stands in here
            self._folder = ScratchFolder(_PREFIX, home, mode=0o755)
        self.path = self._folder.path
        self._count = 0

    def write_weights(self, weights: Weights, loaded: LoadedModel) -> Path:
        """Write a folder of safetensors files with all weights of `loaded`, named as its checkpoint names them.

        Raises ContractError for a name or a shape that the model does not have, and for weights that are missing:
        then nothing was written.
        """
        return self._write(checkpoint_names(loaded, checked(weights, loaded)).items())

    def write_snapshot(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> Snapshot:
        """Write the weights of an update as they are, for engines that get them later or elsewhere."""
        return Snapshot(self._write(weights), version, adapter)

    def write_adapter(self, weights: Weights, adapter: Mapping[str, Any]) -> Path:
        """Write a peft folder of an adapter: its weights and its configuration."""
        folder = self._next()
        self._save(dict(weights), folder / "adapter_model.safetensors")
        with storage_errors(f"cannot write {folder}"):
            (folder / "adapter_config.json").write_text(json.dumps(dict(adapter)), encoding="utf-8")
        return folder

    def remove(self, folder: Path | None) -> None:
        """Forgets what one of the methods above wrote. None and what is gone are fine."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything. Calling it twice is fine."""
        self._folder.close()

    def _write(self, weights: Weights) -> Path:
        folder = self._next()
        for number, shard in enumerate(shards_of(weights)):
            self._save(shard, folder / f"model-{number:05d}.safetensors")
        return folder

    def _next(self) -> Path:
        self._count += 1
        folder = self.path / f"{self._count:06d}"
        with storage_errors(f"cannot write {folder}"):
            folder.mkdir()
        return folder

    def _save(self, tensors: dict[str, Tensor], path: Path) -> None:
        needed = sum(t.nbytes for t in tensors.values())
        try:
            save_file(_apart(tensors), path)
        except (OSError, SafetensorError) as error:
            self.remove(path.parent)
            raise StorageError(
                f"cannot write {needed / 1e9:.2f} GB of weights to {path}: {error}; give inference.weights_dir a "
                "folder with more room"
            ) from error


def tensors_in(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield what the safetensors files of a folder hold; it is mapped, so that a RAM disk holds it once."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in list(file.keys()))


def shards_of(weights: Weights) -> Iterator[dict[str, Tensor]]:
    """Yield weights by name, so many at a time that they take at most `SHARD_BYTES`, or one; at least one shard. Each
    is emptied before the next is filled: weights may be made on the way, and two shards of them may be too much."""
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in weights:
        if shard and held + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard.clear()
            held = 0
        shard[name] = tensor
        held += tensor.nbytes
    yield shard


def checked(weights: Weights, loaded: LoadedModel) -> dict[str, Tensor]:
    """`weights` by name, where they are all of the model's and fit it; else ContractError."""
    parameters = dict(plain_parameters(loaded, duplicates=True))
    tensors = {name: tensor.detach() for name, tensor in fitting(weights, parameters, loaded.name)}
    missing = [name for name, _ in plain_parameters(loaded) if name not in tensors]
    if missing:
        raise ContractError(
            f"weight update lacks {len(missing)} of {len(parameters)} weights of {loaded.name}, the first "
            f"{missing[0]!r}; this engine takes whole models"
        )
    return tensors


def fitting(weights: Weights, parameters: Mapping[str, Tensor], model: str) -> Iterator[tuple[str, Tensor]]:
    """Yield `weights`. Raises ContractError for a name or a shape that is not among the `parameters` of `model`."""
    for name, tensor in weights:
        if name not in parameters:
            raise ContractError(f"weight update holds {name!r}, which {model} does not have")
        expected = parameters[name].shape
        if expected != tensor.shape:
            raise ContractError(f"{name}: got shape {tuple(tensor.shape)}, expected {tuple(expected)}")
        yield name, tensor


def plain_parameters(loaded: LoadedModel, *, duplicates: bool = False) -> Iterator[tuple[str, Tensor]]:
    """(HF name, parameter) of the model as it is without its adapters; tied ones once, or each with `duplicates`."""
    for name, parameter in loaded.model.named_parameters(remove_duplicate=not duplicates):
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def checkpoint_names(loaded: LoadedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`state` with the names, and the split, that the model's checkpoints have on a disk.

    Other programs read checkpoints, and HuggingFace renames (`model.visual` was `visual`) or joins some of their
    weights when it loads them.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(loaded.model, state))  # type: ignore[arg-type]


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy the tensors to the CPU, each in memory of its own: safetensors refuses tied ones."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        out[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    return out
