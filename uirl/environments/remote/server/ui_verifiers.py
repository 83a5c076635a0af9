"""Protocols M and S of ui-verifiers over any environment that shows pictures.

M: one server, many sessions, made by `POST /session`. S: one process, one session (`--single`). Where M is served,
every session also answers S under `/proxy/{id}/`, as behind the original's Kubernetes proxy: M itself has no keyboard.

Two quirks of the original are not copied: its pointer trap in the corners of the screen, and its 500 for an action
without its coordinates (here a 422). `delay` is accepted and not slept: an environment answers when it is ready.
Beyond the original, `POST /session` takes a `seed`, a session that would be too many is refused with 503, and an answer
carries what its picture cannot say: the words of the observation (`X-Uirl-Text`, percent-encoded), whether the episode
is over (`X-Uirl-Done`), and since when the session runs (`X-Uirl-Since`): a server that was restarted counts its
sessions from 1 again. The screen of an episode that is over stands still.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_fixed

from uirl.environments.remote.protocol.ui_verifiers import (
    CUT,
    DONE,
    ROOT_M,
    ROOT_S,
    SINCE,
    TEXT,
    Mouse,
    MouseAndKeyboard,
)
from uirl.environments.remote.server.native import may_grade, require_grader, require_owner
from uirl.environments.remote.server.sessions import Full, Lease, Sessions
from uirl.errors import EnvironmentFailure, RolloutFailure
from uirl.images import Screenshot, media_type, screenshot
from uirl.types import Action

VERSION = "0.1.0"
"""The version of the original whose protocol M this is."""
TRIES, PAUSE = 3, 1.0
"""How often a session that does not start is tried, and the seconds between."""
REMEMBERED = 1000
"""Ended sessions that `/status` still shows."""
LONGEST_WORDS = 2000
"""Characters of an observation's text that travel in a header."""


_NAMES = {"mouse_move": "move", "left_click": "click"}


