"""What `uirl plan` says an update takes, against what it takes: six configurations on a CPU.

Each update runs in a process of its own, on made-up samples of the plan's largest micro-batch, after a small update of
a tiny model of the same family, so that imports and buffers of kernels do not count. Measured are the bytes of live
tensors, counted at every operation, and the growth of the process (VmHWM less what it had before): as the C library
allocates by itself, which keeps what was freed, and with blocks above 64 KiB given back at once
(MALLOC_MMAP_THRESHOLD_=65536).

python -m benchmarks.plan
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from uirl.config import ConfigStore
from uirl.training.plan import PROCESS, plan_of

PICTURE = (224, 224)
TOKENS = 512
SIZES = ["hidden_size=512", "num_layers=8", "num_heads=8", "intermediate_size=1536", "initializer_range=0.02"]
VISION = ["vision_hidden_size=256", "vision_layers=4", "image_size=224", "architecture=qwen2_5_vl"]
RUN = ["inference.max_tokens=64", "inference.max_turns=4", "training.batch_size=8", "training.minibatches=1"]
RUN += ["training.micro_batch_tokens=2048", "training.adv_estimator=grpo", "rollout.max_images=4"]
BF16, LORA, AGAIN = "model.dtype=bfloat16", "model.use_lora=true", "model.gradient_checkpointing=true"
CASES: dict[str, tuple[str, list[str]]] = {
    "language model, all of it, float32": ("uirl/tiny-lm", []),
    "language model, LoRA, bfloat16": ("uirl/tiny-lm", [LORA, BF16]),
    "language model, all of it, bfloat16, checkpointing": ("uirl/tiny-lm", [BF16, AGAIN]),
    "vision model, all of it, float32, checkpointing": ("uirl/tiny-vlm", [AGAIN]),
    "vision model, LoRA, float32": ("uirl/tiny-vlm", [LORA]),
    "vision model, all of it, bfloat16": ("uirl/tiny-vlm", [BF16]),
}


def config_of(case: str, words: int) -> ConfigStore:
    name, changes = CASES[case]
    sizes = [f"model.tiny.{size}" for size in (*SIZES, *(VISION if name == "uirl/tiny-vlm" else []))]
    return ConfigStore().override(
        [f"model.model_name={name}", f"model.tiny.vocab_size={words}", *sizes, *RUN, *changes]
    )


def predicted(config: ConfigStore) -> float:
    plan = plan_of(config, limit=None, gpu=False, picture=PICTURE, tokens=TOKENS)
    moment = plan.moments[0]
    return moment.total - PROCESS - moment.parts.get("pictures kept", 0)  # those of a whole run, and here are few


def measure(case: str, words: int) -> dict[str, float]:
    """Run the update of a case in this process; return bytes."""
    from benchmarks.rehearsal import Ledger, Rehearsal
    from uirl.learner import Policy

    def update(config: ConfigStore) -> int:
        policy, ledger = Policy.from_config(config), Ledger()
        work = plan_of(config, limit=None, gpu=False, picture=PICTURE, tokens=TOKENS).workload
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # what loading took is not asked
        with ledger:
            rehearsal = Rehearsal(config, policy, work, ledger)
            rehearsal.update()
        return ledger.most

    config = config_of(case, words)
    small = config.override(["model.tiny.num_layers=1", "model.tiny.hidden_size=64", "model.tiny.intermediate_size=64"])
    update(small)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    counted = update(config)
    return {"tensors": counted, "process": status("VmHWM") - before}


def status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=600, help="entries of the vocabulary")
    parser.add_argument("--case", help="measure this case in this process")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.words)))
        return
    print("case | plan | tensors | plan / tensors | process | plan / process | plain malloc | plan / plain malloc | s")
    for case in CASES:
        started = time.perf_counter()
        plan = predicted(config_of(case, options.words))
        seconds = time.perf_counter() - started
        command = [sys.executable, "-m", "benchmarks.plan", "--case", case, "--words", str(options.words)]
        found = []
        for variables in ({"MALLOC_MMAP_THRESHOLD_": "65536"}, {}):
            done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
        tensors, tight, plain = found[0]["tensors"], found[0]["process"], found[1]["process"]
        columns = [f"{plan / 2**20:.0f} MiB"]
        for bytes_ in (tensors, tight, plain):
            columns += [f"{bytes_ / 2**20:.0f}", f"{plan / bytes_:.3f}"]
        print(" | ".join([case, *columns, f"{seconds:.1f}"]), flush=True)


if __name__ == "__main__":
    main()
