"""verl's Qwen2-VL, Qwen2.5-VL and GLM-4V with the vision outputs of transformers 5.

Since transformers 5 the vision part of these models returns a record and no tensor. verl 0.9.1 takes it for a tensor
in two places: for Qwen where a micro-batch holds no picture (rows of padding, episodes of text alone), which verl shows
an empty one so that all ranks take part in the vision layers; for GLM-4V everywhere.

Importing this module changes verl in every process that holds a model (`actor_rollout_ref.model.external_lib` and
`critic.model.external_lib` name it).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from verl.models.transformers import glm4v, qwen2_vl
from verl.utils.transformers_compat import unpack_visual_output


class _TensorVision:
    """A vision part that returns its tensor of merged patches."""

    def __init__(self, vision: Any) -> None:
        self._vision = vision

    def __call__(self, *pixels: Any, **options: Any) -> Tensor:
        features: Tensor = unpack_visual_output(self._vision(*pixels, **options))[0]
        return features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vision, name)


class _TensorVisionModel:
    """A model with such a vision part."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.visual = _TensorVision(model.visual)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def with_tensor_vision(input_embeds: Callable[..., Any]) -> Callable[..., Any]:
    """Return verl's `_get_input_embeds`, which is shown a model whose vision part returns a tensor."""

    @wraps(input_embeds)
    def unpacked(model: Any, *arguments: Any, **options: Any) -> Any:
        return input_embeds(_TensorVisionModel(model), *arguments, **options)

    return unpacked


for _family in (glm4v, qwen2_vl):
    _family._get_input_embeds = with_tensor_vision(_family._get_input_embeds)