class UIVerifiers:
    """The handlers of both protocols over one set of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._numbered: dict[int, Lease] = {}
        """The sessions of these protocols by their numbers, and those that ended last."""
        name = sessions.settings.environment
        self.types = {"simple_data_entry", name}
        self.title = "Simple Data Entry" if "data_entry" in name else name.replace("_", " ").title()

    async def start_single(self) -> None:
        """Open the one session of protocol S, before the port answers."""
        await self._start(self._open(graders=True), None)

    def router(self) -> APIRouter:
        """Return the routes: those of S where the process is one session, else those of M and of its proxy."""
        router = APIRouter()
        if self.sessions.settings.single:
            router.add_api_route("/", self.root_s, methods=["GET"])
            router.add_api_route("/act", self.act_s, methods=["GET"])
            router.add_api_route("/progress", self.progress_s, methods=["GET"])
            return router
        for method, path, handler in (
            ("GET", "/", self.root_m),
            ("GET", "/status", self.status),
            ("POST", "/session", self.create),
            ("GET", "/session/{id}", self.look),
            ("GET", "/session/{id}/act", self.act_m),
            ("GET", "/session/{id}/screenshot", self.screenshot),
            ("GET", "/session/{id}/progress", self.progress_m),
            ("DELETE", "/session/{id}", self.delete),
            ("PUT", "/vnc", self.vnc),
            ("GET", "/vnc", self.vnc),
            ("DELETE", "/vnc", self.vnc),
            ("GET", "/proxy/{id}/", self.root_s),
            ("GET", "/proxy/{id}/act", self.act_s),
            ("GET", "/proxy/{id}/progress", self.progress_s),
        ):
            router.add_api_route(path, handler, methods=[method])
        return router

    # -- M -------------------------------------------------------------------------------------------------------

    async def root_m(self) -> Response:
        return PlainTextResponse(f"{ROOT_M} v{VERSION}")

    async def status(self) -> dict[str, Any]:
        return {str(number): _info(lease) for number, lease in self._numbered.items()}

    async def create(
        self, request: Request, type: str = "simple_data_entry", n: int = Query(default=1), seed: int | None = None
    ) -> dict[str, list[int]]:
        if type not in self.types:
            expected = " or ".join(repr(name) for name in sorted(self.types))
            raise _unprocessable("enum", "type", f"Input should be {expected}", type)
        if n > self.sessions.settings.sessions - len(self.sessions.active):
            raise Full(len(self.sessions.active), self.sessions.settings.sessions)
        opened: list[Lease] = []
        try:
            for _ in range(n):  # all at once: another request may come while the first of them starts
                opened.append(self._open(graders=may_grade(request)))
            for i, lease in enumerate(opened):
                await self._start(lease, None if seed is None else seed + i)
        except BaseException:  # nobody is told the ids of those that did start
            for lease in opened:
                await self.sessions.close(lease, "reset: another session of the request failed")
            raise
        return {"session_ids": [lease.number for lease in opened]}

    async def look(self, id: int) -> dict[str, Any]:
        if id not in self._numbered:
            raise _not_found()
        return _info(self._numbered[id])

    async def act_m(
        self, id: int, action_type: Mouse, x: int | None = None, y: int | None = None, delay: float = 1.0
    ) -> Response:
        return await self._act(self._running(id), str(action_type), {"x": x, "y": y})

    async def screenshot(self, id: int) -> Response:
        lease = self._running(id)
        self.sessions.touch(lease)
        return _picture(lease)

    async def progress_m(self, id: int, request: Request) -> dict[str, int]:
        require_grader(request)
        progress = self._running(id).progress
        return {"num_correct_submissions": len(progress.rows), "num_incorrect_submissions": progress.wrong}

    async def delete(self, id: int, request: Request) -> dict[str, int]:
        lease = self._running(id)
        require_owner(request, lease.graders)
        await self.sessions.close(lease, "client")
        return {"deleted": id}

    async def vnc(self) -> None:
        return None

    # -- S -------------------------------------------------------------------------------------------------------

    async def root_s(self, id: str | None = None) -> Response:
        start = self._proxied(id).opened
        lines = [
            ROOT_S,
            f"Session Type: {self.title}",
            f"Start time: {start.replace(tzinfo=None)}",
            f"Duration: {datetime.now(UTC) - start}",
        ]
        return PlainTextResponse("\n".join(lines))

    async def act_s(
        self,
        action_type: MouseAndKeyboard,
        id: str | None = None,
        x: int | None = None,
        y: int | None = None,
        text: str | None = None,
        keys: str | None = None,
        direction: str | None = None,
        delay: float = 1.0,
    ) -> Response:
        parameters = {"x": x, "y": y, "text": text, "keys": keys, "direction": direction}
        return await self._act(self._proxied(id), str(action_type), parameters)

    async def progress_s(self, request: Request, id: str | None = None) -> dict[str, Any]:
        require_grader(request)
        progress = self._proxied(id).progress
        return {"submitted_row_indices": progress.rows, "num_incorrect_submissions": progress.wrong}

    # -- both ----------------------------------------------------------------------------------------------------

    def _open(self, *, graders: bool) -> Lease:
        """Return a new session, which nobody sees before it is started."""
        single = self.sessions.settings.single
        return self.sessions.open("ui-verifiers", graders=graders, leased=False, idles=not single)

    async def _start(self, lease: Lease, seed: int | None) -> None:
        """Reset a session; one that does not start is tried again, in a fresh instance."""
        first = self.sessions.settings.seed
        if seed is None and first is not None:
            seed = first + lease.number - 1
        try:
            again = retry_if_exception(lambda error: isinstance(error, RolloutFailure))
            attempts = AsyncRetrying(retry=again, stop=stop_after_attempt(TRIES), wait=wait_fixed(PAUSE), reraise=True)
            await attempts(self.sessions.reset, lease, None, seed)
            _picture(lease)  # an environment without pictures is told at once
        except BaseException:  # nobody is told its id
            await self.sessions.close(lease, "reset: it failed")
            raise
        self._numbered[lease.number] = lease
        ended = [number for number, old in self._numbered.items() if old.ended]
        for number in ended[: max(0, len(ended) - REMEMBERED)]:
            del self._numbered[number]

    def _running(self, id: int) -> Lease:
        lease = self._numbered.get(id)
        if lease is None or lease.ended is not None:
            raise _not_found()
        return self.sessions.find(lease.id)

    def _proxied(self, id: str | None) -> Lease:
        """Return the session of a path, or the only one there is."""
        if id is None or self.sessions.settings.single:
            lease = next(iter(self._numbered.values()))
        else:
            numbered = self._numbered.get(int(id)) if id.isdecimal() and len(id) < 18 else None
            if numbered is None or numbered.ended is not None:
                raise PodNotFound
            lease = numbered
        return self.sessions.find(lease.id)

    async def _act(self, lease: Lease, name: str, parameters: dict[str, Any]) -> Response:
        call = _call(name, parameters)
        lease.acts += 1
        self.sessions.touch(lease)
        if call is not None and not lease.done:
            await self.sessions.step(lease, call)
        return _picture(lease)


class PodNotFound(Exception):
    """What the original's proxy says of a session it does not know."""


