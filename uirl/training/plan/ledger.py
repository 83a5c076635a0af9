"""Which bytes of tensors are alive, by what they are for: counted at every operation, on real tensors or without any.

A storage counts from the operation that made it until Python and autograd have let go of it. What an operation takes
inside itself and gives back (workspaces of kernels) is not seen, nor is what Python and NumPy hold.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Ledger(TorchDispatchMode):
    """Counts live bytes while it is entered. `vocabulary`: tensors with so many columns are logits; 0: none are."""

    def __init__(self, vocabulary: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self._name = "activations"
        self._names: dict[int, str] = {}
        self.live: Counter[str] = Counter()
        """Bytes of each part that are alive now."""
        self.peak: Counter[str] = Counter()
        """The parts when their sum was largest since `restart`."""
        self._total = 0
        self._most = 0

    @property
    def total(self) -> int:
        """Bytes that are alive now."""
        return self._total

    @property
    def most(self) -> int:
        """The largest sum since `restart`."""
        return self._most

    def restart(self) -> None:
        """Forget the peak: the largest sum is the one of now."""
        self._most, self.peak = self._total, Counter(self.live)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Return a context in which what is made counts as `name`."""
        before, self._name = self._name, name
        try:
            yield
        finally:
            self._name = before

    def count(self, tensors: Iterable[Tensor], name: str) -> None:
        """Count tensors that were made elsewhere as `name`; those that were counted before become `name`."""
        for tensor in tensors:
            self._note(tensor, name)
            key = _key(tensor)
            size = tensor.untyped_storage().nbytes()
            self.live[self._names[key]] -= size
            self.live[name] += size
            self._names[key] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.run(func, args, kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf, self._name)
        return out

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what the operation returns."""
        return func(*args, **kwargs)

    def _note(self, tensor: Tensor, name: str) -> None:
        key = _key(tensor)
        if key in self._names:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if self.vocabulary and name == "activations" and tensor.shape[-1:] == (self.vocabulary,):
            name = "logits"
        self._names[key] = name
        self.live[name] += size
        self._total += size
        weakref.finalize(storage, self._forget, key, size).atexit = False
        if self._total > self._most:
            self.restart()

    def _forget(self, key: int, size: int) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            self.live[name] -= size
            self._total -= size


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
