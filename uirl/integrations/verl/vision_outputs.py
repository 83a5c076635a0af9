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

from verl.models.transformers import glm4v, qwen2_vl
from verl.utils.transformers_compat import unpack_visual_output


class _Behind:
    """Stands for an object, but for what is set here."""

    def __init__(self, inner: Any, **own: Any) -> None:
        self._inner = inner
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TensorVision(_Behind):
    def __call__(self, *pixels: Any, **options: Any) -> Any:
        return unpack_visual_output(self._inner(*pixels, **options))[0]


def _with_tensor_vision(input_embeds: Callable[..., Any]) -> Callable[..., Any]:
    """Return verl's `_get_input_embeds`, which is shown a model whose vision part returns a tensor of merged
    patches."""

    @wraps(input_embeds)
    def unpacked(model: Any, *arguments: Any, **options: Any) -> Any:
        return input_embeds(_Behind(model, visual=_TensorVision(model.visual)), *arguments, **options)

    return unpacked


for _family in (glm4v, qwen2_vl):
    _family._get_input_embeds = _with_tensor_vision(_family._get_input_embeds)
