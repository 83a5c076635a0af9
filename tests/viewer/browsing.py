"""The pages in real Chromium, over the real server on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from uirl.environments.browser.page import Page
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs
from uirl.viewer.server import config_of

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
SECONDS = 30
"""How long a page may take for anything before a test gives up; on an idle machine it takes a tenth of a second."""


@contextlib.contextmanager
def viewer(*paths: Path, token: str | None = None) -> Iterator[str]:
    """Serve the runs under `paths`; yields the address."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = int(door.getsockname()[1])
        app = create_app(Runs([str(path) for path in paths]), Access("127.0.0.1", port, token))
        server = uvicorn.Server(config_of(app))
        thread = threading.Thread(target=server.run, args=([door],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


class Tab:
    """One page of the viewer."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address

    async def goto(self, route: str = "", theme: str = "light") -> None:
        """Open a page by its route ("#/run/..."), anew and in these colours."""
        await self.page.goto(f"{self.address}/static/icon.svg")
        await self.page.evaluate(f"localStorage.setItem('uirl-theme', '{theme}')")
        await self.page.goto(f"{self.address}/{route}")
        await self.until("document.querySelector('main') !== null && !document.querySelector('.busy')")

    async def ask(self, expression: str, timeout: float | None = None) -> Any:
        return await self.page.evaluate(expression, timeout=timeout)

    async def until(self, condition: str) -> None:
        """Wait until the JavaScript `condition` holds; fails with what the page shows where it never does."""
        for _ in range(SECONDS * 20):
            if await self.ask(f"Boolean({condition})"):
                return
            await asyncio.sleep(0.05)
        shown = await self.ask("location.hash + ' ' + document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"never came true: {condition}\nthe page shows: {shown}")

    async def text(self, selector: str) -> str:
        """Return what is written in the first such element."""
        return await self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    async def shows(self, selector: str, words: str) -> None:
        """Wait until the first such element says `words`: parts of a page come one after the other."""
        text = f"document.querySelector({json.dumps(selector)})?.innerText"
        await self.until(f"{text}?.includes({json.dumps(words)})")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.press([key])

    async def click(self, selector: str) -> None:
        """Click into the middle of the first such element once it stays where it is, as a person does."""
        await self.ask(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        before, (x, y, width, height) = None, await self.box(selector)
        while (x, y, width, height) != before:
            await asyncio.sleep(0.1)
            before, (x, y, width, height) = (x, y, width, height), await self.box(selector)
        await self.page.click(x + width / 2, y + height / 2)

    async def box(self, selector: str) -> tuple[float, float, float, float]:
        """Return left, top, width, height of the first such element, in pixels of the page."""
        box = await self.ask(
            f"(({{x, y, width, height}}) => [x, y, width, height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return tuple(box)


OpenTab = Callable[..., Awaitable[Tab]]
"""(width, height) -> a page of that size that reaches nothing but the viewer."""


async def violations(tab: Tab) -> list[Any]:
    """What axe-core finds serious or critical on the page: [rule, impact, element, what to do]."""
    await tab.ask(f"{AXE};1")
    found = await tab.ask(
        "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.map("
        "({id, impact, nodes}) => [id, impact, nodes[0].html.slice(0, 200), nodes[0].failureSummary]))",
        SECONDS,
    )
    return [one for one in found if one[1] in ("serious", "critical")]


def stored(address: str, id: str) -> Any:
    """Return the label of an episode of the run `first`."""
    return httpx.get(f"{address}/api/runs/first/trajectories/{id}", timeout=SECONDS).json()["label"]


async def stores(address: str, id: str, **wanted: Any) -> None:
    """Wait until the label of an episode says this."""
    for _ in range(SECONDS * 10):
        label = await asyncio.to_thread(stored, address, id)
        if label is not None and wanted.items() <= label.items():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"never stored {wanted}: {label}")
