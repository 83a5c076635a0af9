"""Recordings of the originals, and servers that answer as they did."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

RECORDINGS = Path(__file__).with_name("recordings")


def recording(name: str) -> dict[str, Any]:
    """One file; it names its source, the commit and the license."""
    kept: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    assert {"source", "commit", "license"} <= kept.keys()
    return kept


@dataclass
class Phone:
    """A MobileWorld server that answers as the recorded one did: a screen is that after as many actions."""

    kept: list[dict[str, Any]]
    acted: list[dict[str, Any]] = field(default_factory=list)
    """The actions that came, without what they leave open."""

    def app(self) -> Starlette:
        async def answer(request: Request) -> Response:
            return self.answer(request.method, request.url.path, await request.body())

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])

    def answer(self, method: str, path: str, body: bytes) -> Response:
        if path == "/task/list":  # the recorded client asked for the one task alone
            return JSONResponse([json.loads(self.found(method, "/task/metadata")["answer"])])
        if path == "/step":
            self.acted.append(given(json.loads(body)))
            return said(self.steps[len(self.acted) - 1])
        return said(self.screen() if path == "/screenshot" else self.found(method, path))

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The recorded actions that changed something, in order."""
        return [one for one in self.kept if one["path"] == "/step" and one["status"] == 200]

    def screen(self) -> dict[str, Any]:
        passed = 0
        for one in self.kept:
            if one["path"] == "/screenshot" and passed == len(self.acted):
                return one
            passed += one in self.steps
        raise AssertionError("no screen was recorded after as many actions")

    def found(self, method: str, path: str) -> dict[str, Any]:
        return next(one for one in self.kept if (one["method"], one["path"]) == (method, path))


def given(step: dict[str, Any]) -> dict[str, Any]:
    """The action of a request, without the fields that are null."""
    return {name: value for name, value in step["action"].items() if value is not None}


def said(one: dict[str, Any]) -> Response:
    return Response(one["answer"], one["status"], media_type="application/json")


@dataclass
class Talk:
    """A server of OpenEnv that says what the recorded one said, to a client that says what the recorded one said."""

    kept: dict[str, Any]
    heard: list[str] = field(default_factory=list)
    """The frames that came."""
    missed: list[str] = field(default_factory=list)
    """What was to come in the place of another frame."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[WebSocketRoute("/ws", self.talk), Route("/{path:path}", self.answer, methods=["GET", "POST"])]
        )

    async def answer(self, request: Request) -> Response:
        body = (await request.body()).decode()
        asked = (request.method, request.url.path, json.loads(body or "null"))
        for one in self.kept["http"]:
            if (one["method"], one["path"], json.loads(one["body"] or "null")) == asked:
                return said(one)
        return Response("not recorded", 404)

    async def talk(self, socket: WebSocket) -> None:
        await socket.accept()
        for frame in self.kept["frames"]:
            if frame["from"] == "server":
                await socket.send_text(frame["text"])
                continue
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                self.missed.append(frame["text"])
                return
            self.heard.append(message.get("text") or message["bytes"].decode())
            if self.heard[-1] != frame["text"]:
                self.missed.append(frame["text"])
                break
        await socket.close()


@dataclass
class Desk:
    """The server of ui-verifiers, which says what the recorded one said, as long as it is asked the same."""

    kept: list[dict[str, Any]]
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def app(self) -> Starlette:
        async def answer(request: Request) -> Response:
            one = self.kept[len(self.asked)] if len(self.asked) < len(self.kept) else {}
            self.asked.append((request.method, request.url.path, request.url.query))
            if self.asked[-1] != (one.get("method"), one.get("path"), one.get("query")):
                return Response("not recorded", 404)
            return Response(base64.b64decode(one["base64"]), one["status"], media_type=one["kind"])

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "DELETE"])])
