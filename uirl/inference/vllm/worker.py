"""What vLLM's workers do for us. vLLM mixes this class into its own worker, in the process that holds the model:
`--worker-extension-cls uirl.inference.vllm.worker.WorkerExtension`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from uirl.inference.footprint import CACHE, WEIGHTS
from uirl.inference.weight_files import tensors_in


class WorkerExtension:
    """Calls of `collective_rpc`. `self` is vLLM's worker."""

    def uirl_describe(self) -> dict[str, Any]:
        """Return what the engine must know of the settings this worker was started with."""
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        return {
            "logprobs_mode": config.model_config.logprobs_mode,
            "max_model_len": config.model_config.max_model_len,
            "max_lora_rank": config.lora_config.max_lora_rank if config.lora_config else None,
        }

    def uirl_load_weights(self, folder: str) -> dict[str, Any]:
        """Make the weights in `folder` (safetensors, names of a HF checkpoint) the model's own, in place.

        Whoever calls drains the engine before and drops its caches after.
        """
        # not `model.load_weights`: this also repeats what vLLM does to weights after loading (CPU kernels pack them)
        self.reload_weights(weights_iterator=tensors_in(Path(folder)))  # type: ignore[attr-defined]
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        return {"repacked_heads": _repack_heads(model)}

    def uirl_memory(self) -> dict[str, int] | None:
        """Return the bytes that this worker holds of its GPU: by tag what is in the pool that sleeps, and as 'other'
        what PyTorch has outside of it. None: there is no such pool."""
        import torch

        if not torch.cuda.is_available():
            return None
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        if not config.model_config.enable_sleep_mode:
            return None
        from vllm.device_allocator import get_mem_allocator_instance

        pool = list(get_mem_allocator_instance().pointer_to_data.values())
        held = Counter({WEIGHTS: 0, CACHE: 0})
        for allocation in pool:
            held[allocation.tag] += 0 if allocation.is_asleep else allocation.handle[1]
        # PyTorch counts what is in the pool as reserved, awake or not
        everything = sum(allocation.handle[1] for allocation in pool)
        held["other"] = max(0, torch.cuda.memory_reserved() - everything)
        return dict(held)


def _repack_heads(model: Any) -> int:
    """How many output heads were packed again: on a CPU, the packed copy that the kernel of a tied head multiplies with
    is not renewed by a reload, and nothing says so."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return 0
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    for head in heads:
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
    return len(heads)
