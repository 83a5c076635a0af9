"""A stand-in for a server of openenv-core 0.3.0, with an environment of flat actions and pictures in several shapes.

What it repeats of the original: an error right after accept where it is full, then a close with 1000; validation
errors in pydantic's form; exceptions as EXECUTION_ERROR, after which the session goes on; no metadata on the wire;
`done` alone (`ends=True`: also terminated and truncated, as later versions send). `tools=True`: an environment of
tools, as `echo_env`. `shy=True`: one without a state before its first reset, as `repl_env`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from typing import Any, Literal

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


class CallToolAction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class DropAction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    column: int
    metadata: dict[str, Any] = {}


ECHO = {
    "name": "echo_message",
    "description": "Echo back.",
    "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
}


def called(action: CallToolAction) -> dict[str, Any]:
    """What an environment of tools observes."""
    seen: dict[str, Any] = {"tool_name": action.tool_name, "result": None, "error": None}
    if action.tool_name != "echo_message":
        return seen | {"error": {"error_type": "tool_not_found", "message": f"Unknown tool: '{action.tool_name}'"}}
    said = action.arguments["message"]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": said, "annotations": None}]
    if said == "look":
        blocks.append({"type": "image", "data": picture((1, 2, 3)), "mimeType": "image/png"})
    result = {"content": blocks, "structured_content": {"result": said}, "data": said, "is_error": said == "fail"}
    return seen | {"result": result}


def picture(colour: tuple[int, int, int]) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


class Toy:
    """Pays 1.0 per click and is done after three."""

    def __init__(self) -> None:
        self.n = 0
        self.reset_with: dict[str, Any] = {}
        self.begun = False

    def look(self, shape: str) -> dict[str, Any]:
        seen: dict[str, Any] = {"goal": f"{self.reset_with}", "screenshot": "", "score": None}
        if shape == "numbers":
            return seen | {"pixels": [[[self.n, 2, 3]] * 5] * 4}
        if shape == "list":
            return seen | {"images": [picture((self.n, 0, 0)), "data:image/png;base64," + picture((0, self.n, 0))]}
        if shape == "broken":
            return seen | {"screenshot": picture((0, 0, 0))[:60]}
        return seen | {"screenshot": picture((0, 0, self.n))}


def stand_in(
    *, most: int = 2, ends: bool = False, says: bool = False, tools: bool = False, drops: bool = False,
    shy: bool = False, refusal: str = "", pays: float = 1.0,
) -> FastAPI:  # fmt: skip
    """The application; its connections are `app.state.open`. `says`: actions are a text; `drops`: a number, which
    `pays`. `refusal`: the code that every session is refused with. The action 'slow' waits for `app.state.go_on`."""
    app = FastAPI()
    app.state.open, app.state.go_on = [], threading.Event()
    app.state.asked = 0
    model: Any = SayAction if says else CallToolAction if tools else DropAction if drops else FlatAction

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {"action": model.model_json_schema(), "observation": {}, "state": {}}

    @app.post("/mcp")
    async def mcp(question: dict[str, Any]) -> dict[str, Any]:
        assert question == {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        app.state.asked += 1
        return {"jsonrpc": "2.0", "id": 1, "result": {"tools": [ECHO]}}

    def answer(toy: Toy, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind == "state":
            if shy and not toy.begun:
                raise RuntimeError("Environment not initialized. Call reset() first.")
            return {"type": "state", "data": {"episode_id": "e", "step_count": toy.n}}
        if kind == "reset":
            toy.n, toy.reset_with, toy.begun = 0, data, True
            return observation(toy.look("base64"), None, False, False)
        action = model(**data)
        toy.n += 1
        if isinstance(action, CallToolAction):
            return observation(called(action), None, False, False)
        if isinstance(action, DropAction):
            return observation({"column": action.column}, pays, False, False)
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
        if refusal:
            await fail(socket, "No session", refusal)
            await socket.close(1000)
            return
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
