"""Multi-turn rollouts: the embedded engine against plain HF `generate` and against vLLM, the same work in one run.

Every episode has `--turns` turns. A turn adds the same new tokens (and a new picture, for the vision model) to the
history and asks for exactly `--response` tokens: end tokens are forbidden everywhere, so all engines do the same work.
HF `generate` gets all episodes as one batch and encodes the whole history anew each turn, as a loop around it would.
Its vision tower is that of transformers as it comes.

python -m benchmarks.engines                       # embedded and HF
python -m benchmarks.engines --vllm                # with vLLM too, where it is installed
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import random
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from benchmarks.pairs import Figures, pair, report
from uirl import ConfigStore, GenerationRequest, InferenceEngine, LoadedModel, SamplingParams, Screenshot, load_model
from uirl.images import screenshot
from uirl.inference import create_engine

MODELS: dict[str, list[str]] = {
    "tiny VLM": ["model.model_name=uirl/tiny-vlm"],
    "tiny LM": ["model.model_name=uirl/tiny-lm"],
    "100 M LM": [
        "model.model_name=uirl/tiny-lm",
        "model.tiny.hidden_size=768",
        "model.tiny.num_layers=14",
        "model.tiny.num_heads=12",
        "model.tiny.intermediate_size=2048",
        "model.tiny.initializer_range=0.03",
    ],
}


HF = "HF generate"


class Work:
    """What is said in every turn of every episode: random, but the same for all engines."""

    def __init__(self, loaded: LoadedModel, episodes: int, turns: int, new_tokens: int) -> None:
        rng = random.Random(0)
        legal = sorted(set(range(len(loaded.tokenizer))) - set(loaded.banned_ids) - set(loaded.end_ids))
        self.vision = loaded.vision
        self.shots = [[_picture(rng) if loaded.vision else None for _ in range(turns)] for _ in range(episodes)]
        self.texts = [[[rng.choice(legal) for _ in range(new_tokens)] for _ in range(turns)] for _ in range(episodes)]

    def ids(self, episode: int, turn: int) -> list[int]:
        """Tokens that the turn adds, placeholders of its picture first."""
        shot = self.shots[episode][turn]
        if shot is None or self.vision is None:
            return self.texts[episode][turn]
        places = self.vision.encode([shot])[0].tokens
        return [self.vision.image_token_id] * places + self.texts[episode][turn]

    def pictures(self, episode: int, turn: int) -> tuple[Screenshot, ...]:
        """All pictures up to the turn."""
        return tuple(shot for shot in self.shots[episode][: turn + 1] if shot is not None)


def _picture(rng: random.Random) -> Screenshot:
    import numpy as np

    return screenshot(np.frombuffer(rng.randbytes(56 * 56 * 3), np.uint8).reshape(56, 56, 3))


async def with_engine(engine: InferenceEngine, work: Work, episodes: int, turns: int, response: int) -> float:
    """Seconds for all episodes, each going on as soon as its own answer is there."""

    async def episode(number: int) -> None:
        ids: list[int] = []
        for turn in range(turns):
            ids += work.ids(number, turn)
            sampling = SamplingParams(max_tokens=response, seed=number * 1000 + turn)
            pictures = work.pictures(number, turn)
            made = await engine.generate(GenerationRequest(tuple(ids), pictures, sampling, f"episode-{number}"))
            assert len(made.token_ids) == response, f"got {len(made.token_ids)} tokens, expected {response}"
            assert made.log_probs is not None
            ids += made.token_ids
        engine.release(f"episode-{number}")

    started = time.perf_counter()
    await asyncio.gather(*[episode(number) for number in range(episodes)])
    return time.perf_counter() - started


@torch.inference_mode()
def with_generate(loaded: LoadedModel, work: Work, episodes: int, turns: int, response: int) -> float:
    """Seconds for all episodes in lockstep, the log-probs of the sampled tokens included."""
    forbidden = sorted({*loaded.banned_ids, *loaded.end_ids})
    histories: list[list[int]] = [[] for _ in range(episodes)]
    model = as_it_comes(loaded.model)
    started = time.perf_counter()
    for turn in range(turns):
        for number, history in enumerate(histories):
            history += work.ids(number, turn)
        ids = torch.tensor(histories)
        inputs = loaded.pixel_inputs([s for e in range(episodes) for s in work.pictures(e, turn)])
        if loaded.vision is not None:
            inputs["mm_token_type_ids"] = (ids == loaded.vision.image_token_id).long()
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **inputs,
            do_sample=True,
            top_k=0,
            max_new_tokens=response,
            suppress_tokens=forbidden,
            eos_token_id=None,
            pad_token_id=loaded.end_ids[0],
            return_dict_in_generate=True,
            output_scores=True,
        )
        new = made.sequences[:, ids.shape[1] :]
        assert new.shape[1] == response, f"got {new.shape[1]} tokens, expected {response}"
        torch.stack(made.scores, 1).log_softmax(-1).gather(-1, new[..., None]).tolist()
        for history, tokens in zip(histories, new.tolist(), strict=True):
            history += tokens
    return time.perf_counter() - started


def as_it_comes(model: Any) -> Any:
    """A copy of the model without what `uirl.inference.models.loading` made faster."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        module.__dict__.pop("forward", None)
    return plain


