"""How vLLM is started for us: the arguments of its engine, and the command line of its server."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from uirl.errors import ConfigError, did_you_mean
from uirl.inference.models.precision import dtype_of
from uirl.inference.models.unpacked import folder_of

if TYPE_CHECKING:
    from uirl.config import ConfigStore, EngineSettings, InferenceConfig, LoraConfig, ModelConfig

EXTENSION = "uirl.inference.vllm.worker.WorkerExtension"
CPU_CACHE_BYTES = 1024**3
"""KV cache on a CPU where nothing is said; vLLM itself would take nearly all memory."""
CPU_ARGUMENTS = {
    "enforce_eager": True,
    "skip_mm_profiling": True,
    # the default of 128 finds no shared prefix in short prompts
    "block_size": 32,
    # a prompt that is cut in two rewinds the generator of a seeded request, which a CPU's cannot: the engine dies of it
    "enable_chunked_prefill": False,
}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as `max_lora_rank`."""
OURS = {"logprobs_mode": "processed_logprobs", "generation_config": "vllm", "worker_extension_cls": EXTENSION}
"""Without these the log-probs are not those of what was sampled, or no update arrives."""


def engine_arguments(
    model: ModelConfig,
    inference: InferenceConfig,
    *,
    beside_learner: bool = False,
    positions: int | None = None,
    sleeps: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`, without `model`, as the sections say; `inference.engine_options`
    come last.

    `beside_learner`: the learner is on the same GPU, so half of the memory is left to it. `positions`: those of the
    model, which bound `inference.max_context`; None: not known. `sleeps`: its memory comes from a pool that can be
    given away. Raises ConfigError for an option that vLLM does not have, and for one that must be as it is.
    """
    arguments: dict[str, Any] = {
        "dtype": dtype_of(model),
        "tensor_parallel_size": model.tensor_parallel_size,
        "trust_remote_code": model.trust_remote_code,
        "max_num_seqs": inference.max_batch_size,
        "enable_prefix_caching": inference.kv_cache,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        # built-in and many other checkpoints come without a video processor
        "limit_mm_per_prompt": {"video": 0},
        # the image processor makes the pixels, as the learner's does: left to the device, their normalisation is lost
        # in silence where vLLM does not find the numbers for it
        "mm_device_do_normalize": False,
        **OURS,
    }
    if inference.max_context is not None:
        arguments["max_model_len"] = min(inference.max_context, positions or inference.max_context)
    if sleeps:
        arguments["enable_sleep_mode"] = True
    if model.use_lora:
        arguments |= _lora_arguments(model.lora)
    if on_cpu():
        arguments |= CPU_ARGUMENTS
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            arguments["kv_cache_memory_bytes"] = CPU_CACHE_BYTES
    elif beside_learner:
        arguments["gpu_memory_utilization"] = 0.45
    if inference.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(inference.kv_cache_gib * 2**30)
    _check_options(inference.engine_options)
    return arguments | inference.engine_options


def vllm_server_command(
    config: ConfigStore, *, model: str | None = None, host: str = "127.0.0.1", port: int = 8000
) -> list[str]:
    """Write the command line, environment variables first, of a vLLM server that `inference.server_url` can name.

    `model`: the folder or HF id to serve; None: that of the config (a built-in tiny model has to be written to a folder
    first: `load_model(config.model).save(folder)`). The server takes new weights from whoever reaches it, so keep
    `host` to networks you trust. Raises ConfigError like `engine_arguments`.
    """
    model = model or folder_of(config.model.source)
    if model.startswith("uirl/"):
        raise ConfigError(f"{model!r} is made in memory; write it with load_model(...).save(folder) and give `model`")
    variables = ["VLLM_SERVER_DEV_MODE=1"]
    if config.model.use_lora:
        variables.append("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    command = ["env", *variables, sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model, "--host", host, "--port", str(port)]
    command += ["--enable-scale-out", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    for name, value in engine_arguments(config.model, config.inference).items():
        command += _flag(name, value)
    return command


def on_cpu() -> bool:
    """Whether the vLLM of this machine runs on the CPU; False where there is none."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return False
    return bool(current_platform.is_cpu())


def sleep_level(settings: EngineSettings, *, beside_learner: bool) -> int:
    """Return how deep the vLLM that starts here sleeps during an update; 0: it does not. `beside_learner`: the learner
    is on the same GPU.

    Raises ConfigError where `inference.sleep` names a level and vLLM runs on a CPU.
    """
    level, wanted = settings.sleep_level, settings.inference.sleep
    if wanted == "auto" and not beside_learner:
        return 0
    if level and on_cpu():
        if wanted == "auto":
            return 0
        raise ConfigError(
            f"inference.sleep={level}, but vLLM runs on a CPU here, which has no memory to give away; expected a GPU. "
            "Leave it at auto"
        )
    return level


def check_heads(size: int) -> None:
    """Raise ConfigError where vLLM runs on a CPU and its attention there knows no heads of `size`: it would start, and
    die of the first request."""
    if not on_cpu():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ConfigError(
            f"the model's attention heads have {size} numbers each; vLLM on a CPU knows {', '.join(map(str, sizes))}. "
            "For a built-in model, model.tiny.hidden_size / model.tiny.num_heads must be one of these"
        )


def _lora_arguments(lora: LoraConfig) -> dict[str, Any]:
    rank = lora.r
    if rank > LORA_RANKS[-1]:
        raise ConfigError(f"model.lora.r is {rank}, but vLLM takes at most {LORA_RANKS[-1]}")
    return {
        "enable_lora": True,
        "max_lora_rank": next(n for n in LORA_RANKS if n >= rank),
        "max_loras": 1,
        # the next version is loaded before the last one goes
        "max_cpu_loras": 2,
        "enable_tower_connector_lora": lora.vision,
    }


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name in OURS or name == "model":
            raise ConfigError(f"inference.engine_options must not set {name!r}: uirl needs it as it is")
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError:
        return
    options_of_vllm = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in options:
        if name not in options_of_vllm:
            raise ConfigError(
                f"inference.engine_options: vLLM has no option {name!r}; {did_you_mean(name, options_of_vllm)}"
            )


def _flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
