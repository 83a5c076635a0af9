"""(c) Prefill and decoding: the embedded engine beside HuggingFace's `generate` and, where it is installed, vLLM."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_parts.models import checkpoint_of, loaded_of
from benchmarks.gpu_parts.setting import Row, Setting, installed
from uirl.config import ConfigStore
from uirl.inference import GenerationRequest, LoadedModel, SamplingParams, create_engine

NOTE = (
    "The same job for all: prompts of random tokens, all different, answered with exactly so many sampled tokens and "
    "their log-probs; end tokens are forbidden. Prefill: prompt tokens per second where one token is asked for. "
    "Decode: the tokens after the first, per second beyond that time. The best of three rounds, in turn. HuggingFace's "
    "`generate` gets all prompts as one batch."
)
CASES = {name: name for name in ("Qwen3-VL-2B", "Qwen2.5-VL-7B", "Qwen3-8B")}
ROUNDS = 3
Prompts = list[tuple[int, ...]]
Answer = Callable[[Prompts, int], None]
"""Answers all prompts with so many tokens each."""


def measure(name: str, setting: Setting) -> list[Row]:
    """One row per engine."""
    config = ConfigStore().override(
        [
            f"model.local_path={checkpoint_of(name, setting)}",
            f"model.device={setting.device}",
            f"model.dtype={setting.pick('bfloat16', 'float32')}",
            f"inference.max_context={setting.pick(4096, 512)}",
        ]
    )
    loaded = loaded_of(config, setting)
    loaded = replace(loaded, banned_ids=tuple(sorted({*loaded.banned_ids, *loaded.end_ids})))
    count, length, reply = setting.pick((32, 1024, 129), (2, 24, 5))
    best: dict[str, tuple[float, float]] = {}
    with asyncio.Runner() as runner:
        engines = dict(_engines(config, loaded, runner))
        try:
            for number in range(setting.pick(ROUNDS, 1)):
                for engine, (answer, _) in engines.items():
                    draws = random.Random(f"{number}/{engine}")
                    first = _timed(setting, answer, random_prompts(loaded, draws, count, length), 1)
                    whole = _timed(setting, answer, random_prompts(loaded, draws, count, length), reply)
                    old = best.get(engine, (first, whole))
                    best[engine] = (min(first, old[0]), min(whole, old[1]))
        finally:
            for _, close in engines.values():
                close()
    rows = [_row(name, engine, times, (count, length, reply)) for engine, times in best.items()]
    if "vLLM" not in best:
        rows.append({"model": name, "engine": "vLLM", "note": "not installed here"})
    return rows


def _row(name: str, engine: str, times: tuple[float, float], job: tuple[int, int, int]) -> Row:
    (first, whole), (count, length, reply) = times, job
    return {
        "model": name,
        "engine": engine,
        "job": f"{count} x ({length} + {reply})",
        "prefill tokens/s": count * length / first,
        # of tiny shapes the clock may see no difference
        "decode tokens/s": count * (reply - 1) / (whole - first) if whole > first else None,
    }


def _timed(setting: Setting, answer: Answer, prompts: Prompts, reply: int) -> float:
    return setting.seconds(lambda: answer(prompts, reply))


def random_prompts(loaded: LoadedModel, draws: random.Random, count: int, length: int) -> Prompts:
    legal = sorted(set(range(len(loaded.tokenizer))) - set(loaded.banned_ids))
    return [tuple(draws.choices(legal, k=length)) for _ in range(count)]


def _engines(
    config: ConfigStore, loaded: LoadedModel, runner: asyncio.Runner
) -> Iterator[tuple[str, tuple[Answer, Callable[[], None]]]]:
    """(name, (how it answers, how it is closed)) of every engine that is here."""
    # one after the other on the same device: each gets a third of it for its cache
    settings = config.override(["inference.kv_cache_gib=12"] if loaded.device.type == "cuda" else [])
    for name, backend in (("embedded", "transformers"), ("vLLM", "vllm")):
        if backend == "vllm" and not installed("vllm"):
            continue
        dummy = ["inference.engine_options={load_format: dummy}"] if backend == "vllm" else []
        made = create_engine(settings.override([f"inference.backend={backend}", *dummy]), loaded, shared=True)
        runner.run(made.update_weights(loaded.model.named_parameters() if backend == "vllm" else None, 1))

        def answer(prompts: Prompts, reply: int, made: Any = made) -> None:
            async def all_of_them() -> None:
                requests = [
                    GenerationRequest(prompt, (), SamplingParams(max_tokens=reply, seed=i))
                    for i, prompt in enumerate(prompts)
                ]
                answers = await asyncio.gather(*[made.generate(request) for request in requests])
                assert all(len(one.token_ids) == reply and one.log_probs for one in answers)

            runner.run(all_of_them())

        yield name, (answer, lambda made=made: runner.run(made.close()))
    yield "HF generate", (lambda prompts, reply: _generate(loaded, prompts, reply), lambda: None)


@torch.inference_mode()
def _generate(loaded: LoadedModel, prompts: Prompts, reply: int) -> None:
    model: Any = loaded.model
    ids = torch.tensor(prompts, device=loaded.device)
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=reply,
        suppress_tokens=list(loaded.banned_ids),
        eos_token_id=None,
        pad_token_id=loaded.end_ids[0],
        return_dict_in_generate=True,
        output_scores=True,
    )
    new = made.sequences[:, ids.shape[1] :]
    assert new.shape[1] == reply, f"got {new.shape[1]} tokens, expected {reply}"
    for step, scores in enumerate(made.scores):
        scores.float().log_softmax(-1).gather(-1, new[:, step, None]).tolist()
