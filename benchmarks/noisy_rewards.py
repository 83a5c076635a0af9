"""Training with rewards of a judge of known error: the raw judge, rules before it, the corrected reward, the true one.

    python -m benchmarks.noisy_rewards [--seeds 0 1 2] [--errors 0.2 0.1 0.05] [--ways NAME ...] [--updates 48]
      [--folder DIR]

One policy for drawn forms of one and two pages, where one miss is forgiven. The judge knows the truth and errs with a
known probability: either it accepts what is not solved, or it rejects what is. Whether it errs follows from the content
of an episode, as of a judge whose answers are kept. The rule book knows some tasks only: it decides forms of one
page; of forms of two pages with two or three colours it accepts those that are solved without a miss, and knows
nothing of the rest. All runs go on from one warm start. Held-out success is the environment's own word.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from uirl import ConfigStore, RayPPOTrainer, read_metrics
from uirl.environments import BaseEnvironment
from uirl.environments.screen.suite import PALETTES, ScreenSuite
from uirl.types import Action, Task, Trajectory, Verdict
from uirl.verification import HybridOptions, HybridVerifier, RuleBook, read_rule
from uirl.verification.client import JudgeClient
from uirl.verification.evidence import Evidence
from uirl.verification.judge import Judge, JudgeVerdict, ScreenCounts, digest
from uirl.verification.memory import JudgeMemory
from uirl.verification.outcome import Outcome, Votes

COLOURS = PALETTES["primary"]
TASKS = [
    Task(f"{level} pages, {buttons} buttons", checks={"level": level, "buttons": buttons, "palette": COLOURS})
    for level, buttons in product((1, 2), (1, 2, 3, 4))
]
DECISIVE = {"success": {"no": "decisive"}}
ONE_WAY = {"all": [{"success": None}, {"equals": {"of": "turns", "value": 2}}]}
RULES: dict[str, Any] = {"1 pages, *": DECISIVE, "2 pages, 2 *": ONE_WAY, "2 pages, 3 *": ONE_WAY}
AUDIT = 0.25
"""Share of the episodes that rules decide of which the judge is asked too: its rates are estimated from these."""
TRUE = "true reward"
WAYS = ("judge alone", "rules, then judge", "the same, corrected")
BASE = [
    *("model.model_name=uirl/tiny-vlm", "inference.max_tokens=16", "inference.max_turns=3", "training.threads=1"),
    *("training.adv_estimator=grpo", "training.group_size=8", "training.batch_size=64", "training.num_epochs=1"),
    *("training.learning_rate=5.0e-4", "training.entropy_coef=0.003", "training.clip_ratio_high=0.3"),
    *("training.warm_start.steps=130", "training.warm_start.learning_rate=2.0e-3"),
    *("training.warm_start.evaluate_every=null", "training.warm_start.stop_at_success=null"),
    *("logging.trackers=[]", "logging.store_trajectories=false", "checkpoint.save_interval=null"),
]


class Forms(ScreenSuite):
    """The suite without its controls, which every run would play anew."""

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        return {}


class KnownJudge(Judge):
    """Knows the truth and accepts what is not solved, and rejects what is, with these probabilities."""

    def __init__(self, false_accepts: float, false_rejects: float, seed: int) -> None:
        super().__init__(JudgeClient("known", "http://127.0.0.1:9", memory=JudgeMemory()))
        self.false_accepts, self.false_rejects, self.seed = false_accepts, false_rejects, seed

    async def judge(self, evidence: Evidence) -> JudgeVerdict:
        record = evidence.trajectory
        truth = record.metrics["success"] == 1.0
        content = f"{digest(record)}/{record.seed}/{self.seed}".encode()
        drawn = int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big") / 2**56
        passed = truth != (drawn < (self.false_rejects if truth else self.false_accepts))
        return JudgeVerdict(Outcome.of(passed), "as scripted", Votes(), 1.0, "none", ScreenCounts())


@dataclass
class NoisyInTraining:
    """A verifier whose word counts in training; in evaluations the truth does."""

    verifier: HybridVerifier | None
    said: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """(truth, what was rewarded) of the training episodes."""

    async def judge_episode(self, trajectory: Trajectory, environment: Any = None, pictures: Any = None) -> Verdict:
        truth = trajectory.metrics["success"] == 1.0
        if self.verifier is None or not trajectory.group_id.startswith("train-"):
            return Verdict(float(truth), truth, "the environment's word", "environment")
        verdict = await self.verifier.judge_episode(trajectory, environment, pictures)
        self.said[truth, verdict.passed] += 1
        return verdict

    def __call__(self, trajectory: Trajectory) -> float:
        raise NotImplementedError("episodes are judged by judge_episode")


def verifier_of(way: str, false_accepts: float, false_rejects: float, seed: int) -> HybridVerifier | None:
    """Return the verifier of a way; None: the true reward."""
    if way == TRUE:
        return None
    rules = {name: read_rule(rule) for name, rule in RULES.items()} if way != "judge alone" else {}
    options = HybridOptions(audit=AUDIT, correct_noise=way == "the same, corrected")
    return HybridVerifier(KnownJudge(false_accepts, false_rejects, seed), rules=RuleBook(rules), options=options)


def train(changes: list[str], folder: Path, name: str, verifier: HybridVerifier | None) -> Path:
    """Train, unless the run is there; return its directory. What it prints stands in a file beside it."""
    if (folder / name / "noise.json").is_file():
        return folder / name
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}"]
    said, started = io.StringIO(), time.process_time()
    reward = NoisyInTraining(verifier)
    with contextlib.redirect_stdout(said):
        forms = Forms(demonstrator="careless", carelessness=0.9, retries=1)
        trainer = RayPPOTrainer(ConfigStore().override([*BASE, *changes, *where]), forms, reward, TASKS)
        try:
            trainer.fit()
        finally:
            trainer.cleanup()
    (folder / f"{name}.log").write_text(said.getvalue())
    wrong = sum(count for (truth, passed), count in reward.said.items() if truth != passed)
    facts = {"wrong": wrong / max(1, reward.said.total()), "seconds": time.process_time() - started}
    (folder / name / "noise.json").write_text(json.dumps(facts))
    return folder / name


HEAD = """| reward of | errors | rewarded wrongly | held-out success, mean of the run | at the end | seeds | CPU s |
|---|---|---|---|---|---|---|"""


def row(way: str, noise: str, runs: list[Path]) -> str:
    """Return the line of a way: share of training episodes rewarded wrongly, and held-out success in %."""
    curves, ends = [], []
    for run in runs:
        evaluations = [line["eval/success"] for line in read_metrics(run / "metrics.jsonl") if line.get("eval/success")]
        last = json.loads((run / "summary.json").read_text())["success_after"]
        curves.append(mean(evaluations))
        ends.append(mean([evaluations[-1], last]))  # of other instances
    facts = [json.loads((run / "noise.json").read_text()) for run in runs]
    spread = f" +- {100 * stdev(ends):.1f}" if len(ends) > 1 else ""
    return (
        f"| {way} | {noise} | {100 * mean(f['wrong'] for f in facts):.1f} | {100 * mean(curves):.1f} | "
        f"{100 * mean(ends):.1f}{spread} | {', '.join(f'{100 * end:.1f}' for end in ends)} | "
        f"{mean(f['seconds'] for f in facts):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--errors", type=float, nargs="+", default=[0.2, 0.1, 0.05])
    parser.add_argument("--ways", nargs="+", default=[TRUE, *WAYS], choices=[TRUE, *WAYS])
    parser.add_argument("--updates", type=int, default=48)
    parser.add_argument("--folder", type=Path, help="keep the runs here; those that are there are read")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    cases = [(TRUE, "none", 0.0, 0.0)] if TRUE in options.ways else []
    for error, way in product(options.errors, [way for way in WAYS if way in options.ways]):
        cases += [(way, f"{error:.0%} false accepts", error, 0.0), (way, f"{error:.0%} false rejects", 0.0, error)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        once = ["training.num_iters_per_epoch=1", "training.eval_every=null", "training.eval_episodes=256"]
        start = train(once, folder, "warm", None) / "checkpoints" / "step_000000" / "policy"
        print(HEAD)
        for way, noise, accepts, rejects in cases:
            runs = []
            for seed in options.seeds:
                changes = [f"training.seed={seed}", f"training.num_iters_per_epoch={options.updates}"]
                changes += [f"training.eval_every={options.updates // 3}", "training.eval_episodes=256"]
                changes += [f"model.local_path={start}", "training.warm_start.enabled=false", *options.overrides]
                name = f"{way} {noise} {seed}".replace(",", "").replace("%", "").replace(" ", "-")
                runs.append(train(changes, folder, name, verifier_of(way, accepts, rejects, seed)))
            print(row(way, noise, runs), flush=True)


if __name__ == "__main__":
    main()
