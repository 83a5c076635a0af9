"""One page of the browser: go somewhere, look, click. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Literal

from uirl.environments.browser.cdp import CdpConnection
from uirl.errors import EnvironmentFailure

LOAD_SECONDS = 20.0


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    def __init__(self, connection: CdpConnection, context: str, target: str, session: str) -> None:
        self._broken: str | None = None
        self._connection = connection
        self._context = context
        self._target = target
        self._session = session
        self._closed = False
        self._loads: dict[str, asyncio.Event] = {}
        self._answers: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, connection: CdpConnection, width: int, height: int) -> Page:
        """An empty page of `width` x `height` pixels in a new context."""
        # disposeOnDetach: where this process dies without a word, the browser frees the context by itself.
        made = await connection.call("Target.createBrowserContext", {"disposeOnDetach": True})
        context = made["browserContextId"]
        try:
            where = {"url": "about:blank", "browserContextId": context, "width": width, "height": height}
            target = (await connection.call("Target.createTarget", where))["targetId"]
            attached = await connection.call("Target.attachToTarget", {"targetId": target, "flatten": True})
            page = cls(connection, context, target, attached["sessionId"])
            await page._prepare(width, height)
        except BaseException:
            if connection.lost is None:
                await connection.call("Target.disposeBrowserContext", {"browserContextId": context})
            raise
        return page

    async def _prepare(self, width: int, height: int) -> None:
        listen, session = self._connection.on, self._session
        listen(session, "Page.lifecycleEvent", self._on_lifecycle)
        listen(session, "Page.javascriptDialogOpening", self._on_dialog)
        listen(session, "Inspector.targetCrashed", lambda _: self._on_crash("the page crashed"))
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await asyncio.gather(
            self._call("Page.enable"),
            self._call("Inspector.enable"),
            self._call("Page.setLifecycleEventsEnabled", {"enabled": True}),
            self._call("Emulation.setDeviceMetricsOverride", metrics),
        )

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self._broken or self._connection.lost

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Returns when `url` is loaded (its load event). Raises EnvironmentFailure where it cannot be."""
        self._loads.clear()
        try:
            async with asyncio.timeout(timeout):
                answer = await self._call("Page.navigate", {"url": url}, timeout=timeout)
                if answer.get("errorText"):
                    raise EnvironmentFailure(f"{url} cannot be opened: {answer['errorText']}")
                loader = answer.get("loaderId")  # absent where only the fragment of the address changed
                if loader:
                    await self._loaded(loader).wait()
                    self._check()
        except TimeoutError as error:
            self._broken = f"{url} was not loaded within {timeout} s"
            raise EnvironmentFailure(self._broken) from error

    async def evaluate(self, expression: str, *, timeout: float | None = None) -> Any:
        """The JSON value of a JavaScript expression; a promise is awaited.

        Raises EnvironmentFailure where the expression throws.
        """
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self._call("Runtime.evaluate", params, timeout=timeout)
        thrown = answer.get("exceptionDetails")
        if thrown is not None:
            what = thrown.get("exception", {}).get("description") or thrown.get("text", "")
            raise EnvironmentFailure(f"the page threw {what[:400]!r} at {expression[:120]!r}")
        return answer["result"].get("value")

    async def move(self, x: float, y: float) -> None:
        """Moves the pointer to x, y (page pixels from the top left)."""
        await self._mouse("mouseMoved", x, y, buttons=0)

    async def click(self, x: float, y: float) -> None:
        """Moves to x, y (page pixels), presses and releases the left button; returns when the page handled it."""
        # All three are sent before the first answer: one round trip, and the browser keeps their order.
        await asyncio.gather(
            self._mouse("mouseMoved", x, y, buttons=0),
            self._mouse("mousePressed", x, y, button="left", clickCount=1, buttons=1),
            self._mouse("mouseReleased", x, y, button="left", clickCount=1, buttons=0),
        )

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """The visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        params: dict[str, Any] = {"format": format, "optimizeForSpeed": True}
        if format == "jpeg":
            params["quality"] = quality
        return base64.b64decode((await self._call("Page.captureScreenshot", params))["data"])

    async def close(self) -> None:
        """Frees the page and its context, also where the page hangs or the browser is gone. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._broken = self._broken or "the page was closed"
        self._connection.forget(self._session)
        if self._connection.lost is None:
            await self._connection.call("Target.disposeBrowserContext", {"browserContextId": self._context})

    async def _mouse(self, type: str, x: float, y: float, **more: Any) -> None:
        await self._call("Input.dispatchMouseEvent", {"type": type, "x": x, "y": y, **more})

    async def _call(self, method: str, params: Mapping[str, Any] | None = None, timeout: float | None = None) -> Any:
        self._check()
        try:
            return await self._connection.call(method, params, session=self._session, timeout=timeout)
        except BaseException as error:
            # Cancelled, timed out or refused: what the page did meanwhile is unknown.
            self._broken = self._broken or f"{method} did not finish ({type(error).__name__})"
            raise

    def _check(self) -> None:
        if self.broken is not None:
            raise EnvironmentFailure(f"this page is broken, open another: {self.broken}")

    def _loaded(self, loader: str) -> asyncio.Event:
        return self._loads.setdefault(loader, asyncio.Event())

    def _on_lifecycle(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "load":
            self._loaded(event["loaderId"]).set()

    def _on_crash(self, reason: str) -> None:
        self._broken = reason
        self._connection.fail_session(self._session, reason)
        for event in self._loads.values():
            event.set()

    def _on_dialog(self, event: Mapping[str, Any]) -> None:
        """Accepts alerts and questions: a dialog stops the page, and nobody else would answer it."""
        answer = self._call("Page.handleJavaScriptDialog", {"accept": True})
        task = asyncio.create_task(answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
