"""How SGLang is started for us: the arguments of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.precision import dtype_of
from uirl.inference.servers import model_folder
from uirl.inference.weight_files import WeightFiles

if TYPE_CHECKING:
    from uirl.config import EngineSettings


def engine_arguments(
    settings: EngineSettings, loaded: LoadedModel, files: WeightFiles, adapters: bool
) -> dict[str, Any]:
    """Arguments of `sglang.Engine` that follow from `settings`."""
    model, inference = settings.model, settings.inference
    arguments: dict[str, Any] = {
        "model_path": model_folder(model.source, loaded, files, program="SGLang"),
        "dtype": dtype_of(model),
        "trust_remote_code": model.trust_remote_code,
        "tp_size": model.tensor_parallel_size,
        "max_running_requests": inference.max_batch_size,
        "disable_radix_cache": not inference.kv_cache,
        "enable_deterministic_inference": True,
        "random_seed": settings.seed,
    }
    if loaded.vision is not None:
        arguments["image_processor_backend"] = "pil"  # as the learner's
    if inference.max_context is not None:
        arguments["context_length"] = inference.max_context
    if adapters:
        arguments |= {"enable_lora": True, "max_lora_rank": model.lora.r, "lora_target_modules": ["all"]}
    return arguments
