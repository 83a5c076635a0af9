"""(b) GRPO on episodes of several screenshots, on one GPU: what a step takes, and whether engine and learner agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw

from benchmarks.gpu_parts.memory import CASES as CONFIGS
from benchmarks.gpu_parts.memory import config_of
from benchmarks.gpu_parts.models import policy_of
from benchmarks.gpu_parts.setting import Row, Setting
from uirl.environments import BaseEnvironment
from uirl.rollout.samples import samples_of_all
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel
from uirl.training.channels.choose import open_channel
from uirl.training.tasks.sources import UniformTasks

NOTE = (
    "GRPO, groups of 8, every turn shows a new screenshot; the second of two steps. Collect: tokens that the embedded "
    "engine sampled, per second of playing. Update: tokens of all training sequences, context included, per second of "
    "`Learner.update`. Gap: |engine - learner| log-prob of the sampled tokens. The weights are random, with a last "
    "norm that makes the distributions about as sharp as those of a trained model."
)
CASES = {name: CONFIGS[name] for name in ("Qwen3-VL-2B, LoRA", "Qwen3-VL-4B, LoRA", "Qwen2.5-VL-7B, LoRA")}
TURNS, REPLY, EPISODES = 6, 64, 16


class Screens(BaseEnvironment):
    """Shows `turns` screenshots of `size`, each another one. What an episode is worth follows from its last reply."""

    runs_inline = True
    max_parallel = EPISODES

    def __init__(self, turns: int, size: tuple[int, int]) -> None:
        super().__init__()
        self._turns, self._size, self._seed, self._turn = turns, size, 0, 0

    def spawn(self) -> Screens:
        return Screens(self._turns, self._size)

    def reset(self, seed: int = 0) -> dict[str, Any]:
        self._seed, self._turn = seed, 0
        return self._look()

    def step(self, action: str) -> Any:
        self._turn += 1
        done = self._turn >= self._turns
        return self._look(), sum(map(ord, action)) % 5 / 4 if done else 0.0, done, {}

    def get_state_description(self) -> str:
        return f"screen {self._turn}"

    def _look(self) -> dict[str, Any]:
        picture = Image.new("RGB", self._size, (230, 232, 235))
        pen, width = ImageDraw.Draw(picture), self._size[0]
        for row in range(0, self._size[1], 24):
            shade = (self._seed * 37 + self._turn * 61 + row * 7) % 200
            pen.rectangle((0, row, (row * 13 + self._seed * 11 + self._turn * 29) % width, row + 12), (shade, 90, 140))
        return {"text": f"screen {self._turn}: say where to click", "image": picture}


def measure(name: str, setting: Setting) -> list[Row]:
    """One row: seconds, tokens per second, memory and gap of a step."""
    return asyncio.run(_measure(name, setting))


async def _measure(name: str, setting: Setting) -> list[Row]:
    turns, reply = setting.pick((TURNS, REPLY), (2, 6))
    episodes = setting.pick(EPISODES, 8)
    config = config_of(
        CASES[name],
        setting,
        f"training.batch_size={episodes}",
        f"inference.max_tokens={reply}",
        f"inference.max_turns={turns}",
        f"rollout.parallel={episodes}",
    )
    environment = Screens(turns, setting.pick((1280, 720), (64, 64)))
    config.environment.note_object(environment)
    parts = assemble(config.check(training=True), environment, policy=policy_of(config, setting), for_training=True)
    tasks = UniformTasks(parts.tasks.train, seed=0)
    try:
        async with open_channel(parts) as channel:
            await _step(parts, channel, tasks, setting)  # kernels are chosen, optimiser states are made
            row = await _step(parts, channel, tasks, setting)
    finally:
        await parts.close()
    return [{"configuration": name, "episodes": f"{episodes} of {turns} turns"} | row]


async def _step(parts: Assembly, channel: Channel, tasks: UniformTasks, setting: Setting) -> Row:
    training = parts.config.training
    groups = tasks.groups(training.batch_size // training.group_size, training.group_size)
    setting.forget_peak()
    played: list[Any] = []

    async def collect() -> None:
        for group in await channel.exchange(groups):
            played.extend(group.usable)

    collecting = await _seconds(setting, collect)
    collect_peak = setting.peak
    generated = parts.engine.stats()["generated_tokens"]
    samples: Sequence[Any] = samples_of_all(played)
    tokens = sum(len(sample.token_ids) for sample in samples)
    setting.forget_peak()
    metrics: dict[str, float] = {}
    updating = setting.seconds(lambda: metrics.update(parts.learner.update(samples)))
    update_peak = setting.peak
    await parts.publish()
    return {
        "sequences": len(samples),
        "tokens": tokens,
        "collect s": collecting,
        "sampled tokens/s": generated / collecting,
        "update s": updating,
        "update tokens/s": tokens / updating,
        "collect peak GiB": collect_peak,
        "update peak GiB": update_peak,
        "gap mean": metrics["log_prob_gap_mean"],
        "gap max": metrics["log_prob_gap_max"],
        "learned": metrics.get("policy_loss") is not None,
    }


async def _seconds(setting: Setting, work: Any) -> float:
    setting.wait()
    started = time.perf_counter()
    await work()
    setting.wait()
    return time.perf_counter() - started
