"""`WebEnvironment`: your own web app as a task. Name the page, the goal, what to read of it and what it is worth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import mimetypes
import posixpath
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from uirl.environments.browser.acting import origin_of
from uirl.environments.browser.environment import Judgement, PageEnvironment
from uirl.environments.browser.page import Page
from uirl.environments.browser.tab import WORLD, Threw
from uirl.environments.ui.vocabulary import Answer, Terminate, UIAction
from uirl.errors import ConfigError, EnvironmentFailure, did_you_mean
from uirl.runtime.limits import shown
from uirl.types import Action, Task

_LOG = logging.getLogger(__name__)
ORIGIN = "http://app.localhost"
"""Where a site without an address of its own stands. The browser never asks the network for it."""
State = Mapping[str, Any]
LONGEST_STATE = 1 << 24
"""Characters of a state as JSON: a page decides how long it is."""
MOST_VALUES = 1 << 19
"""Of a state, by its commas: reading so many takes a fifth of a second, in which no other page is heard."""
_TOLD = f"""(async () => {{
  if (location.protocol === 'chrome-error:') return null;
  const told = JSON.stringify(await (%s)) ?? 'null', values = told.split(',', {MOST_VALUES}).length;
  if (told.length <= {LONGEST_STATE} && values < {MOST_VALUES}) return told;
  throw new RangeError('what the page gave cannot be told: ' + told.length + ' characters, ' + values + ' values');
}})()"""
"""JavaScript: a state as JSON; null: the browser's error page is shown."""
_PLACES = """Object.fromEntries(Object.entries(%s).flatMap(([name, selector]) => {
    const box = document.querySelector(selector)?.getBoundingClientRect();
    return box && box.width && box.height ? [[name, [box.x + box.width / 2, box.y + box.height / 2]]] : [];
}))"""
"""Name -> middle of the first element of each selector, in CSS pixels of the window; without those not drawn."""


