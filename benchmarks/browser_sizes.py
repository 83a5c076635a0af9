"""Steps per second of large pages by number of sessions: what is lost where more sessions play than there are cores.

    python -m benchmarks.browser_sizes [--sizes 1280x720 1080x2400] [--pages light heavy] [--sessions 1 4 16]
        [--seconds 6] [--rounds 3]

A step is a click, the reading of the state and a picture. `light` is a page of a hundred buttons; `heavy` has another
ten thousand elements and an animation that never ends. Rounds take turns, and the medians of all rounds are compared:
what else the machine does then weighs on all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

from benchmarks.pairs import Pair, pair, report
from uirl.environments.browser.web import WebEnvironment
from uirl.types import Action

BUTTONS = "".join(
    f"<button style='width:150px;height:40px' onclick='this.textContent=1+ +this.textContent'>{n}</button>"
    for n in range(100)
)
LIGHT = f"<body style='margin:0;font:16px Arial'>{BUTTONS}</body>"
HEAVY = f"""<style>@keyframes move {{ to {{ transform: translateX(900px) }} }}
  #box {{ animation: move 2s infinite; width: 50px; height: 50px; background: red }}</style><div id=box></div>
  {LIGHT}{"".join(f"<span>{n} </span>" for n in range(10_000))}"""
PAGES = {"light": LIGHT, "heavy": HEAVY}


class Buttons(WebEnvironment):
    """Something to press."""

    goal = "Press."
    actions = ("click",)
    max_turns = 10**9
    state = "({first: document.querySelector('button').textContent})"


async def rate(envs: list[Buttons], seconds: float) -> float:
    """Steps per second of all together."""
    until, steps = time.perf_counter() + seconds, 0

    async def play(env: Buttons, number: int) -> None:
        nonlocal steps
        while time.perf_counter() < until:
            result = await env.step(Action.of("click", x=75 + 150 * (number % 5), y=70))
            assert result.observation.images, result.observation.text
            steps, number = steps + 1, number + 1

    started = time.perf_counter()
    await asyncio.gather(*(play(env, number) for number, env in enumerate(envs)))
    return steps / (time.perf_counter() - started)


async def measure(page: str, size: tuple[int, int], given: argparse.Namespace) -> Pair:
    """Print the rows of one page and size; return the most sessions beside the best smaller number."""
    Buttons.html = PAGES[page]
    envs = [Buttons(width=size[0], height=size[1]) for _ in range(max(given.sessions))]
    for env in envs:
        await env.reset(seed=1)
    found: dict[int, list[float]] = {sessions: [] for sessions in given.sessions}
    for _ in range(given.rounds):
        for sessions, rates in found.items():
            rates.append(await rate(envs[:sessions], given.seconds))
    for env in envs:
        await env.close()
    few = statistics.median(found[given.sessions[1]]) if len(given.sessions) > 1 else float("nan")
    for sessions, rates in found.items():
        middle = statistics.median(rates)
        print(
            f"| {page} | {size[0]} x {size[1]} | {sessions} | {middle:.1f} | {middle / few:.2f} | "
            f"{os.getloadavg()[0]:.0f} |",
            flush=True,
        )
    most = given.sessions[-1]
    best = max(given.sessions[:-1], key=lambda sessions: statistics.median(found[sessions]), default=most)
    named = {f"{most} sessions": found[most], f"itself, {best} sessions": found[best]}
    work = f"steps on a page of {size[0]} x {size[1]} ({page}), {most} sessions"
    return pair(work, "steps/s", named, *named, "every step returned a picture", more_is_better=True)


async def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1280x720", "1080x2400"])
    parser.add_argument("--pages", nargs="+", choices=list(PAGES), default=list(PAGES))
    parser.add_argument("--sessions", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    given = parser.parse_args()
    pairs = []
    print("| page | size | sessions | steps/s | to 4 sessions | load |\n" + "|---" * 6 + "|")
    for page in given.pages:
        for size in given.sizes:
            width, height = (int(side) for side in size.split("x"))
            pairs.append(await measure(page, (width, height), given))
    report(given.pairs, pairs)


if __name__ == "__main__":
    asyncio.run(main())
