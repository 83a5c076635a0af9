"""What the vision side of a model makes of pictures: once per picture of a forward pass, and, where its weights are
frozen, once per picture for engine, learner and reference together.

The members of a group see one first screen, and a picture that the context window keeps stands in several samples of an
episode. The forward of a HF model asks its own `get_image_features` for what stands in the place of the placeholders;
here it is asked about each picture once, and the answers are put together in reading order. Gradients add up where a
picture stands several times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.models.picture_cache import KEPT_BYTES
from uirl.runtime.bounded_cache import BoundedCache

_READ = {"pooler_output", "deepstack_features"}
"""Fields of the answer that forwards of HF read."""
_UNREAD = {"last_hidden_state", "hidden_states", "attentions"}
"""Fields that they do not."""
_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Features:
    """What stands for one picture."""

    pooled: Tensor
    """[tokens, H]."""
    deep: tuple[Tensor, ...]
    """For each layer that is given more of the picture, [tokens, H]."""
    joined: bool = False
    """Whether a layer takes all pictures as one tensor, as before transformers 5.20, and not one for each."""

    def to(self, device: Any, *, copy: bool = False) -> _Features:
        deep = tuple(layer.to(device, copy=copy) for layer in self.deep)
        return replace(self, pooled=self.pooled.to(device, copy=copy), deep=deep)

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.pooled, *self.deep))


class PictureFeatures:
    """The features of the pictures of one model, and of copies that share its vision weights.

    `kept`: the vision weights are frozen, so that what was computed once holds until `clear`.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        """`max_bytes`: of features that are kept, in main memory."""
        self.kept = False
        self._cache: BoundedCache[_Features] = BoundedCache(max_bytes)
        self._apart: bool | None = None
        """Whether the answer of the model holds each picture by itself; None: it was not asked about two yet."""

    def clear(self) -> None:
        """Forget everything: the vision weights may be others now."""
        self._cache = BoundedCache(self._cache.max_bytes)

    def forget_before(self, moment: float) -> None:
        """Drop what nobody asked for since `moment`, in seconds since 1970."""
        self._cache.forget_before(moment)

    def forward(self, loaded: Any, backbone: Any, images: Sequence[Screenshot], **inputs: Any) -> Any:
        """Return what `backbone` makes of `inputs`, whose placeholders stand for `images` in reading order.

        `loaded`: the `LoadedModel` that encodes pictures. Raises ContractError where the model answers about other
        pictures than it was asked about.
        """
        if not images:
            return backbone(**inputs)
        if not hasattr(backbone, "get_image_features") or self._apart is False:
            return backbone(**inputs, **loaded.pixel_inputs(images))
        unique = {image.hash: image for image in images}
        if self._apart is None or (len(unique) == len(images) and not self.kept):
            with self._intercepted(backbone, lambda output: self._observe(output, images)):
                return backbone(**inputs, **loaded.pixel_inputs(images))
        device = loaded.device
        found = {hash: self._cache.find(hash) for hash in unique} if self.kept else {}
        known = {hash: features.to(device) for hash, features in found.items() if features is not None}
        missing = [image for image in unique.values() if image.hash not in known]

        def join(output: Any) -> Any:
            parts = _parts(output, len(missing))
            if parts is None:
                raise ContractError(
                    f"get_image_features answered about {len(missing)} picture(s) in another form than before; "
                    f"expected one tensor of features for each. This is {type(backbone).__name__}"
                )
            self._keep(missing, parts)
            fresh = {image.hash: part for image, part in zip(missing, parts, strict=True)}
            return _joined([(known | fresh)[image.hash] for image in images])

        if not missing:
            nothing = torch.zeros(1, dtype=loaded.dtype, device=device)
            with self._intercepted(backbone, None, _joined([known[image.hash] for image in images])):
                return backbone(**inputs, pixel_values=nothing)
        with self._intercepted(backbone, join):
            return backbone(**inputs, **loaded.pixel_inputs(missing))

    @contextlib.contextmanager
    def _intercepted(self, backbone: Any, change: Any, answer: Any = None) -> Iterator[None]:
        """Return a context in which `backbone` gets what `change` makes of the answer of its vision side, or `answer`
        without asking it."""
        ask = backbone.get_image_features

        def features(*args: Any, **kwargs: Any) -> Any:
            if change is None:
                return answer
            if not self.kept:
                return change(ask(*args, **kwargs))
            # not in inference mode: the learner goes on with what the engine computed
            with torch.inference_mode(False), torch.no_grad():
                return change(ask(*args, **kwargs))

        with _LOCKS_LOCK:
            mine = _LOCKS.setdefault(backbone, threading.RLock())
        with mine:  # two threads may not intercept one module at a time
            backbone.get_image_features = features
            try:
                yield
            finally:
                del backbone.get_image_features

    def _observe(self, output: Any, images: Sequence[Screenshot]) -> Any:
        """See, where it answered about several pictures, whether the answer tells them apart."""
        if len(images) > 1:
            parts = _parts(output, len(images))
            self._apart = parts is not None
            self._keep(images, parts or [])
        return output

    def _keep(self, images: Sequence[Screenshot], parts: Sequence[_Features]) -> None:
        if self.kept:
            for image, part in zip(images, parts, strict=False):
                # of its own: a part of an answer would hold all of it
                own = part.to("cpu", copy=True)
                self._cache.put(image.hash, own, own.bytes)


def _parts(output: Any, count: int) -> list[_Features] | None:
    """Return the features of each of `count` pictures; None where the answer does not tell them apart."""
    fields = {name for name, value in getattr(output, "items", dict)() if value is not None}
    pooled = getattr(output, "pooler_output", None)
    if not isinstance(pooled, (tuple, list)) or len(pooled) != count or fields - _READ - _UNREAD:
        return None
    sizes = [len(part) for part in pooled]
    layers = getattr(output, "deepstack_features", None) or ()
    joined = any(isinstance(layer, Tensor) for layer in layers)
    if any(part.ndim != 2 for part in pooled) or (joined and any(len(layer) != sum(sizes) for layer in layers)):
        return None
    apart = [layer.split(sizes) for layer in layers] if joined else [tuple(layer) for layer in layers]
    if any([len(part) for part in layer] != sizes for layer in apart):
        return None
    deep = zip(*apart, strict=True) if apart else [()] * count
    return [_Features(*each, joined) for each in zip(pooled, deep, strict=True)]


@dataclass(slots=True)
class _Answer:
    """What a forward reads of the answer of `get_image_features`."""

    pooler_output: list[Tensor]
    deepstack_features: list[Tensor] | list[tuple[Tensor, ...]]


def _joined(parts: Sequence[_Features]) -> _Answer:
    layers = list(zip(*(part.deep for part in parts), strict=True))
    joined = any(part.joined for part in parts)
    return _Answer([part.pooled for part in parts], [torch.cat(layer) for layer in layers] if joined else layers)


def vision_is_frozen(model: Any) -> bool:
    """Return whether nothing that a model makes of pictures, before its layers for text, is trained."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    text = {id(parameter) for part in parts for parameter in part.parameters()}
    return not any(parameter.requires_grad for parameter in model.parameters() if id(parameter) not in text)
