"""A very small real VLM, and trajectories that its own engine sampled."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from uirl.config import ConfigStore
from uirl.images import ImageStore, screenshot
from uirl.inference import ChatRenderer, GenerationRequest, Message, SamplingParams, TransformersInferenceEngine
from uirl.learner import Policy
from uirl.types import Sample

SMALL = [
    "model.tiny.hidden_size=32",
    "model.tiny.intermediate_size=48",
    "model.tiny.vision_hidden_size=16",
    "model.tiny.num_heads=2",
    "model.tiny.num_layers=2",
    "model.tiny.vision_layers=1",
    "model.device=cpu",
    "training.batch_size=8",
    "training.warmup_steps=0",
]


def make_config(*overrides: str) -> ConfigStore:
    return ConfigStore().override([*SMALL, *overrides])


def picture(seed: int, side: int = 56) -> object:
    return screenshot(np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8))


def sample_trajectories(
    policy: Policy,
    images: ImageStore,
    n: int = 4,
    turns: int = 2,
    *,
    group_size: int = 2,
    version: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    reward: Callable[[int, int], float] = lambda i, turn: float(i % 2),
) -> list[Sample]:
    """`n` trajectories of `turns` turns, sampled by the embedded engine that shares the policy's module. Prompts and
    responses differ in length; each turn of a VLM shows a picture."""
    chat, sees = ChatRenderer(policy.loaded), policy.loaded.vision is not None
    engine = TransformersInferenceEngine(policy.loaded, shared=True)

    def shots_of(i: int, turn: int) -> tuple:
        return (images.put(picture(10 * i + turn)),) if sees else ()

    async def episode(i: int) -> Sample:
        shots = shots_of(i, 0)
        ids = chat.whole([Message("user", "press the button " * (1 + i % 3), shots)])
        mask, log_probs, rewards = [False] * len(ids), [0.0] * len(ids), [0.0] * len(ids)
        turn_ids = [-1] * len(ids)
        for turn in range(turns):
            sampling = SamplingParams(3 + (i + turn) % 4, temperature, top_k=top_k, seed=100 * i + turn)
            made = await engine.generate(GenerationRequest(tuple(ids), shots, sampling, f"episode-{i}"))
            m = len(made.token_ids)
            ids += made.token_ids
            mask += [True] * m
            log_probs += made.log_probs or ()
            rewards += [0.0] * (m - 1) + [reward(i, turn)]
            turn_ids += [turn] * m
            if turn + 1 < turns:
                shown = shots_of(i, turn + 1)
                more = chat.following([Message("user", "next", shown)], after_end=made.finish_reason == "stop")
                shots, ids = shots + shown, ids + more
                mask, log_probs = mask + [False] * len(more), log_probs + [0.0] * len(more)
                rewards, turn_ids = rewards + [0.0] * len(more), turn_ids + [-1] * len(more)
        return Sample(
            tuple(ids), tuple(mask), tuple(log_probs), tuple(rewards), tuple(turn_ids), tuple(s.hash for s in shots),
            version, f"trajectory-{i}", f"group-{i // group_size}",
        )  # fmt: skip

    async def all_of_them() -> list[Sample]:
        return list(await asyncio.gather(*[episode(i) for i in range(n)]))

    return asyncio.run(all_of_them())


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    named = list(policy.model.named_parameters())
    if policy.value_head is not None:
        named += [(f"value_head.{name}", p) for name, p in policy.value_head.named_parameters()]
    return {name: p.detach().clone() for name, p in named}


def with_version(samples: list[Sample], version: int) -> list[Sample]:
    return [replace(sample, policy_version=version) for sample in samples]
