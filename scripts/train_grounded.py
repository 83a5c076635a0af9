"""Make the weights of a tiny vision-language model that sees, from synthetic screens: less than an hour on two cores.

    python scripts/train_grounded.py --out runs/grounded
    uirl train configs/miniwob.yaml model.local_path=runs/grounded

The folder is one that `model.local_path` and HuggingFace read. `card.json` in it says how the weights were made
(command, recipe, versions, seconds), their hash, and how many questions about held-out screens they answer rightly, by
kind. The number of updates, not the clock, decides when it ends: on one machine the same command gives the same
weights, as far as its matrix products repeat.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from grounding.model import build_model
from grounding.training import Recipe, Trainer, accuracy, train
from torch import distributed, multiprocessing

from uirl.inference.models.loading import LoadedModel, wrap_model
from uirl.runtime.folders import whole_folder

PACKAGES = ("torch", "transformers", "pillow", "matplotlib", "numpy")


def main() -> None:
    """Train, measure, write."""
    args = arguments()
    recipe = replace(Recipe(), looks=args.looks, steps=args.steps, seed=args.seed, bfloat16=not args.float32)
    for name in ("looks", "steps", "processes", "screens"):
        if getattr(args, name) < 1:
            sys.exit(f"--{name} {getattr(args, name)}: expected at least 1")
    if recipe.pictures % args.processes:
        sys.exit(
            f"--processes {args.processes} does not divide the {recipe.pictures} pictures of an update; use 1 or 2"
        )
    with tempfile.TemporaryDirectory() as meeting:
        work = (recipe, args, f"file://{meeting}/here", shlex.join(["python", *sys.argv]))
        if args.processes == 1:
            one_process(0, *work)
        else:
            multiprocessing.spawn(one_process, work, nprocs=args.processes)


def arguments() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/grounded"), help="folder that is written")
    parser.add_argument("--looks", type=int, default=Recipe().looks, help="updates of the vision tower alone")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="updates of the whole model after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="one core each")
    parser.add_argument("--float32", action="store_true", help="for processors without bfloat16 products")
    parser.add_argument("--screens", type=int, default=400, help="held-out screens on which it is measured")
    return parser.parse_args()


def one_process(rank: int, recipe: Recipe, args: argparse.Namespace, meeting: str, command: str) -> None:
    """Train as one of several processes; the first reports, measures and writes."""
    torch.set_num_threads(1)
    if args.processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=args.processes)
    loaded = wrap_model(*build_model(seed=recipe.seed), name="grounded")
    started = time.monotonic()
    train(
        Trainer(loaded, recipe, rank=rank, processes=args.processes),
        (lambda line: print(line, flush=True)) if rank == 0 else (lambda line: None),
    )
    seconds = time.monotonic() - started
    if args.processes > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    if rank:
        return
    loaded.model.to(torch.float16).to(torch.float32)  # measured as they are written
    kinds = accuracy(loaded, recipe.seed, batches=-(-args.screens // 20), size=min(20, args.screens))
    made = {"command": command, "processes": args.processes, "seconds": round(seconds), "recipe": asdict(recipe)}
    print(json.dumps(write(args.out, loaded, made, kinds), indent=2))


def write(folder: Path, loaded: LoadedModel, made: dict[str, Any], kinds: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Write the model in half precision with its card, and return the card."""
    loaded.model.to(torch.float16)
    right, of = (sum(counts[i] for counts in kinds.values()) for i in (0, 1))
    with whole_folder(folder) as work:
        loaded.save(work)
        card = {
            **made,
            "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "parameters": sum(p.numel() for p in loaded.model.parameters()),
            "sha256": hashlib.sha256((work / "model.safetensors").read_bytes()).hexdigest(),
            "held_out": {
                "all": {"right": right, "of": of, "share": round(right / of, 3)},
                **{kind: {"right": n, "of": m, "share": round(n / m, 3)} for kind, (n, m) in kinds.items()},
            },
        }
        (work / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    return card


if __name__ == "__main__":
    main()
