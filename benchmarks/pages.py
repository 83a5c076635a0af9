"""Ten pages of MiniWoB++ with one config: only the page's name changes.

    python -m benchmarks.pages [--pages click-test,click-link,...] [--seeds 0] [section.key=value ...]

Each page is learned from the same weights by `configs/miniwob.yaml`: a warm start on 64 demonstrations of that page,
then reinforcement learning until `training.stop_at_success` or `training.max_seconds`. Success before and after
reinforcement learning is that of the same held-out instances. `seconds` are those of everything that `uirl train` does:
loading, demonstrations, updates, evaluations, controls.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uirl import RayPPOTrainer, load_config

CONFIG = Path(__file__).parents[1] / "configs" / "miniwob.yaml"
PAGES = (
    *("click-test", "click-test-2", "click-button", "click-link", "click-dialog-2"),
    *("click-tab", "click-color", "click-widget", "focus-text-2", "click-shape"),
)
SOLVED = 0.8


def learn(page: str, seed: int, changes: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train on one page; return the summary of its run, with `wall`: seconds of everything, evaluations too."""
    where = [f"logging.runs_dir={folder}", f"logging.run_name={page}-{seed}", "checkpoint.save_interval=null"]
    given = [f"environment.options.task={page}", f"training.seed={seed}", *changes]
    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = RayPPOTrainer(load_config(CONFIG, [*where, *given]))
        try:
            summary = trainer.fit()
        finally:
            trainer.cleanup()
    return summary | {"wall": time.monotonic() - started}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", default=",".join(PAGES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("changes", nargs="*", help="section.key=value")
    args = parser.parse_args()
    columns = ("page", "seed", "before RL", "after RL (95 %)", "updates", "episodes", "seconds", "ended")
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    solved, runs = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for page in args.pages.split(","):
            for seed in map(int, args.seeds.split(",")):
                made = learn(page, seed, args.changes, Path(folder))
                after, low, high = made["success_after"], *made["success_after_interval"]
                print(
                    f"| {page} | {seed} | {made['success_before']:.2f} | {after:.2f} ({low:.2f} to {high:.2f}) "
                    f"| {made['steps']} | {made['episodes']} | {made['wall']:.0f} | {made['stopped_because']} |",
                    flush=True,
                )
                solved, runs = solved + (after >= SOLVED), runs + 1
    print(f"\n{solved} of {runs} at {SOLVED} or above")


if __name__ == "__main__":
    main()
