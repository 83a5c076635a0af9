"""Rejection sampling with and without certified beginnings, on the drawn screen: same budget, 3 rounds, some seeds.

    python -m benchmarks.prefixes [--seeds 0 1 2] [--episodes 128] [--runs DIR]

All seeds and ways go on from one warm start (of seed 0) and play as many episodes per round. 'solved alone': solved
episodes are learned from. 'forks': also beginnings of failed episodes of groups that hold a solved one, certified by
playing them again. 'judge': where no episode of a group is solved, a judge finds the beginning; it is a real HTTP
server that reads whether the page changed, and so makes no mistake. 'forks, restarts': half of a round's groups start
behind a beginning of the round before. With --runs a benchmark that was ended goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from tests.inference.stand_in_http import Seen
from tests.verification.scripted_judge import ScriptedJudge, question
from uirl.config import load_config
from uirl.pipelines import Evolution

ROUNDS = 3
WAYS: dict[str, list[str]] = {
    "solved alone": ["evolve.prefixes=off"],
    "forks": ["evolve.prefixes=fork"],
    "judge": ["evolve.prefixes=judge", "verification.judge=eye"],
    "forks, restarts": ["evolve.prefixes=fork", "evolve.restarts=0.5"],
}
JOB = [
    "environment.options={level: 3, palette: [red, blue], buttons: 2, jitter: 0}",
    "environment.options.demonstrator=careless",
    "environment.options.carelessness=0.5",
    "training.threads=1",
    "training.eval_episodes=128",
    "training.warm_start.stop_at_success=null",
    "training.warm_start.evaluate_every=null",
    "training.warm_start.steps=70",
    f"evolve.rounds={ROUNDS}",
    "evolve.per_instance=8",
    "evolve.learning_rate=5e-4",
    "evolve.epochs=3",
    "evolve.batch_size=32",
]


class PageJudge(ScriptedJudge):
    """Finds a beginning right if the last page is no answer to a miss."""

    def __init__(self) -> None:
        super().__init__()
        self.on_track = self.saw_no_miss

    def saw_no_miss(self, seen: Seen) -> str:
        page = question(seen).partition("The text of the page after the last of these steps:")[2]
        text = page.split("\n")[2]
        return "yes" if text == "ok" or text.startswith("press") or not text else "no"


def run(folder: Path, way: str, seed: int, episodes: int, server: ScriptedJudge) -> list[dict[str, Any]]:
    """Play the rounds of a way, behind the warm start that is there, and return their facts."""
    name = f"{way.replace(', ', '-').replace(' ', '-')}-{seed}"
    base = folder / "warm"
    if base.is_dir() and not (folder / name).is_dir():
        shutil.copytree(base, folder / name)
    changes = [*JOB, f"training.seed={seed}", f"evolve.episodes={episodes}", *WAYS[way]]
    changes += [f"logging.runs_dir={folder}", f"logging.run_name={name}", "checkpoint.resume=auto"]
    if "verification.judge=eye" in changes:
        changes.append(f"verification.judge_url={server.url}")
    evolution = Evolution(load_config("configs/screen.yaml", changes))
    try:
        evolution.run()
    finally:
        evolution.close()
    if not base.is_dir():
        shutil.copytree(folder / name, base, ignore=shutil.ignore_patterns("round_0[1-9]", "step_00000[1-9]", ".lock"))
    return [json.loads((folder / name / f"round_{n:02d}" / "round.json").read_text()) for n in range(ROUNDS + 1)]


def row(way: str, runs: list[list[dict[str, Any]]]) -> str:
    """Return the line of a way: held-out success after each round, what was kept, what was learned from."""
    rounds = [[facts[n]["evaluate"]["success"] for facts in runs] for n in range(ROUNDS + 1)]
    success = " | ".join(f"{100 * mean(values):.1f}" for values in rounds)
    last = ", ".join(f"{100 * value:.1f}" for value in rounds[-1])
    kinds = ("solved", "beginnings")
    kept = [mean(sum(f[n]["select"][kind] for n in range(1, ROUNDS + 1)) for f in runs) for kind in kinds]
    tokens = mean(facts[ROUNDS]["fine_tune"]["learned_tokens"] for facts in runs)
    return f"| {way} | {success} | {last} | {' | '.join(f'{count:.0f}' for count in kept)} | {tokens:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=128, help="of a round")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--runs", metavar="DIR", help="folder of the runs; default: one that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, PageJudge() as server:
        folder = Path(options.runs or scratch)
        found: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in options.ways}
        for seed in options.seeds:
            for way in options.ways:
                started = time.monotonic()
                found[way].append(run(folder, way, seed, options.episodes, server))
                print(f"seed {seed}, {way}: {time.monotonic() - started:.0f} s", flush=True)
        print(f"\n| way | {' | '.join(f'after round {n}' for n in range(ROUNDS + 1))} | of the seeds | solved kept | "
              "beginnings kept | learned tokens |")  # fmt: skip
        print("|---|" + "---|" * (ROUNDS + 5))
        for way, runs in found.items():
            print(row(way, runs))


if __name__ == "__main__":
    main()
