"""A double of the MobileWorld server: its routes, its roundings and its errors, over a drawn phone.

What it keeps from the original: no session, one running task, no lock; `x` and `y` are rounded and the ends of a drag
are not; errors come as 422 or 500 where a client would expect 400; a score is asked for by a GET with a JSON body; an
unhealthy device answers 500 everywhere, and asking for the health restarts it. `later` is the original as of 2026: 503
for bad health, scrolls to the side, an app that is not there is 200 with an empty result, and a suite `android_world`
with a seed. What is missing: the waits, and everything about Docker.

`python -m tests.environments.mobile_world.double` runs it in a process of its own and prints its address.
"""

from __future__ import annotations

import base64
import socket
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, field_validator, model_validator

from tests.environments.mobile_world.phone import (
    ANDROID_WORLD,
    HEIGHT,
    LAUNCHED,
    PROBLEMS,
    WIDTH,
    Phone,
    Problem,
    listed,
)

TYPES = (
    *("click", "double_tap", "scroll", "swipe", "input_text", "navigate_home", "navigate_back", "keyboard_enter"),
    *("open_app", "status", "wait", "long_press", "answer", "finished", "unknown", "drag", "ask_user", "mcp"),
)
OTHER_APPS = {
    *("maps", "chrome", "calendar", "files", "gallery", "taodian", "淘店", "mattermost", "mastodon", "mail", "camera")
}