async def measure(name: str, dtype: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per engine: medians of `--repeat` interleaved rounds, after one that does not count."""
    store = ConfigStore().override([*MODELS[name], f"model.dtype={dtype}", "model.device=cpu"])
    loaded = load_model(store.model)
    loaded = replace(loaded, banned_ids=tuple(sorted({*loaded.banned_ids, *loaded.end_ids})))
    work = Work(loaded, asked.episodes, asked.turns, asked.new_tokens)
    engines = {"embedded": create_engine(store, loaded)}
    if asked.vllm:
        options = store.override(["inference.backend=vllm"])
        engines["vLLM"] = create_engine(options, loaded)
        await engines["vLLM"].update_weights(loaded.model.named_parameters(), 1)
    rounds: Figures = {engine_name: [] for engine_name in (*engines, HF)}
    try:
        for number in range(asked.repeat + 1):
            taken = {}
            for engine_name, engine in engines.items():
                if engine_name == "vLLM" and number:
                    await engine.update_weights(loaded.model.named_parameters(), 1 + number)  # an empty prefix cache
                taken[engine_name] = await with_engine(engine, work, asked.episodes, asked.turns, asked.response)
            taken[HF] = with_generate(loaded, work, asked.episodes, asked.turns, asked.response)
            if number:
                for engine_name, seconds in taken.items():
                    rounds[engine_name].append(seconds)
    finally:
        for engine in engines.values():
            await engine.close()
    done = asked.episodes * asked.turns
    parameters = sum(p.numel() for p in loaded.model.parameters())
    work_of = f"{asked.episodes} episodes of {asked.turns} turns, {name} ({parameters / 1e6:.1f} M), {dtype}"
    checked = f"the same tokens in, {asked.response} sampled a turn, log-probs included"
    rates = {engine_name: [done / seconds for seconds in row] for engine_name, row in rounds.items()}
    peers = [peer for peer in rounds if peer != "embedded"]
    pairs = [pair(work_of, "turns/s", rates, "embedded", peer, checked, more_is_better=True) for peer in peers]
    report(asked.pairs, pairs)
    times_better = {
        "embedded": "1",
        **{one.peer: f"{one.better:.2f} ({one.low:.2f} to {one.high:.2f})" for one in pairs},
    }
    return [
        {
            "model": f"{name}, {dtype} ({parameters / 1e6:.1f} M)",
            "engine": engine_name,
            "turns_per_s": statistics.median(row),
            "tokens_per_s": statistics.median(row) * asked.response,
            "embedded_is": times_better[engine_name],
        }
        for engine_name, row in rates.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny VLM:float32,tiny LM:float32,100 M LM:float32,100 M LM:bfloat16")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("--response", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    print(
        "| model | engine | turns/s | tokens/s | embedded is so many times as fast |\n|---|---|---|---|---|", flush=True
    )
    for chosen in asked.models.split(","):
        name, _, dtype = chosen.partition(":")
        for row in asyncio.run(measure(name, dtype, asked)):
            print(
                f"| {row['model']} | {row['engine']} | {row['turns_per_s']:.1f} | "
                f"{row['tokens_per_s']:.0f} | {row['embedded_is']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
