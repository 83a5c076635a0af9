"""Every benchmark that has a peer, one after the other, in one table with machine and date: `make bench`.

    python -m benchmarks.bench [--only NAME ...] [--folder runs/bench] [--quick]

Each benchmark is a process of its own, in the environment that has its peer, and writes pairs of figures (`pairs.py`).
Both sides do the same work and take turns, which each benchmark checks. The table and the pairs go to `--folder`; the
exit status is 1 where a benchmark failed or was late, and the table says which. `--quick` makes one short round of
each, to see that they run; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.pairs import read, table

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Bench:
    """One command with its peer."""

    python: str
    """Of the environment that has the peer, from the root of the repository."""
    arguments: str
    quick: str
    """Arguments that make it short."""
    minutes: float
    """After so long it is stopped, and counts as failed."""
    env: tuple[tuple[str, str], ...] = ()


OURS, VLLM, VERL, PAGES = (f".venv{name}/bin/python" for name in ("", "-vllm", "-verl", "-browsergym"))
TRL = (("PYTHONPATH", ".venv-verl/trl:."),)
CPU = (("VERL_PLATFORM", "cpu"), ("VERL_USE_EXTERNAL_MODULES", "tests.integrations.verl.cpu"), ("PYTHONPATH", "."))

BENCHES = {
    "gae": Bench(OURS, "benchmarks.gae", "--rows 64 --columns 256 --repeats 2", 3),
    "patches": Bench(OURS, "benchmarks.patches", "--rounds 1", 3),
    "groups": Bench(OURS, "benchmarks.groups --replies 1", "--rounds 1 --members 2 --side 112", 5),
    "an update of a group": Bench(
        OURS, "benchmarks.group_update --text 1500 --rounds 3", "--rounds 1 --members 2 --side 112 --text 0", 5
    ),
    "encodings": Bench(OURS, "benchmarks.encodings --episodes 16 --turns 4", "--episodes 8 --turns 2 --scale 8", 5),
    "engines, tiny": Bench(
        VLLM, "benchmarks.engines --vllm --models 'tiny VLM:float32,tiny LM:float32'", "--repeat 1 --turns 2", 10
    ),
    "engines, 100 M": Bench(
        VLLM,
        "benchmarks.engines --vllm --models '100 M LM:float32' --episodes 8 --repeat 2",
        "--repeat 1 --turns 2",
        15,
    ),
    "step beside TRL": Bench(VERL, "benchmarks.trl_step --rounds 8", "--rounds 1 --no-stock", 12, TRL),
    "update beside TRL": Bench(VERL, "benchmarks.update --trl", "--seconds 1 --dtypes float32 --threads 1", 10, TRL),
    "verl's agent loop": Bench(VERL, "benchmarks.verl_loop --no_record", "--rounds 1 --episodes 4", 10, CPU),
    "browser": Bench(
        OURS,
        f"benchmarks.browser --peers {PAGES} --sessions 1 4 16 --seconds 6 --rounds 2",
        "--sessions 1 --rounds 1",
        15,
    ),
    "sizes of pages": Bench(
        OURS,
        "benchmarks.browser_sizes --pages light --seconds 5 --rounds 3",
        "--sizes 320x200 --rounds 1 --seconds 2",
        8,
    ),
}


def pairs_of(folder: Path, name: str) -> Path:
    """Return the file for the pairs of one benchmark."""
    return folder / f"{''.join(letter if letter.isalnum() else '_' for letter in name)}.jsonl"


def run(name: str, bench: Bench, folder: Path, quick: bool, last: tuple[str, ...] | None = None) -> str | None:
    """Run one benchmark; return what went wrong. `last`: arguments in the place of the file for the pairs."""
    python = ROOT / bench.python
    if not python.exists():
        return f"{bench.python} is missing: `make bench` builds it"
    made = pairs_of(folder, name)
    made.unlink(missing_ok=True)
    last = ("--pairs", str(made)) if last is None else last
    command = [str(python), "-m", *shlex.split(f"{bench.arguments} {bench.quick if quick else ''}"), *last]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **dict(bench.env)}
    print(f"\n== {name}: {shlex.join(command)}", flush=True)
    began = time.monotonic()
    try:
        ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=60 * bench.minutes)
    except subprocess.TimeoutExpired:
        return f"stopped after {bench.minutes:g} minutes"
    print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
    if ended.returncode:
        return f"exit status {ended.returncode}"
    return None if read(made) else "wrote no pairs"


def machine() -> str:
    """Return the machine, its packages and the date in one paragraph."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"{datetime.date.today()}, {os.cpu_count()} cores of {cpu}, load {os.getloadavg()[0]:.1f} before, "
        f"Python {platform.python_version()}, {packages}, commit {commit}. One thread per process."
    )


def main() -> int:
    """Run them, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), default=list(BENCHES), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    head, pairs, wrong = machine(), [], {}
    for name in asked.only:
        problem = run(name, BENCHES[name], asked.folder, asked.quick)
        if problem is None:
            pairs += read(pairs_of(asked.folder, name))
        else:
            wrong[name] = problem
    lines = ["# Beside the peers" + (", quick: no figure counts" if asked.quick else ""), "", head, "", table(pairs)]
    lines += ["", *(f"- not measured: {name}: {problem}" for name, problem in wrong.items())] if wrong else []
    text = "\n".join(lines) + "\n"
    (asked.folder / "table.md").write_text(text, encoding="utf-8")
    print("\n" + text, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
