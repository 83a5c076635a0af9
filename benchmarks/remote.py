"""What a client of an environment server pays for an episode, by how many are played at once.

    python -m benchmarks.remote                    # this tree
    python -m benchmarks.remote --beside FOLDER    # and another one (the commit before), by turns

One `uirl serve` of guess_number, in a process of its own, for all; the demonstrator plays, so no model is at work. Each
round is a process: CPU seconds of `--episodes` episodes, the opening of sessions and connections included, imports not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

AT_ONCE = (1, 8, 64)
OPTIONS = ("n=7", "guesses=3", "demonstrator=careless", "carelessness=0.5")


async def cpu_seconds(url: str, at_once: int, episodes: int) -> float:
    """Return the CPU seconds of `episodes` episodes, `at_once` at a time."""
    from uirl.environments import EnvironmentSession, create_environment, play_episode

    environment = create_environment("remote", {"url": url})

    async def play(number: int) -> None:
        session = EnvironmentSession(environment.spawn())
        for i in range(episodes // at_once):
            await play_episode(session, seed=number * 1000 + i)
        await session.close()

    await play(at_once)  # imports
    begun = time.process_time()
    await asyncio.gather(*map(play, range(at_once)))
    return time.process_time() - begun


def server(port: int) -> subprocess.Popen[bytes]:
    """Start the server, and wait until it answers."""
    command = [sys.executable, "-m", "uirl", "serve", "--env", "guess_number", "--port", str(port)]
    command += ["--sessions", "80", *(f"--option={option}" for option in OPTIONS)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process
        except OSError:
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", help="another tree of this project")
    parser.add_argument("--port", type=int, default=8799)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(asyncio.run(cpu_seconds(f"http://127.0.0.1:{asked.port}", asked.one, asked.episodes)))
        return
    here = Path(__file__).resolve().parents[1]
    trees = {"here": here} | ({"beside": Path(asked.beside).resolve()} if asked.beside else {})
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    serving = server(asked.port)
    try:
        for _ in range(asked.rounds):
            for at_once in AT_ONCE:
                for name, tree in trees.items():
                    words = [__file__, "--one", str(at_once), "--episodes", str(asked.episodes)]
                    words += ["--port", str(asked.port)]
                    environment = {**os.environ, "PYTHONPATH": str(tree)}
                    printed = subprocess.check_output([sys.executable, *words], env=environment, cwd=tree)
                    found[at_once, name].append(float(printed))
    finally:
        serving.terminate()
        serving.wait()
    print(f"CPU seconds of {asked.episodes} episodes: median (lowest to highest)")
    for (at_once, name), seconds in found.items():
        spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"{at_once:>3} at once, {name}: {statistics.median(seconds):.2f} {spread}")


if __name__ == "__main__":
    main()