def _info(lease: Lease) -> dict[str, Any]:
    """Return a session as protocol M shows it."""
    return {
        "id": lease.number,
        "start_time": lease.opened.isoformat(),
        "display": 9 + lease.number,  # the original counts X displays from :10
        "action_count": lease.acts,
        "stop_time": lease.ended.isoformat() if lease.ended else None,
    }


def _call(name: str, parameters: dict[str, Any]) -> Action | None:
    """Return the action in the vocabulary of user interfaces; None: only look. Raises a 422 for a missing argument."""
    if name == "screenshot":
        return None
    needed = {"type": ("text",), "keys": ("keys",), "scroll": ("direction",)}.get(name, ("x", "y"))
    missing = [argument for argument in needed if parameters.get(argument) is None]
    if missing:
        raise _unprocessable("missing", missing[0], "Field required", None)
    arguments = {argument: parameters[argument] for argument in needed}
    if name == "scroll":
        arguments["direction"] = "up" if parameters["direction"] == "up" else "down"
        arguments |= {axis: parameters[axis] for axis in ("x", "y") if parameters[axis] is not None}
    return Action.of(_NAMES.get(name, name), **arguments)


def _picture(lease: Lease) -> Response:
    observation = lease.observation
    if observation is None or lease.picture is None:
        raise EnvironmentFailure(
            "this environment shows no picture, and the protocol of ui-verifiers has nothing else to show; use the "
            "native API or OpenEnv"
        )
    headers = {TEXT: quote(observation.text[:LONGEST_WORDS], errors="replace")} if observation.text else {}
    headers[SINCE] = lease.opened.isoformat()
    if lease.done:
        headers[DONE] = "terminated" if lease.terminated else "truncated"
        if observation.info.get("out_of_turns") is True:
            headers[CUT] = "out_of_turns"
    return Response(as_png(lease.picture), media_type="image/png", headers=headers)


def as_png(image: Screenshot) -> bytes:
    """Return the picture as PNG; the same bytes where it is a plain one. Raises EnvironmentFailure for what is no
    picture."""
    try:
        data = image.plain()
        return data if media_type(data) == "image/png" else screenshot(image.open()).data
    except ValueError as error:
        raise EnvironmentFailure(f"the environment's picture cannot be used: {error}") from error


def _not_found() -> HTTPException:
    return HTTPException(404, "Session not found")


def _unprocessable(type: str, field: str, message: str, value: Any) -> RequestValidationError:
    return RequestValidationError([{"type": type, "loc": ("query", field), "msg": message, "input": value}])
