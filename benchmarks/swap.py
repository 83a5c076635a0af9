"""New weights while episodes are in flight: `actors.swap` and `actors.keep_cache` both ways, the same work in one run.

Episodes of `--turns` turns are played at once, replies have 1 to 2 * `--response` - 1 tokens. Each time as many replies
have ended as there are episodes, the engine gets the next weights: two steps of AdamW with `training.learning_rate` on
a policy gradient of random advantages, which is what an update of the default run does. Afterwards every reply is
scored by the weights that its version names.

python -m benchmarks.swap
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import replace
from typing import Any

import torch
from engines import MODELS, Work

from uirl import ConfigStore, Generation, GenerationRequest, LoadedModel, SamplingParams, load_model
from uirl.inference import TransformersInferenceEngine, recompute_with
from uirl.inference.models.copying import copy_of
from uirl.inference.models.loading import hidden_states, pad_sequences, project

SWAPS = ("token", "turn")
Version = dict[str, torch.Tensor]


class Play:
    """One run of an engine over the work, with updates on the way."""

    def __init__(self, engine: TransformersInferenceEngine, work: Work, versions: list[Version], args: Any) -> None:
        self.engine, self.work, self.versions, self.args = engine, work, versions, args
        self.replies: list[tuple[GenerationRequest, Generation]] = []
        self.later: list[bool] = []
        """Whether the reply belongs to an episode that began under older weights."""
        self.waited: list[float] = []

    async def run(self) -> float:
        """Return the seconds of all episodes."""
        started = time.perf_counter()
        episodes = [asyncio.ensure_future(self.episode(n)) for n in range(self.args.episodes)]
        updates = asyncio.ensure_future(self.updates())
        await asyncio.gather(*episodes)
        seconds = time.perf_counter() - started
        updates.cancel()
        await asyncio.gather(updates, return_exceptions=True)
        return seconds

    async def updates(self) -> None:
        for version in range(1, len(self.versions)):
            while len(self.replies) < version * self.args.episodes:
                await asyncio.sleep(0)
            started = time.perf_counter()
            await self.engine.update_weights(self.versions[version].items(), version)
            self.waited.append(time.perf_counter() - started)

    async def episode(self, number: int) -> None:
        ids: list[int] = []
        first = None
        for turn in range(self.args.turns):
            ids += self.work.ids(number, turn)
            seed = 100 * number + turn
            length = random.Random(seed).randint(1, 2 * self.args.response - 1)
            sampling = SamplingParams(max_tokens=length, seed=seed)
            pictures = self.work.pictures(number, turn)
            request = GenerationRequest(tuple(ids), pictures, sampling, f"e{number}")
            reply = await self.engine.generate(request)
            first = reply.policy_version if first is None else first
            self.replies.append((request, reply))
            self.later.append(reply.policy_version > first)
            ids += reply.token_ids
        self.engine.release(f"e{number}")


def gaps(play: Play, scorer: LoadedModel) -> tuple[float, float]:
    """(mean, largest) |engine - learner| per token over the turns that follow an update of their episode."""
    score, found = recompute_with(scorer), []
    for version, weights in enumerate(play.versions):
        load(scorer, weights)
        for (request, reply), later in zip(play.replies, play.later, strict=True):
            if later and reply.policy_version == version:
                ids = (*request.prompt_ids, *reply.token_ids)
                learned = score(ids, request.images, len(reply.token_ids), request.sampling)
                found += [abs(a - b) for a, b in zip(reply.log_probs or (), learned, strict=True)]
    return sum(found) / len(found), max(found)


def load(loaded: LoadedModel, weights: Version) -> None:
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            parameter.copy_(weights[name])


async def updates_of(loaded: LoadedModel, work: Work, args: Any) -> tuple[list[Version], float]:
    """(the weights of every version, the mean |change| of a log-prob by one update)."""
    learner = copy_of(loaded)
    learner.model.requires_grad_(True)
    optimizer = torch.optim.AdamW(learner.model.parameters(), lr=ConfigStore().training.learning_rate)
    sampler = Play(TransformersInferenceEngine(copy_of(loaded)), work, [{}], args)
    await sampler.run()
    rng = random.Random(0)
    versions, changes = [state_of(learner)], []
    for version in range(1, args.turns):
        for _ in range(2):
            batch = rng.sample(sampler.replies, min(16, len(sampler.replies)))
            sequences = [(*request.prompt_ids, *reply.token_ids) for request, reply in batch]
            images = [request.images for request, _ in batch]
            ids, positions = pad_sequences(learner, sequences, images)
            hidden = hidden_states(learner, ids, positions, [shot for shots in images for shot in shots])
            loss = torch.zeros(())
            for row, (request, reply) in enumerate(batch):
                start, end = len(request.prompt_ids), len(request.prompt_ids) + len(reply.token_ids)
                log_probs = project(learner, hidden[row, start - 1 : end - 1]).log_softmax(-1)
                loss = loss - rng.choice((-1, 1)) * log_probs.gather(-1, ids[row, start:end, None]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
            optimizer.step()
        versions.append(state_of(learner))
        changes.append(change(learner, versions[version - 1], versions[version], sampler.replies[:8]))
    return versions, sum(changes) / len(changes)


def change(learner: LoadedModel, old: Version, new: Version, replies: list[Any]) -> float:
    scored = []
    for weights in (old, new):
        load(learner, weights)
        score = recompute_with(learner)
        scored.append(
            [
                value
                for request, reply in replies
                for value in score(
                    (*request.prompt_ids, *reply.token_ids), request.images, len(reply.token_ids), request.sampling
                )
            ]
        )
    return sum(abs(a - b) for a, b in zip(*scored, strict=True)) / len(scored[0])


def state_of(loaded: LoadedModel) -> Version:
    return {name: parameter.detach().clone() for name, parameter in loaded.model.named_parameters()}


async def compare(name: str, args: Any) -> None:
    config = ConfigStore().override(MODELS[name])
    loaded = load_model(config.model, seed=0)
    loaded = replace(loaded, banned_ids=(*loaded.banned_ids, *loaded.end_ids))  # the same work for all
    work = Work(loaded, args.episodes, args.turns, args.new)
    versions, moved = await updates_of(loaded, work, args)
    print(
        f"\n{name}: {args.episodes} episodes x {args.turns} turns x ({args.new} new + {args.response} sampled tokens)"
    )
    print(f"one update changes a log-prob by {moved:.4f} nats, as a mean")
    print("| swap | keep_cache | tokens/s, ratio | prefilled tokens | an update waits | gap, mean | gap, largest |")
    print("|---|---|---|---|---|---|---|")
    rates: dict[tuple[str, bool], list[float]] = {}
    rows: dict[tuple[str, bool], tuple[Play, dict[str, float]]] = {}
    for _ in range(args.repeat):
        for swap in SWAPS:
            for keep in (False, True):
                engine = TransformersInferenceEngine(copy_of(loaded), swap=swap, keep_cache=keep)
                play = Play(engine, work, versions, args)
                seconds = await play.run()
                stats = engine.stats()
                rates.setdefault((swap, keep), []).append(stats["generated_tokens"] / seconds)
                rows[swap, keep] = play, stats
                await engine.close()
    base = max(rates["token", False])
    for (swap, keep), (play, stats) in rows.items():
        mean, largest = gaps(play, copy_of(loaded))
        waited = 1000 * sum(play.waited) / max(1, len(play.waited))
        print(
            f"| {swap} | {str(keep).lower()} | {max(rates[swap, keep]):.0f}, {max(rates[swap, keep]) / base:.2f} "
            f"| {stats['prefill_tokens']:.0f} | {waited:.0f} ms | {mean:.2g} | {largest:.2g} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny VLM,tiny LM")
    for name, default in (("episodes", 16), ("turns", 6), ("new", 40), ("response", 24), ("repeat", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.models.split(","):
        asyncio.run(compare(name, args))


if __name__ == "__main__":
    main()
