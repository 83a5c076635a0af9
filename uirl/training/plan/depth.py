"""A model with fewer layers, from which those that are left out are added again as numbers.

All layers of a tower are alike, and what one more takes is what any other takes. Tracing 3 and 4 of 28 layers costs
seconds, all of them a minute.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from torch import nn

from uirl.inference.models.features import PictureFeatures, vision_is_frozen
from uirl.learner import Policy

ALL = 6
"""Layers of a tower up to which all of them are traced."""
FEW = 3
"""Layers that are traced of one with more: Qwen3-VL adds what it saw to the first three of text."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Layers of the two towers."""

    text: int
    vision: int
    """0: a text model."""


def depth_of(model: Any) -> Depth:
    """Return the layers that `model` has."""
    vision = _vision_layers(model)
    return Depth(len(model.get_decoder().layers), 0 if vision is None else len(vision[1]))


def linear_in_layers(policy: Policy, trace: Callable[[Policy], Counter[str]]) -> Counter[str]:
    """Return what `trace` says of `policy`, whose weights are on the meta device, as if it had traced all layers.

    `trace` is given copies of the policy, with few layers where it has many.
    """
    whole = depth_of(policy.model)
    few = Depth(*(FEW if layers > ALL else layers for layers in (whole.text, whole.vision)))
    base = trace(with_depth(policy, few))
    out = Counter(base)
    more_text, more_vision = whole.text - few.text, whole.vision - few.vision
    if more_text:
        _add(out, more_text, base, trace(with_depth(policy, replace(few, text=few.text + 1))))
    # frozen layers keep nothing: one at a time is there
    if more_vision and not vision_is_frozen(policy.model):
        _add(out, more_vision, base, trace(with_depth(policy, replace(few, vision=few.vision + 1))))
    return out


def shallow(policy: Policy) -> Policy:
    """Return a copy of `policy` with few layers, for what keeps nothing of a layer."""
    return with_depth(policy, Depth(*(min(FEW, layers) for layers in astuple(depth_of(policy.model)))))


def _add(out: Counter[str], layers: int, base: Counter[str], one_more: Counter[str]) -> None:
    for name in {*base, *one_more}:
        out[name] += layers * (one_more[name] - base[name])


def with_depth(policy: Policy, depth: Depth) -> Policy:
    """Return a copy of `policy` with the first layers of each tower."""
    short = copy.copy(policy)
    with _shortened(policy.model, depth):
        model: Any = copy.deepcopy(policy.model)
    features = PictureFeatures()
    features.kept = policy.loaded.features.kept
    short.loaded = replace(policy.loaded, model=model, features=features)
    short.value_head = copy.deepcopy(policy.value_head)
    for module in model.modules():
        if hasattr(module, "deepstack_visual_indexes"):
            module.deepstack_visual_indexes = list(range(len(module.deepstack_visual_indexes)))
        if hasattr(module, "fullatt_block_indexes"):
            # window by window, one operation after the other for thousands of them, is as large and takes minutes
            module.fullatt_block_indexes = list(range(depth.vision))
    return short


@contextlib.contextmanager
def _shortened(model: Any, depth: Depth) -> Iterator[None]:
    """Return a context in which `model` has the first layers of each tower."""
    decoder = model.get_decoder()
    towers = [(decoder, "layers", decoder.layers, depth.text)]
    if (vision := _vision_layers(model)) is not None:
        parent, _, name = vision[0].rpartition(".")
        towers.append((model.get_submodule(parent), name, vision[1], depth.vision))
    for module, name, layers, count in towers:
        setattr(module, name, layers[:count])
    try:
        yield
    finally:
        for module, name, layers, _ in towers:
            setattr(module, name, layers)


def _vision_layers(model: Any) -> tuple[str, nn.ModuleList] | None:
    """Return (path, layers) of the tower that sees; None: there is none."""
    inside = {id(module) for module in model.get_decoder().modules()}
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and id(module) not in inside
    ]
    return max(lists, key=lambda found: len(found[1]), default=None)
