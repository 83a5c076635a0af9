"""verl's Qwen2-VL and Qwen2.5-VL where a micro-batch holds no picture: rows of padding, or episodes of text alone.

verl shows such a micro-batch an empty picture, so that all ranks take part in the vision layers, and takes what comes
back for a tensor. Since transformers 5 it is a record, and the run ends. `actor_rollout_ref.model.external_lib` names
this module, which mends it in every process that holds a model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from verl.models.transformers import qwen2_vl


class _Plain:
    """A model whose vision part returns its tensor."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def visual(self, *pixels: Any, **options: Any) -> Tensor:
        seen: Tensor = qwen2_vl.unpack_visual_output(self._model.visual(*pixels, **options))[0]
        return seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


_verls = qwen2_vl._get_input_embeds


def input_embeds(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    pixel_values: Tensor | None = None,
    pixel_values_videos: Tensor | None = None,
    *grids: Any,
    **named: Any,
) -> Any:
    """Embed tokens `[B, T]` as verl does in `_get_input_embeds`, also where no picture is shown."""
    blind = pixel_values is None and pixel_values_videos is None
    shown = _Plain(model) if blind else model
    return _verls(shown, input_ids, attention_mask, pixel_values, pixel_values_videos, *grids, **named)


qwen2_vl._get_input_embeds = input_embeds
