"""A second model with the same weights: what an engine samples from while the learner changes its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from uirl.inference.models.loading import LoadedModel


def copy_of(loaded: LoadedModel) -> LoadedModel:
    """Return a model of its own with the weights of `loaded`, in evaluation mode and without gradients.

    Adapters are left out: the copy has the weights below them, under the names that updates with merged adapters have
    (`Policy.update_for`). Tokenizer and picture side are those of `loaded`, which threads may share.
    """
    model: Any = copy.deepcopy(loaded.model)
    adapted = [(path, layer) for path, layer in model.named_modules() if hasattr(layer, "lora_A")]
    for path, layer in adapted:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, layer.base_layer)
    if getattr(model, "is_gradient_checkpointing", False):
        model.gradient_checkpointing_disable()
    return replace(loaded, model=model.eval().requires_grad_(False))
