"""(f) How far engine and learner are apart in bfloat16, and in float32."""

from __future__ import annotations

import asyncio
import random

import torch

from benchmarks.gpu_parts.engines import random_prompts
from benchmarks.gpu_parts.models import checkpoint_of, policy_of
from benchmarks.gpu_parts.setting import Row, Setting, installed
from uirl.config import ConfigStore
from uirl.images import ImageStore
from uirl.inference import GenerationRequest, SamplingParams, create_engine
from uirl.learner import collate
from uirl.types import Sample

NOTE = (
    "|engine - learner| log-prob of every sampled token: the engine with its cache, all sequences together; the "
    "learner in padded micro-batches of four. Weights are random, with distributions about as sharp as those of a "
    "trained model."
)
CASES = {
    f"{model}, {dtype}, {backend}": (model, dtype, backend)
    for backend in ("transformers", "vllm")
    for model in ("Qwen3-VL-2B", "Qwen3-8B")
    for dtype in ("bfloat16", "float32")
    if (model, dtype) != ("Qwen3-8B", "float32")  # 31 GiB, and vLLM's beside it
}
ROWS = 4


def measure(name: str, setting: Setting) -> list[Row]:
    """One row."""
    if CASES[name][2] == "vllm" and not installed("vllm"):
        return [{"configuration": name, "note": "vLLM is not installed here"}]
    gaps = asyncio.run(_gaps(name, setting))
    return [
        {
            "configuration": name,
            "tokens": len(gaps),
            "mean": float(gaps.mean()),
            "99 %": float(gaps.quantile(0.99)),
            "largest": float(gaps.max()),
        }
    ]


async def _gaps(name: str, setting: Setting) -> torch.Tensor:
    model, dtype, backend = CASES[name]
    config = ConfigStore().override(
        [
            f"model.local_path={checkpoint_of(model, setting)}",
            f"model.device={setting.device}",
            f"model.dtype={dtype}",
            f"inference.max_context={setting.pick(2048, 256)}",
            f"inference.backend={backend}",
            *(["inference.engine_options={load_format: dummy}"] if backend == "vllm" else []),
        ]
    )
    policy = policy_of(config, setting)
    loaded = policy.loaded
    count, length, reply = setting.pick((16, 768, 256), (4, 20, 6))
    requests = [
        GenerationRequest(prompt, (), SamplingParams(max_tokens=reply, seed=i))
        for i, prompt in enumerate(random_prompts(loaded, random.Random(0), count, length))
    ]
    engine = create_engine(config, loaded, shared=True)
    try:
        weights, adapter = policy.update_for(engine)
        await engine.update_weights(weights, 1, adapter=adapter)
        made = await asyncio.gather(*[engine.generate(request) for request in requests])
    finally:
        await engine.close()
    samples = [_sample(r.prompt_ids, m.token_ids, m.log_probs or ()) for r, m in zip(requests, made, strict=True)]
    gaps = []
    for start in range(0, count, ROWS):
        batch = collate(loaded, samples[start : start + ROWS], ImageStore())
        with torch.no_grad():
            scores = policy.log_probs_and_values(batch, 1.0)
        assert scores.log_probs is not None
        gaps.append((scores.log_probs - batch.rollout_log_probs).abs()[batch.response_mask.bool()].float().cpu())
    return torch.cat(gaps)


def _sample(prompt: tuple[int, ...], reply: tuple[int, ...], log_probs: tuple[float, ...]) -> Sample:
    n, m = len(prompt), len(reply)
    return Sample(
        token_ids=(*prompt, *reply),
        response_mask=(False,) * n + (True,) * m,
        rollout_log_probs=(0.0,) * n + log_probs,
        rewards=(0.0,) * (n + m),
        turn_ids=(-1,) * n + (0,) * m,
    )
