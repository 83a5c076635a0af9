"""One party of `benchmarks/browser.py`: plays sessions of MiniWoB++ pages with one library, and says how it went.

Runs under the Python in which that library is installed. The protocol, one line of JSON each: it prints {"ready": ...}
when every session has had its first reset, plays when a line comes in, prints what it did, and ends everything when the
next line comes in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_STEPS = 10
WIDTH, HEIGHT = 160, 210


class Session:
    """One environment behind the two calls that are measured."""

    def reset(self, seed: int) -> Any: ...

    def click(self, x: int, y: int) -> bool:
        """Whether the episode is over."""
        raise NotImplementedError

    def close(self) -> None: ...


class BrowserGym(Session):
    """`browsergym-miniwob`; `fast` takes its two waits away, which is as quick as its options make it."""

    def __init__(self, page: str, browser: str, fast: bool) -> None:
        import browsergym.miniwob  # noqa: F401 - registers the tasks
        import gymnasium
        from browsergym.core.action.highlevel import HighLevelActionSet
        from miniwob.selenium_instance import DEFAULT_BASE_URL
        from playwright.sync_api import BrowserType

        os.environ["MINIWOB_URL"] = DEFAULT_BASE_URL
        launch = BrowserType.launch  # its chat window takes no options, so the browser is named here
        BrowserType.launch = lambda self, **given: launch(self, executable_path=browser, **given)
        options: dict[str, Any] = {"slow_mo": 0, "pre_observation_delay": 0.0} if fast else {}
        mapping = HighLevelActionSet(["coord"]).to_python_code
        self._env = gymnasium.make(f"browsergym/miniwob.{page}", action_mapping=mapping, **options)

    def reset(self, seed: int) -> Any:
        self._env.reset(seed=seed)

    def click(self, x: int, y: int) -> bool:
        # the page is drawn 1.5 times as large, and positions are those of the picture
        seen, _, terminated, truncated, _ = self._env.step(f"mouse_click({1.5 * x}, {1.5 * y})")
        assert not seen["last_action_error"], seen["last_action_error"]
        assert seen["screenshot"].any()
        return bool(terminated or truncated)

    def close(self) -> None:
        self._env.close()


class Selenium(Session):
    """The environment that comes with the pages (`miniwob`)."""

    def __init__(self, page: str, browser: str) -> None:
        import gymnasium
        import miniwob
        from miniwob.action import ActionTypes

        os.environ.setdefault("MINIWOB_CHROME_BINARY", browser)
        os.environ.setdefault("MINIWOB_CHROMEDRIVER", "/usr/bin/chromedriver")
        gymnasium.register_envs(miniwob)
        self._env = gymnasium.make(f"miniwob/{page}-v1")
        self._kind = ActionTypes.CLICK_COORDS

    def reset(self, seed: int) -> Any:
        self._env.reset(seed=seed)

    def click(self, x: int, y: int) -> bool:
        import numpy as np

        action = self._env.unwrapped.create_action(self._kind, coords=np.array([x, y], dtype=np.float32))
        seen, _, terminated, truncated, _ = self._env.step(action)
        done = bool(terminated or truncated)
        assert done or seen["screenshot"].any()
        return done

    def close(self) -> None:
        self._env.close()


MAKERS: dict[str, Callable[[str, str], Session]] = {
    "browsergym": lambda page, browser: BrowserGym(page, browser, fast=False),
    "browsergym-fast": lambda page, browser: BrowserGym(page, browser, fast=True),
    "miniwob": Selenium,
}


def places(number: int) -> Iterator[tuple[int, int]]:
    """The clicks of a session: the same for every party."""
    rng = random.Random(number)
    while True:
        yield rng.randrange(WIDTH), rng.randrange(HEIGHT)


def new_record() -> dict[str, list[float]]:
    return {"steps": [], "resets": []}


@contextmanager
def timed(times: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times.append(time.perf_counter() - started)


def play(session: Session, number: int, seconds: float, first: bool) -> dict[str, list[float]]:
    """Episodes of clicks for `seconds`; the first one is already reset."""
    record, clicks, episode = new_record(), places(number), 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if not first:
            episode += 1
            with timed(record["resets"]):
                session.reset(1000 * number + episode)
        first = False
        for _ in range(MAX_STEPS):
            with timed(record["steps"]):
                done = session.click(*next(clicks))
            if done or time.perf_counter() >= until:
                break
    return record


def run_alone(party: str, page: str, browser: str, number: int, seconds: float, pipe: Any) -> None:
    """One session in a process of its own: both libraries block."""
    session = MAKERS[party](page, browser)
    try:
        session.reset(1000 * number)
        pipe.send("ready")
        pipe.recv()
        pipe.send(play(session, number, seconds, first=True))
        pipe.recv()
    finally:
        session.close()


def run_processes(party: str, pages: list[str], browser: str, sessions: int, seconds: float) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(sessions):
        ours, theirs = context.Pipe()
        page = pages[number % len(pages)]
        given = (party, page, browser, number, seconds, theirs)
        process = context.Process(target=run_alone, args=given, daemon=True)  # ends with this one, however it ends
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    wait_for_word({"ready": sessions})
    started = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    records = [pipe.recv() for pipe in pipes]
    wait_for_word({"wall": time.perf_counter() - started, **together(records)})
    for pipe in pipes:
        pipe.send("close")
    for process in processes:
        process.join()


async def run_uirl(pages: list[str], sessions: int, seconds: float) -> None:
    """All sessions in this process, in one browser."""
    from uirl.environments.browser.miniwob import MiniWobEnvironment
    from uirl.types import Action

    envs = [MiniWobEnvironment(task=pages[n % len(pages)], max_turns=MAX_STEPS) for n in range(sessions)]
    await asyncio.gather(*(env.reset(seed=1000 * n) for n, env in enumerate(envs)))
    wait_for_word({"ready": sessions})

    async def play(env: Any, number: int) -> dict[str, list[float]]:
        record, clicks, episode, first = new_record(), places(number), 0, True
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if not first:
                episode += 1
                with timed(record["resets"]):
                    await env.reset(seed=1000 * number + episode)
            done = first = False
            while not done and time.perf_counter() < until:
                x, y = next(clicks)
                with timed(record["steps"]):
                    result = await env.step(Action.of("click", x=x, y=y))
                done = result.done
                assert done or result.observation.images
        return record

    started = time.perf_counter()
    records = await asyncio.gather(*(play(env, number) for number, env in enumerate(envs)))
    wait_for_word({"wall": time.perf_counter() - started, **together(records)})
    for env in envs:
        await env.close()


async def run_playwright(pages: list[str], browser: str, sessions: int, seconds: float) -> None:
    """Playwright as it comes, all sessions in this process, in one browser: a context each."""
    from playwright.async_api import async_playwright

    from uirl.environments.browser.miniwob import BEGIN, STATE, guard, page_url

    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=browser or None, args=["--hide-scrollbars"])
        opened = []
        for n in range(sessions):
            page = await (await chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT})).new_page()
            await page.goto(page_url(pages[n % len(pages)]))
            held = await page.evaluate_handle(guard(pages[n % len(pages)]))
            await held.evaluate(f"(held, seed) => ({BEGIN}).call(held, seed)", 1000 * n)
            opened.append((page, held))
        wait_for_word({"ready": sessions})

        async def play(page: Any, held: Any, number: int) -> dict[str, list[float]]:
            record, clicks, episode, first = new_record(), places(number), 0, True
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                if not first:
                    episode += 1
                    with timed(record["resets"]):
                        await held.evaluate(f"(held, seed) => ({BEGIN}).call(held, seed)", 1000 * number + episode)
                        await page.screenshot()
                first = False
                for _ in range(MAX_STEPS):
                    with timed(record["steps"]):
                        await page.mouse.click(*next(clicks))
                        done = (await held.evaluate(f"held => ({STATE}).call(held)"))["ended"]
                        if not done:
                            await page.screenshot()
                    if done or time.perf_counter() >= until:
                        break
            return record

        started = time.perf_counter()
        records = await asyncio.gather(*(play(*one, number) for number, one in enumerate(opened)))
        wait_for_word({"wall": time.perf_counter() - started, **together(records)})


def together(records: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    return {name: [value for record in records for value in record[name]] for name in new_record()}


def wait_for_word(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)
    sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("party", choices=["uirl", "playwright", *MAKERS])
    parser.add_argument("--pages", nargs="+", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--browser", default="")
    given = parser.parse_args()
    if given.party == "uirl":
        asyncio.run(run_uirl(given.pages, given.sessions, given.seconds))
    elif given.party == "playwright":
        asyncio.run(run_playwright(given.pages, given.browser, given.sessions, given.seconds))
    else:
        run_processes(given.party, given.pages, given.browser, given.sessions, given.seconds)


if __name__ == "__main__":
    main()
