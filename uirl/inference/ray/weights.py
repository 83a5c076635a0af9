"""Weights on their way to engines in Ray: once in its store of objects, which each machine reads from the nearest."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from uirl.errors import StorageError
from uirl.inference.base import Weights
from uirl.inference.ray.cluster import import_ray
from uirl.inference.weight_files import SHARD_BYTES, KeptWeights

Shard = dict[str, tuple[str, tuple[int, ...], Any]]
"""Name -> (dtype, shape, bytes as an array of uint8): what Ray stores without copying it again for each reader."""


class StoredWeights(KeptWeights):
    """The weights of one version as objects of Ray's."""

    def __init__(self, references: Iterable[Any], version: int, adapter: Mapping[str, Any] | None) -> None:
        self.version, self.adapter = version, adapter
        self._references = list(references)

    @property
    def references(self) -> list[Any]:
        """Of the shards. Raises StorageError where they were removed."""
        if not self._references:
            raise StorageError(f"the weights of version {self.version} are gone: newer ones have replaced them")
        return self._references

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        ray = import_ray()
        for reference in self.references:
            yield from tensors_of(ray.get(reference))

    def remove(self) -> None:
        self._references = []


def store(weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> StoredWeights:
    """Put weights into the store of objects, in shards. Raises StorageError where it has no room."""
    ray = import_ray()
    references: list[Any] = []
    shard: Shard = {}
    held = 0

    def put() -> None:
        try:
            references.append(ray.put(shard))
        except (ray.exceptions.RayError, OSError, ValueError) as error:
            raise StorageError(
                f"cannot put {held / 1e9:.2f} GB of weights into Ray's store of objects: {error}; start Ray with a "
                "larger one (`ray start --object-store-memory`)"
            ) from error

    for name, tensor in weights:
        if shard and held + tensor.nbytes > SHARD_BYTES:
            put()
            shard, held = {}, 0
        plain = tensor.detach().cpu().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy()
        shard[name] = (str(plain.dtype).removeprefix("torch."), tuple(plain.shape), raw)
        held += plain.nbytes
    put()
    return StoredWeights(references, version, adapter)


def tensors_of(shard: Shard) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a shard, which share its memory: they are to be read, not to be written."""
    for name, (dtype, shape, raw) in shard.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that such memory must not be written
            flat = torch.from_numpy(raw)
        yield name, flat.view(getattr(torch, dtype)).reshape(shape)
