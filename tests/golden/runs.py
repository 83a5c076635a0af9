"""Six tiny runs of two updates each, and what is written down of them."""

from __future__ import annotations

import zlib
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from uirl import RayPPOTrainer, TrajectoryStore, load_config, read_metrics

CONFIGS = Path(__file__).parents[2] / "configs"
COMMON = (
    *("training.threads=1", "training.seed=0", "training.batch_size=16", "training.eval_every=1"),
    *("training.eval_episodes=8", "training.stop_at_success=null", "training.warm_start.steps=40"),
    *("training.warm_start.demonstrations=64", "training.warm_start.batch_size=16"),
    *("training.warm_start.learning_rate=1e-2", "training.warm_start.stop_at_success=null"),
    "training.warm_start.evaluate_every=null",
    *("model.tiny.hidden_size=32", "model.tiny.intermediate_size=64", "model.tiny.vision_hidden_size=32"),
    *("model.device=cpu", "logging.run_name=run", "logging.trackers=[]"),
)
SCREEN = ("environment.options.palette=[red, green]", "environment.options.buttons=2", "environment.options.jitter=0")
STEADY = "training.warm_start.learning_rate=3e-3"
"""At which rounding does not grow: other CPUs round otherwise."""
SUM = (
    *("environment.options.digits=1", "environment.options.operators=+", "training.warm_start.steps=100", STEADY),
    "training.seed=2",  # with 0 a token lies so near another one that AVX-512 draws that one
)
GUESS = ("environment.options.n=4", "environment.options.guesses=2", "environment.options.carelessness=0.7")
PPO = ("training.adv_estimator=gae", "training.update_epochs=2", "algorithm.kl_loss_coef=0.1")
LORA = ("model.use_lora=true", "model.lora.r=4", "training.warm_start.enabled=false", "training.learning_rate=1e-3")
BASE = "checkpoints/step_000002/policy"
"""What the run with adapters begins with: the run of text alone."""
RUNS = {
    "screen": ("screen", SCREEN),
    "text": ("guess_number", GUESS),
    "tools": ("calculator", SUM),
    "ppo": ("guess_number", (*GUESS, *PPO)),
    "rloo": ("guess_number", (*GUESS, "training.adv_estimator=rloo", "training.old_log_probs=recompute")),
    "lora": ("guess_number", (*GUESS, *LORA)),
}
"""Name -> the config file and its changes."""
FIGURES = (
    *("policy_loss", "value_loss", "reward", "success", "entropy", "grad_norm", "value_grad_norm", "clip_fraction"),
    *("approx_kl", "eval/reward", "log_prob_gap_max"),
)


def play(name: str, folder: Path) -> tuple[dict[str, Any], set[str]]:
    """Return the digits of a run, and the names of all its metrics."""
    config, changes = RUNS[name]
    if name == "lora":
        play("text", folder / "base")
        changes = (*changes, f"model.local_path={folder / 'base' / 'run' / BASE}")
    settings = load_config(CONFIGS / f"{config}.yaml", [*COMMON, *changes, f"logging.runs_dir={folder}"])
    threads = torch.get_num_threads()
    trainer = RayPPOTrainer(settings)
    try:
        trainer.fit(num_epochs=1, num_iters_per_epoch=2)
        trained = [p.detach().double() for p in trainer.learner.policy.model.parameters() if p.requires_grad]
    finally:
        trainer.cleanup()
        torch.set_num_threads(threads)
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    warm = read_metrics(folder / "run" / "metrics.jsonl", "warm_start")
    digits = {
        "updates": [{key: round(row[key], 10) for key in FIGURES if key in row} for row in rows],
        "warm_start": [round(row["warm_start/loss"], 10) for row in warm if "warm_start/loss" in row][::8],
        "weights": {
            "number": sum(p.numel() for p in trained),
            "sum": float(f"{sum(float(p.sum()) for p in trained):.10g}"),
            "absolute": float(f"{sum(float(p.abs().sum()) for p in trained):.10g}"),
        },
        **_sampled(folder / "run" / "trajectories.sqlite"),
    }
    return digits, set(chain(*rows, *warm))


def _sampled(path: Path) -> dict[str, int]:
    """Return how many episodes and tokens were sampled, and a checksum of the ids, which no rounding changes."""
    store = TrajectoryStore(path, read_only=True)
    try:
        episodes = sorted(store, key=lambda episode: episode.id)
    finally:
        store.close()
    ids = [token for episode in episodes for turn in episode.turns for token in turn.response_ids]
    return {"episodes": len(episodes), "tokens": len(ids), "crc32_of_tokens": zlib.crc32(repr(ids).encode())}


def differences(was: dict[str, Any], now: dict[str, Any], relative: float = 1e-4) -> list[str]:
    """Return where `now` is not `was`.

    Numbers may differ by `relative` of their size, or by 1e-6 where they are near 0: other CPUs round otherwise. A sum
    of weights may differ by as much of the sum of their absolute values; of the gap between engine and learner, which
    is rounding and nothing else, only the bound counts.
    """
    before, after = _flat(was), _flat(now)
    found = [f"{name}: only in one of them" for name in before.keys() ^ after.keys()]
    for name in before.keys() & after.keys():
        a, b = before[name], after[name]
        size = before["weights.absolute"] if name == "weights.sum" else abs(a)
        near = max(relative * size, 1e-6) if isinstance(a, float) else 0
        if not (0 <= b < 1e-4 if name.endswith("log_prob_gap_max") else abs(a - b) <= near):
            found.append(f"{name}: expected {a}, got {b}")
    return sorted(found)


def _flat(value: Any, name: str = "") -> dict[str, float]:
    """Return 'updates.0.reward' -> number."""
    if not isinstance(value, dict | list):
        return {name: value}
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, inner in inside for k, v in _flat(inner, f"{name}.{key}".lstrip(".")).items()}