class Step(BaseModel):
    """The action, as the original reads it."""

    action_type: str | None = None
    index: str | int | None = None
    x: int | None = None
    y: int | None = None
    text: str | None = None
    direction: str | None = None
    goal_status: str | None = None
    app_name: str | None = None
    keycode: str | None = None
    clear_text: bool | None = None
    start_x: int | None = None
    start_y: int | None = None
    end_x: int | None = None
    end_y: int | None = None
    action_name: str | None = None
    action_json: dict[str, Any] | None = None

    @field_validator("x", "y", mode="before")
    @classmethod
    def _round(cls, value: Any) -> Any:
        return None if value is None else round(value)

    @field_validator("text", mode="before")
    @classmethod
    def _write(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else str(value)

    @model_validator(mode="after")
    def _fits(self) -> Step:
        if self.action_type is not None and self.action_type not in TYPES:
            raise ValueError(f"Invalid action type: {self.action_type}")
        if self.direction is not None and self.direction not in ("left", "right", "down", "up"):
            raise ValueError(f"Invalid scroll direction: {self.direction}")
        if self.keycode is not None and not self.keycode.startswith("KEYCODE_"):
            raise ValueError(f"Invalid keycode: {self.keycode}")
        if self.index is not None and (self.x is not None or self.y is not None):
            raise ValueError("Either an index or a <x, y> should be provided.")
        return self


class StepRequest(BaseModel):
    device: str
    action: Step


class InitRequest(BaseModel):
    device: str = "emulator-5554"
    type: Literal["cmd", "docker"] = "cmd"
    instance: dict[str, Any] | None = None


class TaskRequest(BaseModel):
    task_name: str
    req_device: str


class Crash(Exception):
    """What the original does not catch: 500 as plain text."""


class Double:
    """The state of one server, and what a test wants to spoil."""

    def __init__(self, *, later: bool = False) -> None:
        self.later = later
        self.phone = Phone()
        self.task: str | None = None
        self.devices: dict[str, bool] = {}
        """Device -> whether it is healthy."""
        self.told: list[tuple[str, Any]] = []
        """Every request that changes something: its path, and what it said."""
        self.heals = True
        """Asking for the health mends it, from the next question on."""
        self.spoil: dict[str, Any] = {}
        """`png`: bytes in place of a picture; `score`: in place of the answer of /task/eval, or what gives one."""
        self.suite = "mobile_world"
        self.seed: int | None = None
        self.begun = self.ended = 0

    @property
    def problems(self) -> dict[str, Problem]:
        """The tasks of the suite."""
        return PROBLEMS if self.suite == "mobile_world" else ANDROID_WORLD

    def sick(self) -> None:
        self.devices = dict.fromkeys(self.devices or ["emulator-5554"], False)

    def device(self, name: str) -> Phone:
        if not self.devices.setdefault(name, True):
            raise HTTPException(500, "Device is not healthy")
        return self.phone

    def health(self) -> JSONResponse:
        ok, status = all(self.devices.values()), dict(self.devices)
        if not ok and self.heals:
            self.devices = dict.fromkeys(self.devices, True)
        said = {"ok": ok, "devices": list(status), "device_status": status}
        return JSONResponse(said, 503 if self.later and not ok else 200)

    def act(self, phone: Phone, action: Step) -> str:
        """What the server answers. Raises what the original's code raises."""
        a: Any = action
        match action.action_type:
            case "click" | "double_tap":
                x, y = int(a.x), int(a.y)
                return "".join(phone.tap(x, y) for _ in range(1 if action.action_type == "click" else 2))
            case "long_press":
                return phone.swipe(int(a.x), int(a.y), int(a.x), int(a.y))
            case "drag":
                return phone.swipe(int(a.start_x), int(a.start_y), int(a.end_x), int(a.end_y))
            case "swipe":
                return _swipe(phone, action.x, action.y, action.direction or "up")
            case "scroll":
                way = "down" if action.direction == "up" else "up"
                sideways = self.later and action.direction in ("left", "right")
                return _swipe(phone, None, None, str(action.direction) if sideways else way)
            case "input_text":
                if action.text == "":
                    raise UnboundLocalError(
                        "cannot access local variable 'ret' where it is not associated with a value"
                    )
                return phone.type(a.text + "")  # as the original, for a text that is not there
            case "navigate_home" | "navigate_back" | "keyboard_enter":
                return phone.key(f"KEYCODE_{action.action_type.rpartition('_')[2].upper()}")
            case "open_app":
                return self._launch(phone, a.app_name.lower())
            case "wait":
                return "OK"
            case "answer":
                phone.answer = action.text or ""
                return "OK"
            case "ask_user":
                return self._ask(action.text)
        raise RuntimeError(f"400: unknown action: {action.action_type}")

    def _launch(self, phone: Phone, app: str) -> str:
        if app not in LAUNCHED and app not in OTHER_APPS:
            if self.later:
                return ""
            raise RuntimeError("1 validation error for AdbResponse: command: Field required")
        return phone.launch(app)

    def _ask(self, text: str | None) -> str:
        if self.task is None:
            raise ValueError("user_sys_prompt is not configured. Please initialize the task first.")
        return "It is teal." if "colour" in (text or "") else "I do not know."


def _swipe(phone: Phone, x: int | None, y: int | None, direction: str) -> str:
    x, y = WIDTH // 2 if x is None else x, HEIGHT // 2 if y is None else y
    unit = 2 * int(WIDTH / 10)
    right, down = {"up": (0, -2), "down": (0, 2), "left": (-1, 0), "right": (1, 0)}[direction]
    return phone.swipe(x, y, x + right * unit, y + down * unit)


def create_app(double: Double | None = None) -> FastAPI:
    """The application; its state is `app.state.double`."""
    app = FastAPI()
    server = app.state.double = double or Double()

    @app.exception_handler(Crash)
    def crash(request: Any, error: Crash) -> PlainTextResponse:
        return PlainTextResponse("Internal Server Error", 500)

    _device_routes(app, server)
    _task_routes(app, server)
    return app


def _device_routes(app: FastAPI, server: Double) -> None:
    @app.get("/health")
    def health() -> JSONResponse:
        return server.health()

    @app.post("/init")
    def init(request: InitRequest) -> dict[str, Any]:
        server.told.append(("/init", request.device))
        server.device(request.device)
        return {"device": request.device, "viewport_size": [WIDTH, HEIGHT]}

    @app.get("/screenshot")
    def screenshot(device: str, prefix: str | None = None, return_b64: bool = False) -> dict[str, Any]:
        data = server.spoil.get("png") or server.device(device).picture()
        said = {"device": device, "path": f"/artifacts/{prefix or 'screen'}.png"}
        return said | ({"b64_png": base64.b64encode(data).decode()} if return_b64 else {})

    @app.post("/step")
    def step(request: StepRequest) -> dict[str, Any]:
        phone = server.device(request.device)
        server.told.append(("/step", request.action.model_dump(exclude_none=True)))
        try:
            result = server.act(phone, request.action)
        except Exception as error:  # as the original: whatever it is, it is a 500 with the words of the exception
            raise HTTPException(500, str(error)) from error
        return {"device": request.device, "action": request.action, "result": result}


def _task_routes(app: FastAPI, server: Double) -> None:
    @app.get("/task/list")
    def tasks() -> list[dict[str, Any]]:
        return listed(server.problems)

    def known(task_name: str) -> Any:
        if task_name not in server.problems:
            raise Crash
        return server.problems[task_name]

    @app.get("/task/goal")
    def goal(task_name: str) -> str:
        return str(known(task_name).goal)

    @app.post("/task/init")
    def init(request: TaskRequest) -> str:
        server.device(request.req_device)
        if request.task_name not in server.problems:
            detail = f'Error initializing task: "Task {request.task_name!r} not found in registry"'
            raise HTTPException(500, detail)
        server.told.append(("/task/init", request.task_name))
        server.phone, server.task = Phone(), request.task_name
        server.begun += 1
        return "OK"

    @app.get("/task/eval")
    def evaluate(request: TaskRequest) -> Any:
        server.device(request.req_device)
        problem = known(request.task_name)
        if server.task is None:
            raise Crash
        server.told.append(("/task/eval", request.task_name))
        if "score" in server.spoil:
            said = server.spoil["score"]
            return JSONResponse(said() if callable(said) else said)
        score, reason = problem.check(server.phone)
        return {"score": score, "reason": reason}

    @app.post("/task/tear_down")
    def tear_down(request: TaskRequest) -> str:
        server.told.append(("/task/tear_down", request.task_name))
        server.device(request.req_device)
        known(request.task_name)
        server.ended += server.task is not None
        server.task = None
        return "OK"

    @app.post("/suite_family/switch")
    def switch(target_family: str, seed: int | None = None) -> dict[str, Any]:
        families = ["mobile_world", "android_world"] if server.later else ["mobile_world"]
        if target_family not in families:
            raise HTTPException(400, f"Invalid suite_family: {target_family}. Must be one of {families}")
        server.told.append(("/suite_family/switch", target_family if seed is None else (target_family, seed)))
        said = {"message": "", "suite_family": target_family, "switched": server.suite != target_family}
        if not said["switched"]:
            return said  # and the seed stays what it was
        if target_family == "mobile_world" and seed is not None:
            raise HTTPException(500, "Failed to switch suite family: --seed is not supported for mobile_world tasks")
        server.suite, server.seed = target_family, seed
        return said | {"emulator_device_id": "emulator-5554", "avd_name": "Pixel_8", "num_tasks": len(server.problems)}


if __name__ == "__main__":
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        print(f"http://127.0.0.1:{door.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(create_app(), log_level="error")).run([door])
