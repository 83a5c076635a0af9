"""`UIVerifiersEnvironment`: real screens behind servers of ui-verifiers, in either of its two protocols.

The servers judge nothing: they count what was submitted. A step is worth what the count gained: +1 per new right row,
minus `wrong_cost` per wrong submission.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from uirl.environments.options import OptionsLike
from uirl.environments.remote.client.base import GOODBYE, Refused, RemoteEnvironment, Server, understood
from uirl.environments.remote.client.options import UIVerifiersOptions
from uirl.environments.remote.protocol.ui_verifiers import (
    CUT,
    DONE,
    ROOT_M,
    ROOT_S,
    SINCE,
    TEXT,
    CountedSubmissions,
    SessionIds,
    SubmittedRows,
)
from uirl.environments.ui.actions import ActionSpace
from uirl.environments.ui.vocabulary import (
    SCROLL_NOTCHES,
    Click,
    Keys,
    LookAgain,
    Move,
    Scroll,
    Terminate,
    Type,
    UIAction,
    Wait,
)
from uirl.errors import EnvironmentFailure
from uirl.http.wire import whole
from uirl.images import Screenshot
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireError, loads
from uirl.types import Action, Observation, StepResult, Task

MOUSE = ("click", "double_click", "triple_click", "right_click", "move")
KEYBOARD = ("type", "keys", "scroll")
ALWAYS = ("wait", "screenshot", "terminate")
_CLICKS = {"click": "left_click"}
_KEYS = {"meta": "win", "escape": "esc"}
"""Our name of a key -> the original's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a server counted of the session so far."""

    correct: int
    """Different rows (S), or correct submissions (M, which cannot tell a row that was sent twice)."""
    incorrect: int
    rows: frozenset[int]
    """The rows (S); empty: M."""
    counts: dict[str, Any]
    """As the server wrote them."""

    @classmethod
    def read(cls, value: Any) -> Progress:
        """Read the answer of either protocol. Raises WireError."""
        if isinstance(value, dict) and "submitted_row_indices" in value:
            submitted = SubmittedRows.read(value, "progress")
            rows = frozenset(submitted.submitted_row_indices)
            return cls(len(rows), submitted.num_incorrect_submissions, rows, value)
        counted = CountedSubmissions.read(value, "progress")
        return cls(counted.num_correct_submissions, counted.num_incorrect_submissions, frozenset(), value)

    def follows(self, before: Progress) -> bool:
        """Return whether a session that had come to `before` can have come to this: counts only grow."""
        return self.correct >= before.correct and self.incorrect >= before.incorrect and self.rows >= before.rows


