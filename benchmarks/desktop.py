"""What desktops cost: the first start, a reset, steps per second of several at a time, memory of each, and what agents
that do not look score: `python benchmarks/desktop.py`, `--scores` for the last."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from pathlib import Path

from uirl.environments.desktop.environment import KEYPAD, DesktopEnvironment
from uirl.environments.desktop.tasks import table
from uirl.images import screenshot
from uirl.runtime.walls import tree
from uirl.types import Action, Task

STEPS = [
    Action.of("click", x=400, y=300),
    Action.of("type", text="ab"),
    Action.of("keys", keys="ctrl+a"),
    Action.of("scroll", direction="down"),
]


def proportional_memory(env: DesktopEnvironment) -> float:
    """Return the MB of a desktop's processes, of what they share their share."""
    assert env._desktop is not None
    total = 0
    for process in (inner for one in env._desktop._processes.values() for inner in tree(one.pid)):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def processor_time(environments: list[DesktopEnvironment]) -> float:
    """Return the seconds of processor that this process and the running desktops took, on a busy machine too."""
    ticks = 0
    for env in environments:
        for process in (
            inner for one in (env._desktop._processes.values() if env._desktop else ()) for inner in tree(one.pid)
        ):
            told = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(told[11]) + int(told[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(count: int, seconds: float) -> None:
    """Print what `count` desktops with an editor do in `seconds`."""
    environments = [DesktopEnvironment(tasks=("editor-append",), max_turns=100_000) for _ in range(count)]
    began = time.monotonic()
    environments[0].reset(seed=0)
    print(f"first start {time.monotonic() - began:.2f} s")
    resets, spent = [], []
    for seed in range(5):
        environments[0].close()
        began, before = time.monotonic(), processor_time([])
        environments[0].reset(seed=seed)
        resets.append(time.monotonic() - began)
        spent.append(processor_time(environments[:1]) - before)
    shown = f"median {statistics.median(resets):.2f} s, slowest {max(resets):.2f} s"
    print(f"reset, alone: {shown}, {statistics.median(spent):.2f} s of processor")
    counts, ready, end = [0] * count, threading.Barrier(count + 1), [0.0]

    def play(index: int) -> None:
        environments[index].reset(seed=index)
        ready.wait()
        ready.wait()
        while time.monotonic() < end[0]:
            screenshot(environments[index].step(STEPS[counts[index] % len(STEPS)]).observation.images[0])
            counts[index] += 1
        ready.wait()
        ready.wait()
        environments[index].close()

    threads = [threading.Thread(target=play, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    before = processor_time(environments)
    end[0] = time.monotonic() + seconds
    ready.wait()
    ready.wait()
    spent = [1000 * (processor_time(environments) - before) / sum(counts)]
    memory = [proportional_memory(env) for env in environments]
    ready.wait()
    for thread in threads:
        thread.join()
    rate = sum(counts) / seconds
    print(
        f"{count} desktops of 1280 x 720: {rate:.0f} steps/s in all, {spent[0]:.0f} ms of processor a step, "
        f"{max(memory):.0f} MB each (PSS); load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    )


def score(seeds: int) -> None:
    """Print a row per task: its horizon, and the success of the expert, of one that ends at once, and by chance."""
    print("| task | turns | expert | ends at once | random |\n|---|---|---|---|---|")
    env = DesktopEnvironment()
    for name in table():
        solved = {"expert": 0, "null": 0, "random": 0}
        turns = 0
        for kind in solved:
            for seed in range(seeds):
                env.reset(Task(f"desktop/{name}"), seed)
                rng, result = random.Random(seed), None
                for turn in range(20):
                    action = env.expert_action() if kind == "expert" else _blind(rng, kind, turn)
                    if action is None:
                        break
                    result = env.step(action)
                    if result.done:
                        break
                solved[kind] += result is not None and result.reward == 1.0
                turns = turn + 1 if kind == "expert" else turns
        print(f"| {name} | {turns} | " + " | ".join(f"{n}/{seeds}" for n in solved.values()) + " |", flush=True)
    env.close()


def _blind(rng: random.Random, kind: str, turn: int) -> Action:
    if kind == "null" or turn == 8:
        return Action.of("terminate", status="success")
    if rng.random() < 0.6:
        return Action.of("click", x=rng.randrange(1280), y=rng.randrange(720))
    if rng.random() < 0.5:
        return Action.of("type", text=rng.choice([*sorted(KEYPAD), "a", "apple"]))
    return Action.of("keys", keys=rng.choice(["enter", "delete", "ctrl+a", "ctrl+s", "escape", "tab"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--desktops", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--scores", type=int, default=0, help="instances of each task")
    options = parser.parse_args()
    if options.scores:
        score(options.scores)
    else:
        measure(options.desktops, options.seconds)
