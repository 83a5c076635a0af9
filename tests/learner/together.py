"""Two processes that learn together, and what becomes of the same updates in one alone.

`python -m tests.learner.together FOLDER` is one of them, as torchrun would start it; the first writes what there is to
see into the folder, a file for each name in `UPDATES` and some more.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.learner.updates import TEXT
from tests.learner.worlds import make_config, sample_trajectories, weights_of
from uirl.errors import UirlError
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.learner import Learner, Policy, load_checkpoint, save_checkpoint
from uirl.learner.data_parallel import Begin, Learn, Ranks, join
from uirl.learner.follower import Follower
from uirl.types import Sample

UPDATES = {
    "ppo": ["training.adv_estimator=gae", "training.minibatches=2", "training.update_epochs=2"],
    "grpo": ["training.adv_estimator=grpo", "algorithm.kl_loss_coef=0.1", "training.minibatches=1"],
    "lora": ["model.use_lora=true", "model.lora.r=4", "training.adv_estimator=grpo", "algorithm.kl_loss_coef=0.1"],
    "region": [TEXT, "training.adv_estimator=gae", "algorithm.max_update_kl=1e-4", "training.weight_decay=0.1"],
    "bfloat16": [TEXT, "model.dtype=bfloat16", "training.adv_estimator=gae", "model.gradient_checkpointing=true"],
    "many passes": [TEXT, "training.adv_estimator=gae", "training.micro_batch_tokens=64"],
    "no pass": [TEXT, "training.adv_estimator=gae", "training.minibatches=6"],
    "memory": [TEXT, "training.adv_estimator=gae", "training.seed=101"],
    "not finite": [TEXT, "training.adv_estimator=gae", "training.seed=102"],
}
"""Name -> changes of the config."""
QUANTIZED = ["model.quantization=nf4", "model.use_lora=true", "model.dtype=bfloat16", "training.adv_estimator=gae"]
FAULTS = {101: "memory", 102: "not finite", 103: "alone"}
"""Seed -> what goes wrong in the second process, and only there."""
TOGETHER = ["training.adv_estimator=gae", TEXT]
ALIKE = {"one": False, "two": True}
"""How an update is made -> whether together."""


def learner_of(overrides: list[str], ranks: Ranks | None) -> tuple[Learner, list[Sample]]:
    """A learner, and samples of the policy that it begins with. Nobody compares the engine's scores with later ones."""
    config, images = make_config("training.threads=1", "inference.backend=openai", *overrides), ImageStore()
    policy = Policy.from_config(config)
    samples = sample_trajectories(policy, images, n=6, turns=2, reward=lambda i, turn: float(i % 2) + turn)
    return Learner(policy, config, images, ranks=ranks), samples


def seen(learner: Learner, samples: list[Sample]) -> dict[str, Any]:
    """The metrics of two updates, the newest scores of all tokens in them, and the weights after them; or the error."""
    rows: list[dict[str, float]] = []
    tokens: list[float] = []

    def note(learned: list[Any], version: int) -> None:
        tokens.extend(float(x) for one in learned for x in (*one.log_probs, *one.entropies))

    try:
        for _ in range(2):
            fresh = [replace(sample, policy_version=learner.version) for sample in samples]
            rows.append(learner.update(fresh, on_learned=note))
    except UirlError as error:
        return {"error": type(error).__name__, "words": str(error), "weights": flat(learner.policy)}
    return {"rows": rows, "tokens": tokens, "weights": flat(learner.policy)}


def flat(policy: Policy) -> list[float]:
    return torch.cat([weight.float().flatten() for weight in weights_of(policy).values()]).tolist()


def demonstrated(ranks: Ranks | None) -> dict[str, Any]:
    learner, samples = learner_of(TOGETHER, ranks)
    return {"rows": [learner.supervised(samples) for _ in range(2)], "weights": flat(learner.policy)}


def carried_on(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What an update makes that goes on from a checkpoint: who wrote and who reads it -> metrics and weights."""
    found = {}
    for number, (writer, together) in enumerate(ALIKE.items()):
        learner, samples = learner_of(TOGETHER, ranks if together else None)
        learner.update(samples)
        path = save_checkpoint(folder / f"step-{number}", learner, {})
        for reader, others in ALIKE.items():
            other, samples = learner_of(TOGETHER, ranks if others else None)
            load_checkpoint(path, other)
            row = other.update([replace(sample, policy_version=1) for sample in samples])
            found[f"{writer} {reader}"] = {"rows": [row], "weights": flat(other.policy)}
    return found


def lead(ranks: Ranks, folder: Path) -> None:
    def write(name: str, value: Any) -> None:
        (folder / f"{name}.json").write_text(json.dumps(value))

    def both(overrides: list[str]) -> dict[str, Any]:
        return {how: seen(*learner_of(overrides, ranks if together else None)) for how, together in ALIKE.items()}

    for name, overrides in UPDATES.items():
        write(name, both(overrides))
    load_model(make_config("model.tiny.hidden_size=64", "model.tiny.intermediate_size=128").model).save(
        folder / "model"
    )
    write("four bits", both([f"model.local_path={folder / 'model'}", *QUANTIZED]))
    write("demonstrations", {how: demonstrated(ranks if together else None) for how, together in ALIKE.items()})
    write("checkpoints", carried_on(ranks, folder))
    write("alone", seen(*learner_of([*TOGETHER, "training.seed=103"], ranks)))  # the last: they part over it


def follow(ranks: Ranks) -> None:
    fault = ""
    whole, do = Policy.log_probs_and_values, Follower._do

    def spoiled(policy: Policy, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if fault == "memory" and len(batch.input_ids) > 1:
            raise MemoryError
        scores = whole(policy, batch, *args, **kwargs)
        if fault == "not finite" and torch.is_grad_enabled():
            scores.log_probs.mul_(float("nan"))
        return scores

    def watched(self: Follower, message: Any) -> None:
        nonlocal fault
        if isinstance(message, Begin):
            fault = FAULTS.get(message.config["training"]["seed"], "")
        if isinstance(message, Learn) and fault == "alone":
            raise OSError("the disk is gone")
        do(self, message)

    Policy.log_probs_and_values = spoiled  # type: ignore[method-assign]
    Follower._do = watched  # type: ignore[method-assign]
    Follower(ranks).run()


def start(module: str, *arguments: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """Start `python -m MODULE ARGUMENTS` as torchrun does, `count` times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = join()
    try:
        lead(ranks, Path(sys.argv[1])) if ranks.leads else follow(ranks)
    finally:
        ranks.close()
