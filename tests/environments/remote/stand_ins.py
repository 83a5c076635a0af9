"""Stand-ins for the original servers of ui-verifiers, protocols S and M, with the errors they are known for.

S, after its latest version: 422 in FastAPI's form for unknown enum members and for coordinates that are no numbers; 500
'Internal Server Error' as text for an action without what it needs; unknown keys, negative delays and directions are
taken without a word; and the pointer trap: once the pointer stands in a corner of the screen, that call and every later
action but `screenshot` answer 500 for ever.

M, after its version 0.1.0: ids count from 1 and are never used again; an ended session answers 404 to everything but
`GET /session/{id}`; a mouse and no keyboard; no limit, no idle time-out. Neither asks who calls.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import PlainTextResponse

from tests.environments.remote.form import HEIGHT, WIDTH, Form
from uirl.environments.remote.protocol.ui_verifiers import Mouse, MouseAndKeyboard

CORNERS = {(x, y) for x in (0, WIDTH - 1) for y in (0, HEIGHT - 1)}


class SessionType(StrEnum):
    simple_data_entry = "simple_data_entry"


def _act(form: Form, name: str, given: dict[str, Any]) -> None:
    """One action; raises KeyError for what is missing, as the original does."""
    present = {key: value for key, value in given.items() if value is not None}
    if name == "type":
        form.type(present["text"])
    elif name == "keys":
        form.press(present["keys"])
    elif name == "scroll":
        present["direction"]
        if "x" in present and "y" in present:
            form.move(present["x"], present["y"])
    elif name != "screenshot":
        form.move(present["x"], present["y"])
        if name == "right_click":
            form.click("right")
        elif name != "mouse_move":
            form.click(count={"left_click": 1, "double_click": 2, "triple_click": 3}[name])


def _png(form: Form) -> Response:
    return Response(form.picture(), media_type="image/png")


def _crash() -> Response:
    return PlainTextResponse("Internal Server Error", 500)


def single_session() -> FastAPI:
    """Protocol S; the screen is `app.state.form`, the actions that ran `app.state.told`."""
    app = FastAPI()
    app.state.form, app.state.told = Form(), []
    started = datetime.now()

    @app.get("/")
    async def root() -> Response:
        lines = (
            "UI Verifiers Session Server",
            "Session Type: Simple Data Entry",
            f"Start time: {started}",
            f"Duration: {datetime.now() - started}",
        )
        return PlainTextResponse("\n".join(lines))

    @app.get("/progress")
    async def progress() -> dict[str, Any]:
        form = app.state.form
        return {"submitted_row_indices": form.submitted, "num_incorrect_submissions": form.wrong}

    @app.get("/act")
    async def act(
        action_type: MouseAndKeyboard,
        x: int | None = None,
        y: int | None = None,
        text: str | None = None,
        keys: str | None = None,
        direction: str | None = None,
        delay: float = 1.0,
    ) -> Response:
        form = app.state.form
        if action_type == "screenshot":
            return _png(form)
        if form.pointer in CORNERS:
            return _crash()
        try:
            _act(form, str(action_type), {"x": x, "y": y, "text": text, "keys": keys, "direction": direction})
        except KeyError:
            return _crash()
        app.state.told.append(str(action_type))
        if form.pointer in CORNERS:
            return _crash()
        await asyncio.sleep(max(delay, 0.0))
        return _png(form)

    return app


class Desk:
    """One session of protocol M."""

    def __init__(self, id: int) -> None:
        self.id, self.form, self.actions = id, Form(), 0
        self.started = datetime.now(UTC)
        self.stopped: datetime | None = None

    def info(self) -> dict[str, Any]:
        stop = self.stopped.isoformat() if self.stopped else None
        start = self.started.isoformat()
        return {
            "id": self.id,
            "start_time": start,
            "display": 9 + self.id,
            "action_count": self.actions,
            "stop_time": stop,
        }


def many_sessions() -> FastAPI:
    """Protocol M; its sessions are `app.state.desks`, those that run `app.state.running()`."""
    app = FastAPI()
    desks: dict[int, Desk] = {}
    app.state.desks = desks
    app.state.running = lambda: [desk for desk in list(desks.values()) if desk.stopped is None]

    def running(id: int) -> Desk:
        desk = desks.get(id)
        if desk is None or desk.stopped:
            raise HTTPException(404, "Session not found")
        return desk

    @app.get("/")
    async def root() -> Response:
        return PlainTextResponse("UI Verifiers Server v0.1.0")

    @app.get("/status")
    async def status() -> dict[str, Any]:
        return {str(desk.id): desk.info() for desk in desks.values()}

    @app.post("/session")
    async def create(type: SessionType = SessionType.simple_data_entry, n: int = 1) -> dict[str, Any]:
        made = [Desk(len(desks) + 1 + i) for i in range(n)]
        desks.update({desk.id: desk for desk in made})
        return {"session_ids": [desk.id for desk in made]}

    @app.get("/session/{id}")
    async def look(id: int) -> dict[str, Any]:
        if id not in desks:
            raise HTTPException(404, "Session not found")
        return desks[id].info()

    @app.get("/session/{id}/act")
    async def act(
        id: int, action_type: Mouse, x: int | None = None, y: int | None = None, delay: float = 1.0
    ) -> Response:
        desk = running(id)
        try:
            _act(desk.form, str(action_type), {"x": x, "y": y})
        except KeyError:
            return _crash()
        desk.actions += 1
        await asyncio.sleep(max(delay, 0.0))
        return _png(desk.form)

    @app.get("/session/{id}/screenshot")
    async def screenshot(id: int) -> Response:
        return _png(running(id).form)

    @app.get("/session/{id}/progress")
    async def progress(id: int) -> dict[str, Any]:
        form = running(id).form
        return {"num_correct_submissions": len(form.submitted), "num_incorrect_submissions": form.wrong}

    @app.delete("/session/{id}")
    async def delete(id: int) -> dict[str, Any]:
        running(id).stopped = datetime.now(UTC)
        return {"deleted": id}

    for method in ("PUT", "GET", "DELETE"):
        app.add_api_route("/vnc", lambda session=None: None, methods=[method])
    return app