class UIVerifiersEnvironment(RemoteEnvironment):
    """One session on a ui-verifiers server: screenshots in, mouse and keyboard out, progress as reward.

    Protocol M makes a session per episode and knows the mouse alone. Protocol S is one session for the life of its
    server: an episode begins where the last one ended, and only one is played there at a time. `uirl serve` and proxies
    that answer S under M's session ids get both: a session per episode, and a keyboard.
    """

    action_format = "json"
    _session: int | None = None
    """Of protocol M; None: there is none, or the server is one session."""
    _shot: Screenshot | None = None
    _progress: Progress | None = None
    _since = ""
    """When `uirl serve` began the session; empty: another server."""

    options_class = UIVerifiersOptions
    options: UIVerifiersOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Asks no server yet. Raises ConfigError for options that do not fit `UIVerifiersOptions`."""
        super().__init__(config, options, **keys)
        options = self.options
        offered = (*MOUSE, *(() if options.protocol == "M" else KEYBOARD), *ALWAYS)
        self.space = ActionSpace(options.width, options.height, offered, options.coordinates)
        self.max_turns = options.max_turns
        self._forget()

    def _max_sessions(self) -> int | None:
        return 1 if self.options.protocol == "S" else None

    def get_prompt_prefix(self) -> str:
        return f"You use a computer. Answer each screenshot with one JSON action:\n{self.space.describe()}"

    def get_state_description(self) -> str:
        return str(self._progress.counts) if self._progress else ""

    # -- an episode ------------------------------------------------------------------------------------------------

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the first screenshot of a new session (protocol S: of the same one). `seed` reaches `uirl serve`
        alone."""
        self._seed, self._turns = seed, 0
        if self._session is not None:
            await self.close()
        if self._server is None:
            await self._lease()
        answer = await self._look()
        self._since = _since(answer)
        picture = self._shot = await whole(answer.content, str(answer.url))
        self._progress = await self._count()
        goal = (task.goal if task else "") or self.options.prompt
        return Observation("\n".join(filter(None, [goal, _words(answer)])), (picture,))

    async def step(self, action: Action) -> StepResult:
        """Return the next screenshot. An act whose outcome is unknown raises, and is never sent again."""
        if self._server is None or self._shot is None or self._progress is None:
            raise EnvironmentFailure("ui_verifiers has no session; reset it first")
        ui_action = self.space.read(action)
        query = ui_action if isinstance(ui_action, str) else self._query(ui_action)
        if isinstance(query, str):
            return await self._end(StepResult(Observation(query, (self._shot,), self._info(self._progress))))
        if isinstance(ui_action, Wait):
            await asyncio.sleep(ui_action.seconds)
        if isinstance(ui_action, Terminate):
            info = {**self._info(self._progress), "claimed": ui_action.status}
            return await self._end(StepResult(Observation("", (self._shot,), info), terminated=True))
        looks = isinstance(ui_action, (Wait, LookAgain))
        answer = await (self._look() if looks else self._get(f"{self._base}/act", query, again=False))
        if _since(answer) != self._since:
            raise EnvironmentFailure(
                f"{self._base} is another session than before: the server was restarted, and counts from 1 again"
            )
        picture = self._shot = await whole(answer.content, str(answer.url))
        before, now = self._progress, await self._count()
        if not now.follows(before):
            raise EnvironmentFailure(
                f"{self._base} counted {shown(before.counts, 120)} before and {shown(now.counts, 120)} now: counts "
                "only grow, so it was restarted, or somebody else began a session there"
            )
        self._progress = now
        info, over = self._info(now), answer.headers.get(DONE)
        if over == "truncated" and answer.headers.get(CUT) == "out_of_turns":
            info = {**info, "out_of_turns": True}
        gained, wasted = now.correct - before.correct, now.incorrect - before.incorrect
        result = StepResult(
            observation=Observation(_words(answer), (picture,), info),
            reward=gained - self.options.wrong_cost * wasted,
            terminated=over == "terminated" or info.get("success") is True,
            truncated=over == "truncated",
        )
        return await self._end(result)

    # -- the session -----------------------------------------------------------------------------------------------

    async def _open(self, server: Server) -> None:
        root = await self.client.send("GET", f"{server.url}/", timeout=self.options.step_timeout, again=True, retries=0)
        self._ours = root.headers.get("server") == "uirl"
        single = root.text.startswith(ROOT_S)
        if not (single or root.text.startswith(ROOT_M)):
            raise EnvironmentFailure(f"{server.url} is no server of ui-verifiers: GET / said {root.text[:80]!r}")
        expected = self.options.protocol
        if expected != "auto" and single != (expected == "S"):
            raise EnvironmentFailure(
                f"{server.url} speaks protocol {'S' if single else 'M'}; expected {expected} (option protocol)"
            )
        if single:
            server.max_sessions = 1
            if server.active > 1:
                raise Refused(f"{server.url} is one session, which another episode plays", 503)
            self._base = server.url
            return
        answer = await self.client.json(
            "POST", f"{server.url}/session", params={"type": self.options.session_type, "n": 1, "seed": self._seed},
            timeout=self.options.reset_timeout, again=False, retries=0,
        )  # fmt: skip
        with understood(server.url):
            ids = SessionIds.read(answer, "answer").session_ids
        if len(ids) != 1:
            raise EnvironmentFailure(f"{server.url} answered {shown(answer, 80)}; expected one session id")
        self._session = ids[0]
        self._base = f"{server.url}/session/{self._session}"
        self._mouse_only = True
        if self.options.protocol == "auto":
            await self._find_keyboard(server)

    async def _find_keyboard(self, server: Server) -> None:
        """Go over to protocol S where the server offers it for this session."""
        base = f"{server.url}/proxy/{self._session}"
        try:
            root = await self.client.send("GET", f"{base}/", timeout=self.options.step_timeout, again=True)
        except Refused as refused:
            if refused.status != 404:
                raise
            return
        if root.text.startswith(ROOT_S):
            self._base, self._mouse_only = base, False

    async def _leave(self, server: Server) -> None:
        if self._session is not None:
            url = f"{server.url}/session/{self._session}"
            await self.client.send("DELETE", url, timeout=GOODBYE, again=False, retries=0)

    def _forget(self) -> None:
        self._session, self._shot, self._progress = None, None, None
        self._base = ""
        self._ours = self._mouse_only = False

    # -- requests --------------------------------------------------------------------------------------------------

    async def _get(self, url: str, query: dict[str, Any], *, again: bool) -> Any:
        limit = self.options.step_timeout + self.options.delay
        with self._asking(url):
            return await self.client.send("GET", url, params=query, timeout=limit, again=again)

    async def _look(self) -> Any:
        if self._mouse_only:
            return await self._get(f"{self._base}/screenshot", {}, again=True)
        return await self._get(f"{self._base}/act", {"action_type": "screenshot"}, again=True)

    async def _count(self) -> Progress:
        answer = await self._get(f"{self._base}/progress", {}, again=True)
        try:
            return Progress.read(loads(answer.content))
        except WireError as error:
            raise EnvironmentFailure(
                f"{self._base}/progress answered {answer.text[:300]!r}: {error}; expected counts of submissions"
            ) from None

    def _info(self, progress: Progress) -> dict[str, Any]:
        """Return what the log and a verifier may know."""
        info = dict(progress.counts)
        return info if self.options.rows is None else {**info, "success": progress.correct >= self.options.rows}

    def _query(self, action: UIAction) -> dict[str, Any] | str:
        """Return the action as parameters of `/act`; a str where this server cannot do it: why, in words for the
        policy."""
        if self._mouse_only and isinstance(action, (Type, Keys, Scroll)):
            return f"this screen takes no {action.name}: there is only a mouse"
        if isinstance(action, (Wait, LookAgain, Terminate)):
            return {}
        words = self._words_of(action)
        return words if isinstance(words, str) else {**words, "delay": self.options.delay}

    def _words_of(self, action: UIAction) -> dict[str, Any] | str:
        if isinstance(action, (Click, Move)):
            problem = self._trap(action.x, action.y)
            name = "mouse_move" if isinstance(action, Move) else _CLICKS.get(action.name, action.name)
            return problem or {"action_type": name, "x": action.x, "y": action.y}
        if isinstance(action, Type):
            if not self._ours and not action.text.isascii():
                # the original drops other characters without a word
                return "only plain ASCII characters can be typed here"
            return {"action_type": "type", "text": action.text}
        if isinstance(action, Keys):
            if "+" in action.keys:
                return "the key + cannot be pressed here; type it"
            names = action.keys if self._ours else tuple(_KEYS.get(key, key) for key in action.keys)
            return {"action_type": "keys", "keys": "+".join(names)}
        assert isinstance(action, Scroll)  # all that the action space still offers
        if action.direction not in ("up", "down") or action.amount != SCROLL_NOTCHES:
            return f"this screen scrolls up or down, {SCROLL_NOTCHES} notches at a time; leave amount out"
        where = {} if action.x is None else {"x": action.x, "y": action.y}
        trapped = self._trap(action.x, action.y) if action.x is not None and action.y is not None else ""
        return trapped or {"action_type": "scroll", "direction": action.direction, **where}

    def _trap(self, x: int, y: int) -> str:
        """Return why a place cannot be used: a pointer in a corner ends a session of the original for good."""
        corner = x in (0, self.space.width - 1) and y in (0, self.space.height - 1)
        return "" if self._ours or not corner else "the outermost pixel of a corner cannot be used; aim a bit inside"


def _since(answer: Any) -> str:
    """Return when the session began that gave a picture; empty: the original does not say."""
    return str(answer.headers.get(SINCE, ""))


def _words(answer: Any) -> str:
    """Return the text of an observation, which `uirl serve` adds to the picture."""
    return unquote(answer.headers.get(TEXT, ""))