class Site:
    """Pages that need no server: files by their path, answered by this process. Change them, and a load shows it."""

    def __init__(self, files: Mapping[str, bytes] | None = None, folder: Path | None = None) -> None:
        """Serve `files`: path such as '/' or '/style.css' -> content. Files of `folder` answer for the other paths."""
        self.files = dict(files or {})
        self.folder = None if folder is None else folder.resolve()

    def answer(self, url: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of an address; 404 where there is nothing."""
        path = unquote(urlsplit(url).path) or "/"
        if path in self.files:
            return 200, _content_type(path), self.files[path]
        if self.folder is not None and "\0" not in path:
            with contextlib.suppress(OSError, RuntimeError):  # the second: a link that leads to itself
                found = (self.folder / path.lstrip("/")).resolve()
                found = found / "index.html" if found.is_dir() else found
                # After resolving: neither '..' nor a link leads out of the folder.
                if found.is_relative_to(self.folder):
                    return 200, _content_type(found.name), found.read_bytes()
        return 404, "text/plain", b"not found"


def _content_type(path: str) -> str:
    kind = mimetypes.guess_type(path)[0] or ("text/html" if path.endswith("/") else "application/octet-stream")
    return f"{kind}; charset=utf-8" if kind.startswith("text/") or kind.endswith(("javascript", "json")) else kind


def read_files(files: Mapping[str, bytes | str], owner: str) -> dict[str, bytes]:
    """Return the files by the path that a browser asks for: 'data.js' is '/data.js'.

    Raises ConfigError for a path that no address leads to, for one that is given twice, and for what is no content.
    """
    found: dict[str, bytes] = {}
    for name, content in files.items():
        path = "/" + unquote(name).removeprefix("./").removeprefix("/") if isinstance(name, str) else ""
        if posixpath.normpath(path) != path or ":/" in path or not {"?", "#", "\\"}.isdisjoint(path):
            raise ConfigError(
                f"{owner}: files has {shown(name, 80)}, which no page can ask for; expected a path such as '/data.json'"
            )
        if path in found:
            raise ConfigError(f"{owner}: files has {path!r} twice; leave one of the two out")
        if not isinstance(content, (str, bytes)):
            raise ConfigError(f"{owner}: files[{name!r}] is {shown(content, 80)}; expected text or bytes")
        found[path] = content.encode() if isinstance(content, str) else content
    return found


class WebEnvironment(PageEnvironment):
    """A web app as an environment. A subclass sets one of `html`, `folder` and `url`, a `goal` and a `state`.

    An episode begins with a fresh load of the page in a context without cookies and storage. After every action
    `state` is read; `outcome` says whether the task is over, `reward` what the action was worth. State and scripts of
    yours run in a JavaScript world apart from the page's own: they see the same document, and no script of the page
    can change what they see, other than by changing the document. The network is closed but for the page's own origin
    and `origins`; `html` and `folder` need none.
    """

    html: str = ""
    """The whole page, as text."""
    folder: str | Path = ""
    """A folder with an index.html."""
    url: str = ""
    """The address of a running server."""
    goal: str = ""
    """What the agent is told."""
    state: str = "({})"
    """JavaScript: an expression whose JSON value, an object, is the state that `reward` and `outcome` judge."""
    watch: str = ""
    """JavaScript that runs in every document before the page's own: for what only happens once, such as a form that
    is sent. Its variables are there for `state`."""
    files: Mapping[str, str | bytes] = MappingProxyType({})
    """Content by path ('/data.json' or 'data.json') that answers before the files of `folder` do: what differs between
    episodes."""
    targets: Mapping[str, str] = MappingProxyType({})
    """Name -> CSS selector of what a demonstrator clicks: see `click_on`."""
    trusts_page: ClassVar[bool] = False
    """True: `state` is read among the page's own scripts and sees their variables; they can then say what they like."""
    keeps_page = False
    answer: str | None = None
    """The text of the `answer` action; None: none was given in this episode."""
    claim: str | None = None
    """The status of the `terminate` action; None: none was given."""

    _state: State = MappingProxyType({})
    _places: Mapping[str, tuple[float, float]] = MappingProxyType({})

    @property
    def page_state(self) -> State:
        """The newest `state`, as `outcome` was told it; empty before the first reset."""
        return self._state

    def click_on(self, name: str) -> Action | None:
        """Return a click on the middle of a target, as a policy writes it; None: the target is not in the picture now.

        Raises ConfigError for a name that `targets` does not have.
        """
        if name not in self.targets:
            raise ConfigError(f"{type(self).__name__}.targets has no {name!r}; {did_you_mean(name, self.targets)}")
        place = self._places.get(name)
        return None if place is None else self.act_at(*place, target=name)

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        """Prepare the instance of an episode: set `html`, `goal` and what `reward` needs, by `rng` alone."""

    def record(self, state: State) -> Mapping[str, Any]:
        """Return what the log (`info`) keeps of a state; called with every state, before `reward` and `outcome`."""
        return {"state": dict(state)}

    def outcome(self, state: State) -> bool | None:
        """Return whether the task is solved; False: it has failed for good; None: it is still open."""
        return None

    def reward(self, before: State, now: State) -> float:
        """Return the reward of the last action. Default: 1 for the one that solved the task."""
        return float(self.outcome(now) is True)

    @property
    def mistake_reward(self) -> float:  # type: ignore[override]
        """Reward of a reply that did nothing: what `reward` says where nothing changed, at most 0."""
        self.record(self._state)
        return min(0.0, float(self.reward(self._state, self._state)))

    def reachable(self) -> frozenset[str]:
        """Return `origins` and that of `url`."""
        origin = origin_of(self.url)
        return super().reachable() | ({origin} if origin else set())

    def destinations(self) -> frozenset[str]:
        """Return the reachable origins and that of the page that is served from here."""
        return self.reachable() | ({ORIGIN} if self.html or self.folder else set())

    async def furnish(self, page: Page) -> None:
        self._site = Site()
        await page.serve(ORIGIN, self._site.answer)
        if self.watch:
            watch = {"source": self.watch, "worldName": WORLD}
            await page.first.call("Page.addScriptToEvaluateOnNewDocument", watch)

    def plan(self, task: Task | None, seed: int) -> None:
        self.answer = self.claim = None
        self.prepare(random.Random(seed), task)

    async def begin(self, page: Page, task: Task | None, seed: int) -> str:
        """Load the instance; return the goal."""
        await page.goto(self._address())
        await page.shown.call("Page.resetNavigationHistory")
        self._state, self._places = {}, {}
        return self.goal or (task.goal if task is not None else "")

    async def judge(self, page: Page, action: UIAction | None) -> Judgement:
        """Read the state and judge it."""
        if isinstance(action, Answer):
            self.answer = action.text
        if isinstance(action, Terminate):
            self.claim = action.status
        before = self._state
        unread = await self._read(page, first=action is None)
        info = {**self.record(self._state), **({"state_error": unread} if unread else {})}
        if action is None:
            return Judgement(info=info)
        outcome = self.outcome(self._state)
        return Judgement(self.reward(before, self._state), outcome is not None, outcome is True, info)

    async def _read(self, page: Page, first: bool) -> str | None:
        """Read the state; return a str where it cannot be read after an action: why, and the last one stands.

        Where the page is gone to is the policy's doing, and so is what it made of the page: a link to somewhere out of
        reach, an address without the elements that `state` asks for. Raises EnvironmentFailure where the `first` state
        cannot be read, or where the app itself is gone.
        """
        told, owner = None, type(self).__name__
        try:
            told = await page.evaluate(_TOLD % self.state, apart=not self.trusts_page)
            read = None if told is None else json.loads(told)
            if self.targets:
                self._places = await page.evaluate(_PLACES % json.dumps(dict(self.targets)), apart=True)
            if isinstance(read, dict):
                self._state = read
                return None
            problem = f"{owner}.state gave {shown(read, 80)}; expected an object, e.g. ({{n: 1}})"
            if told is None:
                address = page.first.unreachable
                problem = f"{address} cannot be opened"
                if address is not None and await self._is_down(address):
                    raise EnvironmentFailure(f"the app does not answer: {problem}")
        except (Threw, RecursionError) as error:
            if first:
                raise
            problem = str(error) if isinstance(error, Threw) else "what the page gave cannot be told: it is too deep"
        if first:
            raise EnvironmentFailure(problem)
        _LOG.warning("%s.state could not be read after an action, the last one stands: %s", owner, problem)
        return problem

    async def _is_down(self, address: str) -> bool:
        """Return whether the server of this app takes no connection; one of its addresses alone may well be broken."""
        if not self.url or origin_of(address) != origin_of(self.url):
            return False
        parts = urlsplit(self.url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        try:
            async with asyncio.timeout(5.0):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except OSError:
            return True
        writer.close()
        return False

    def _address(self) -> str:
        """Return the address of the page, with everything in place to answer for it."""
        sources = [name for name in ("html", "folder", "url") if getattr(self, name)]
        if len(sources) != 1:
            raise ConfigError(f"{type(self).__name__} needs one of html, folder and url; got {sources or 'none'}")
        if self.url and self.files:
            raise ConfigError(f"{type(self).__name__}: files go with html or folder; the server at url has its own")
        if self.url:
            if origin_of(self.url) is None:
                raise ConfigError(f"{type(self).__name__}.url must be an http address, got {self.url!r}")
            return self.url
        files = read_files(self.files, type(self).__name__)
        if self.html and "/" in files:
            raise ConfigError(f"{type(self).__name__}: files has '/' beside html, which is that page; leave one out")
        self._site.files = files | ({"/": self.html.encode()} if self.html else {})
        self._site.folder = Path(self.folder).resolve() if self.folder else None
        return f"{ORIGIN}/"
