"""(e) vLLM beside the learner: how long it takes to give its memory away and to come back with new weights."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields

from benchmarks.gpu_parts.models import checkpoint_of, policy_of
from benchmarks.gpu_parts.setting import GIB, Row, Setting, installed
from uirl.config import ConfigStore
from uirl.inference import GenerationRequest, SamplingParams, create_engine
from uirl.inference.conformance import recompute_with
from uirl.inference.footprint import Footprint
from uirl.learner import Policy

NOTE = (
    "`Sleep` until its memory is the learner's, `update` until it samples with new weights: for level 2 the whole "
    "model goes through files on a RAM disk, for level 1 the adapter alone. Bytes are those that vLLM's workers hold; "
    "the second of two rounds. The gap afterwards is |engine - learner| of one reply."
)
CASES = {
    "Qwen3-VL-2B, level 1, LoRA": ("Qwen3-VL-2B", ["inference.sleep=1", "model.use_lora=true"]),
    "Qwen3-VL-2B, level 2": ("Qwen3-VL-2B", ["inference.sleep=2"]),
    "Qwen2.5-VL-7B, level 1, LoRA": ("Qwen2.5-VL-7B", ["inference.sleep=1", "model.use_lora=true"]),
    "Qwen2.5-VL-7B, level 2": ("Qwen2.5-VL-7B", ["inference.sleep=2"]),
}


def measure(name: str, setting: Setting) -> list[Row]:
    """One row."""
    if not installed("vllm"):
        return [{"configuration": name, "note": "vLLM is not installed here"}]
    return [{"configuration": name} | asyncio.run(_measure(name, setting))]


async def _measure(name: str, setting: Setting) -> Row:
    model, changes = CASES[name]
    config = ConfigStore().override(
        [
            f"model.local_path={checkpoint_of(model, setting)}",
            f"model.device={setting.device}",
            f"model.dtype={setting.pick('bfloat16', 'float32')}",
            f"inference.max_context={setting.pick(4096, 256)}",
            "inference.backend=vllm",
            "inference.engine_options={load_format: dummy}",
            *changes,
        ]
    )
    policy = policy_of(config, setting)
    engine = create_engine(config, policy.loaded, shared=True)
    try:
        await _publish(engine, policy, 1)
        for round_ in (2, 3):
            started = time.perf_counter()
            await engine.sleep()
            asleep = time.perf_counter()
            _change(policy)
            changed = time.perf_counter()
            await _publish(engine, policy, round_)
            awake = time.perf_counter()
        gap = await _gap(engine, policy)
        footprint = engine.footprint
    finally:
        await engine.close()
    return {"sleep s": asleep - started, "update s": awake - changed} | _held(footprint) | {"gap": gap}


async def _publish(engine: object, policy: Policy, version: int) -> None:
    weights, adapter = policy.update_for(engine)  # type: ignore[arg-type]
    await engine.update_weights(weights, version, adapter=adapter)  # type: ignore[attr-defined]


def _change(policy: Policy) -> None:
    for _, parameter in policy.named_trainable():
        parameter.data.mul_(1.01)


async def _gap(engine: object, policy: Policy) -> float:
    request = GenerationRequest(tuple(range(20, 40)), (), SamplingParams(max_tokens=8, seed=1))
    made = await engine.generate(request)  # type: ignore[attr-defined]
    ids = [*request.prompt_ids, *made.token_ids]
    own = recompute_with(policy.loaded)(ids, (), len(made.token_ids), request.sampling)
    return max(abs(a - b) for a, b in zip(made.log_probs, own, strict=True))


def _held(footprint: Footprint | None) -> Row:
    if footprint is None:
        return {"note": "vLLM does not tell what it holds"}
    moments = {field.name: sum(getattr(footprint, field.name).values()) / GIB for field in fields(footprint)}
    return {f"GiB {name}": size for name, size in moments.items()} | {
        "problems": "; ".join(footprint.problems()) or "none"
    }
