"""What waits for a GPU, in commands of less than ten minutes each that download nothing.

    python benchmarks/gpu.py                     # which parts there are, and what each measures
    python benchmarks/gpu.py memory --out DIR    # one part, on the GPU of this machine
    python benchmarks/gpu.py gap --device cpu --tiny

Models have the sizes of published checkpoints and random weights. Every case runs in a process of its own. The table
goes to stdout, in the form of benchmarks/RESULTS.md, and with `--out` as JSON to `DIR/PART.json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PARTS = {
    "memory": "the plan of `uirl plan` against the largest use of memory",
    "update": "GRPO on screenshots: tokens per second, memory, gap between engine and learner",
    "engines": "prefill and decoding: embedded, HuggingFace, vLLM",
    "attention": "padded rows with SDPA against packed ones with varlen",
    "sleep": "vLLM asleep beside the learner: times and memory",
    "gap": "how far engine and learner are apart in bfloat16",
}
SECONDS = 540.0
PACKAGES = ("torch", "transformers", "peft", "vllm")
Row = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Run what the words ask for; return the exit status: 1 where a case failed, 2 where nothing can run."""
    asked = _parser().parse_args(words)
    if asked.part is None:
        print("\n".join(f"{part:<10} {about}" for part, about in PARTS.items()))
        return 0
    if (problem := _unfit(asked)) is not None:
        print(problem, file=sys.stderr)
        return 2
    if asked.case is not None:
        return _one_case(asked)
    return _all_cases(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="shapes that a CPU takes in seconds")
    parser.add_argument("--out", type=Path, help="folder for PART.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of all cases of the part together")
    parser.add_argument("--case", help="this case alone, in this process")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def _unfit(asked: argparse.Namespace) -> str | None:
    """Why nothing can be measured here; None: it can."""
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        return (
            f"no GPU is here: got torch {torch.__version__}, which sees none; expected an NVIDIA GPU and a build of "
            "torch for CUDA. `--device cpu --tiny` runs every part with tiny shapes"
        )
    if asked.device == "cpu" and not asked.tiny:
        return "--device cpu without --tiny: got models of billions of parameters; expected tiny shapes. Add --tiny"
    return None


def _one_case(asked: argparse.Namespace) -> int:
    """Measure one case here, and write its rows to `--rows` or print them."""
    from benchmarks.gpu_parts.setting import Setting

    part = importlib.import_module(f"benchmarks.gpu_parts.{asked.part}")
    if asked.case not in part.CASES:
        print(f"{asked.part} has no case {asked.case!r}; expected one of {', '.join(part.CASES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        rows = part.measure(asked.case, Setting(asked.device, asked.tiny, asked.folder or Path(scratch)))
    if asked.rows is None:
        print(table(rows))
    else:
        asked.rows.write_text(json.dumps(rows))
    return 0


def _all_cases(asked: argparse.Namespace) -> int:
    """Run every case in a process of its own, within the limit; print the table and write the JSON."""
    part = importlib.import_module(f"benchmarks.gpu_parts.{asked.part}")
    started, rows, failed = time.monotonic(), list[Row](), 0
    with tempfile.TemporaryDirectory() as scratch:
        for case in part.CASES:
            left = asked.seconds - (time.monotonic() - started)
            found, problem = _in_a_process(asked, case, Path(scratch), left)
            failed += problem is not None
            rows += found if problem is None else [{"case": case, "note": problem}]
            print(f"{case}: {problem or 'done'}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    facts = {**_facts(asked), "note": part.NOTE, "seconds": time.monotonic() - started}
    print(section(asked.part, facts, rows))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / f"{asked.part}.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return 1 if failed else 0


def _in_a_process(asked: argparse.Namespace, case: str, scratch: Path, left: float) -> tuple[list[Row], str | None]:
    """Return (rows, None), or ([], what went wrong)."""
    if left <= 0:
        return [], f"left out: the limit of {asked.seconds:g} s was over"
    file, models = scratch / "rows.json", scratch / "models"
    models.mkdir(exist_ok=True)
    command = [sys.executable, __file__, asked.part, "--device", asked.device, "--case", case]
    command += ["--rows", str(file), "--folder", str(models), *(["--tiny"] if asked.tiny else [])]
    try:
        done = subprocess.run(command, timeout=left, capture_output=True, text=True, check=False, env=_environment())
    except subprocess.TimeoutExpired:
        return [], f"stopped: the limit of {asked.seconds:g} s was over"
    if done.returncode:
        sys.stderr.write(done.stderr[-4000:])
        return [], f"failed: {(done.stderr.strip().splitlines() or ['no word of why'])[-1][:200]}"
    rows: list[Row] = json.loads(file.read_text())
    file.unlink()
    return rows, None


def _environment() -> dict[str, str]:
    # HuggingFace's libraries ask nobody
    return {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | os.environ


def _facts(asked: argparse.Namespace) -> Row:
    import torch

    name = torch.cuda.get_device_name() if asked.device == "cuda" else f"CPU ({platform.machine()}), tiny shapes"
    return {
        "part": asked.part,
        "device": name,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {package: found for package in PACKAGES if (found := _version(package)) is not None},
        "command": f"python benchmarks/gpu.py {asked.part}{' --device cpu --tiny' if asked.tiny else ''}",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def section(part: str, facts: Row, rows: Sequence[Row]) -> str:
    """What goes into RESULTS.md: heading, command, device and date, the table, what it means."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    head = (
        f"### {PARTS[part][0].upper()}{PARTS[part][1:]}\n\n`{facts['command']}` ({facts['device']}, {facts['date']}; "
    )
    return f"{head}{versions}; {facts['seconds']:.0f} s)\n\n{table(rows)}\n\n{facts['note']}\n"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with the columns of all rows, in the order in which they first come."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
