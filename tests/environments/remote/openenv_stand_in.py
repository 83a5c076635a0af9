"""A stand-in for a server of openenv-core 0.3.0, with an environment of flat actions and pictures in several shapes.

What it repeats of the original: an error right after accept where it is full, then a close with 1000; validation
errors in pydantic's form; exceptions as EXECUTION_ERROR, after which the session goes on; no metadata on the wire;
`done` alone (`ends=True`: also terminated and truncated, as later versions send).
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError


class FlatAction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    action_type: str
    x: int | None = None
    y: int | None = None
    metadata: dict[str, Any] = {}


class SayAction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    message: str
    metadata: dict[str, Any] = {}


def picture(colour: tuple[int, int, int]) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


class Toy:
    """Pays 1.0 per click and is done after three."""

    def __init__(self) -> None:
        self.n = 0
        self.reset_with: dict[str, Any] = {}

    def look(self, shape: str) -> dict[str, Any]:
        seen: dict[str, Any] = {"goal": f"{self.reset_with}", "screenshot": "", "score": None}
        if shape == "numbers":
            return seen | {"pixels": [[[self.n, 2, 3]] * 5] * 4}
        if shape == "list":
            return seen | {"images": [picture((self.n, 0, 0)), "data:image/png;base64," + picture((0, self.n, 0))]}
        if shape == "broken":
            return seen | {"screenshot": picture((0, 0, 0))[:60]}
        return seen | {"screenshot": picture((0, 0, self.n))}


def stand_in(*, most: int = 2, ends: bool = False, says: bool = False) -> FastAPI:
    """The application; its connections are `app.state.open`. `says`: actions are a text. The action 'slow' waits for
    `app.state.go_on`."""
    app = FastAPI()
    app.state.open, app.state.go_on = [], threading.Event()
    model = SayAction if says else FlatAction

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {"action": model.model_json_schema(), "observation": {}, "state": {}}

    def answer(toy: Toy, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind == "state":
            return {"type": "state", "data": {"episode_id": "e", "step_count": toy.n}}
        if kind == "reset":
            toy.n, toy.reset_with = 0, data
            return observation(toy.look("base64"), None, False, False)
        action = model(**data)
        toy.n += 1
        said = action.message if isinstance(action, SayAction) else action.action_type
        if said == "boom":
            raise RuntimeError("boom")
        if said == "nonsense":
            return {"type": "observation", "data": {"observation": 3}}
        return observation(toy.look(said), 1.0 if said == "click" else None, toy.n >= 3, said == "cut")

    def observation(seen: dict[str, Any], reward: float | None, done: bool, cut: bool) -> dict[str, Any]:
        data = {"observation": seen, "reward": reward, "done": done or cut}
        return {"type": "observation", "data": data | ({"terminated": done, "truncated": cut} if ends else {})}

    @app.websocket("/ws")
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        if len(app.state.open) >= most:
            more = {"active_sessions": len(app.state.open), "max_sessions": most}
            await fail(socket, "Server at capacity", "CAPACITY_REACHED", **more)
            await socket.close(1000)
            return
        app.state.open.append(socket)
        toy = Toy()
        try:
            while True:
                frame = json.loads(await socket.receive_text())
                if (frame.get("data") or {}).get("action_type") == "slow":
                    await asyncio.to_thread(app.state.go_on.wait, 60)
                try:
                    await socket.send_json(answer(toy, frame["type"], frame.get("data") or {}))
                except ValidationError as error:
                    await fail(socket, "Invalid message", "VALIDATION_ERROR", errors=json.loads(error.json()))
                except RuntimeError as error:
                    await fail(socket, str(error), "EXECUTION_ERROR")
        except WebSocketDisconnect:
            pass
        finally:
            app.state.open.remove(socket)

    async def fail(socket: WebSocket, message: str, code: str, **more: Any) -> None:
        await socket.send_json({"type": "error", "data": {"message": message, "code": code, **more}})

    return app
