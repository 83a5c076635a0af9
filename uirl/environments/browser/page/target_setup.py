"""What every tab and every frame of a page gets before its first script runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from uirl.environments.browser.chromium.cdp import CdpConnection
from uirl.environments.browser.page.style import COPIES, PERMISSIONS, STYLE
from uirl.environments.browser.page.tab import Tab
from uirl.environments.browser.page.world import WORLD
from uirl.environments.browser.site import Site
from uirl.errors import EnvironmentFailure, EpisodeTimeout

OTHER_PROCESSES = {
    "autoAttach": True,
    "waitForDebuggerOnStart": True,
    "flatten": True,
    "filter": [{"type": "iframe"}],
}


class TargetSetup:
    """Of one page: its size, its scripts, and the site that answers it."""

    def __init__(self, connection: CdpConnection, size: tuple[int, int], listen: Callable[[str], None]) -> None:
        """Set `size`, width and height in CSS pixels. `listen` is called with every session before anything happens."""
        self._connection = connection
        self._size = size
        self._listen = listen
        self._scripts = [STYLE, COPIES]
        self._site: Site | None = None

    async def tab(self, tab: Tab) -> None:
        """Prepare a tab, and let its first script run only then."""
        width, height = self._size
        self._listen(tab.session)
        # The scale is that of the browser: where a page has one of its own, clicks are lost now and then.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
        await asyncio.gather(
            tab.call("Page.setLifecycleEventsEnabled", {"enabled": True}),
            tab.call("Emulation.setDeviceMetricsOverride", metrics),
            *self._of_both(tab.call, tab.session),
        )

    async def frame(self, session: str) -> None:
        """Prepare a frame that runs in a process of its own."""

        def call(method: str, params: Mapping[str, Any] | None = None) -> Awaitable[Any]:
            return self._connection.call(method, params, session=session)

        self._listen(session)
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it is gone again
            await asyncio.gather(*self._of_both(call, session))

    def _of_both(self, call: Callable[..., Awaitable[Any]], session: str) -> list[Awaitable[Any]]:
        site = [] if self._site is None else [self._intercept(session, self._site)]
        return [
            call("Page.enable"),
            call("Page.setInterceptFileChooserDialog", {"enabled": True}),
            call("Target.setAutoAttach", OTHER_PROCESSES),
            *site,
            call("Page.addScriptToEvaluateOnNewDocument", {"source": PERMISSIONS}),
            *(call("Page.addScriptToEvaluateOnNewDocument", _apart(script)) for script in self._scripts),
            call("Runtime.runIfWaitingForDebugger"),
        ]

    async def serve(self, tab: Tab, site: Site) -> None:
        """Answer what the page asks of the site's origin, in this tab and in all later ones."""
        self._site = site
        await self._intercept(tab.session, site)

    async def run_on_load(self, tab: Tab, script: str) -> None:
        """Run a script in our world of every later document, in this tab and in all later ones."""
        self._scripts.append(script)
        await tab.call("Page.addScriptToEvaluateOnNewDocument", _apart(script))

    async def _intercept(self, session: str, site: Site) -> None:
        def fulfil(event: Mapping[str, Any]) -> None:
            answer = site.fulfilment(event["request"]["url"]) | {"requestId": event["requestId"]}
            self._connection.post("Fetch.fulfillRequest", answer, session=session)

        # Later: an error in a handler of events would end the connection for all pages.
        loop = asyncio.get_running_loop()
        self._connection.on(session, "Fetch.requestPaused", lambda event: loop.call_soon(fulfil, event))
        patterns = {"patterns": [{"urlPattern": f"{site.origin}/*"}]}
        await self._connection.call("Fetch.enable", patterns, session=session)


def _apart(script: str) -> dict[str, str]:
    return {"source": script, "worldName": WORLD}
