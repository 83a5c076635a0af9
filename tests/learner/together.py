"""Two processes that learn together, and what becomes of updates in them and in one alone.

`python -m tests.learner.together FOLDER` is one of them, as torchrun would start it; the first writes what it saw."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.learner.updates import TEXT
from tests.learner.worlds import make_config, sample_trajectories, weights_of
from uirl.errors import UirlError
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, load_checkpoint, save_checkpoint
from uirl.learner.data_parallel import Begin, Ranks, join
from uirl.learner.follower import Follower
from uirl.types import Sample

UPDATES = {
    "ppo": ["training.adv_estimator=gae", "training.minibatches=2", "training.update_epochs=2"],
    "grpo": ["training.adv_estimator=grpo", "algorithm.kl_loss_coef=0.1", "training.minibatches=1"],
    "text": [TEXT, "training.adv_estimator=gae", "training.micro_batch_tokens=64"],
    "lora": ["model.use_lora=true", "model.lora.r=4", "training.adv_estimator=grpo", "algorithm.kl_loss_coef=0.1"],
    "region": ["training.adv_estimator=gae", "algorithm.max_update_kl=1e-4", "algorithm.target_kl=0.5"],
    "bfloat16": ["model.dtype=bfloat16", "training.adv_estimator=gae", "model.gradient_checkpointing=true"],
    "few": [TEXT, "training.adv_estimator=gae", "training.minibatches=6"],
    "memory": [TEXT, "training.adv_estimator=gae", "training.seed=101"],
    "wrong": [TEXT, "training.adv_estimator=gae", "training.seed=102"],
    "alone": [TEXT, "training.adv_estimator=gae", "training.seed=103"],
}
"""Name -> changes of the config. The seeds above 100 ask the second process for a fault."""
FAULTS = {101: "memory", 102: "wrong"}
ROUNDS = 2


def learner_of(overrides: list[str], ranks: Ranks | None) -> tuple[Learner, list[Sample]]:
    """A learner, and samples of the policy that it begins with."""
    # the samples are those of the first update: nobody compares the later ones with an engine
    config, images = make_config("training.threads=1", "inference.backend=openai", *overrides), ImageStore()
    policy = Policy.from_config(config)
    samples = sample_trajectories(policy, images, n=6, turns=2, reward=lambda i, turn: float(i % 2) + turn)
    return Learner(policy, config, images, ranks=ranks), samples


def seen(learner: Learner, samples: list[Sample]) -> dict[str, Any]:
    """The metrics of updates, the newest scores of their tokens, and the weights after them."""
    rows, tokens = [], []

    def note(learned: list[Any], version: int) -> None:
        tokens.extend(float(x) for one in learned for x in one.log_probs)

    for _ in range(ROUNDS):
        fresh = [
            type(s)(**{f: getattr(s, f) for f in s.__slots__} | {"policy_version": learner.version}) for s in samples
        ]
        rows.append(learner.update(fresh, on_learned=note))
    return {"rows": rows, "tokens": tokens, "weights": flat(learner.policy)}


def flat(policy: Policy) -> list[float]:
    return torch.cat([p.float().flatten() for p in weights_of(policy).values()]).tolist()


def attempted(learner: Learner, samples: list[Sample]) -> dict[str, Any]:
    """What `seen` sees, or the error."""
    try:
        return seen(learner, samples)
    except UirlError as error:
        return {"error": type(error).__name__, "words": str(error), "weights": flat(learner.policy)}


def lead(ranks: Ranks, folder: Path) -> None:
    """Write what there is to see, alone and together."""
    for name, overrides in [
        (k, v) for k, v in UPDATES.items() if not os.environ.get("ONLY") or k in os.environ["ONLY"]
    ]:
        found = {how: attempted(*learner_of(overrides, r)) for how, r in (("one", None), ("two", ranks))}
        (folder / f"{name}.json").write_text(json.dumps(found))
    (folder / "demonstrations.json").write_text(
        json.dumps({how: demonstrated(r) for how, r in (("one", None), ("two", ranks))})
    )
    (folder / "checkpoints.json").write_text(json.dumps(carried_on(ranks, folder)))


def demonstrated(ranks: Ranks | None) -> dict[str, Any]:
    learner, samples = learner_of(["training.adv_estimator=gae"], ranks)
    return {"rows": [learner.supervised(samples) for _ in range(2)], "weights": flat(learner.policy)}


def carried_on(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What an update makes that goes on from a checkpoint: (who wrote it, who reads it) -> its metrics."""
    found = {}
    overrides = ["training.adv_estimator=gae", "model.dtype=bfloat16"]
    for writer, first in (("one", None), ("two", ranks)):
        learner, samples = learner_of(overrides, first)
        learner.update(samples)
        path = save_checkpoint(folder / f"step-{1 if first is None else 2}", learner, {})
        for reader, second in (("one", None), ("two", ranks)):
            other, samples = learner_of(overrides, second)
            load_checkpoint(path, other)
            found[f"{writer} {reader}"] = other.update(
                [s.__class__(**{f: getattr(s, f) for f in s.__slots__} | {"policy_version": 1}) for s in samples]
            )
    return found


def spoil(fault: dict[str, str]) -> None:
    """Let passes fail as `fault` says."""
    whole = Policy.log_probs_and_values

    def limited(policy: Policy, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if fault.get("kind") == "memory" and len(batch.input_ids) > 1:
            raise MemoryError
        scores = whole(policy, batch, *args, **kwargs)
        if fault.get("kind") == "wrong" and torch.is_grad_enabled():
            scores.log_probs.mul_(float("nan"))
        return scores

    Policy.log_probs_and_values = limited  # type: ignore[method-assign]


def follow(ranks: Ranks) -> None:
    fault: dict[str, str] = {}
    spoil(fault)
    do = Follower._do

    def watched(self: Follower, message: Any) -> None:
        if isinstance(message, Begin):
            fault["kind"] = FAULTS.get(message.config["training"]["seed"], "")
        do(self, message)

    Follower._do = watched  # type: ignore[method-assign]
    Follower(ranks).run()


def start(arguments: list[str], count: int = 2) -> list[subprocess.Popen[str]]:
    """The processes `python -m tests.learner.together ARGUMENTS`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.learner.together", *arguments]
    return [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(count)
    ]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join()
    work: Callable[[], None] = (lambda: lead(ranks, folder)) if ranks.leads else (lambda: follow(ranks))
    try:
        work()
    finally:
        ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
