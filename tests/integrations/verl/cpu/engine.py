"""verl's own FSDP2 engines under the key of the CPU, without the three assumptions that need an accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class Unpinned:
    """A reference policy that is wrapped like the actor: verl would offload it to pinned memory, and there is none."""

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        own = self.engine_config
        self.engine_config = replace(own, forward_only=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = own


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CPULanguageModel(Unpinned, FSDPEngineWithLMHead):
    pass


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device="cpu")
class CPUValueModel(Unpinned, FSDPEngineWithValueHead):
    def _build_module(self) -> torch.nn.Module:
        """A token classifier with one label; verl's own loader insists on flash attention."""
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path, dtype=torch.float32, config=config, attn_implementation="sdpa"
        )
        return model
