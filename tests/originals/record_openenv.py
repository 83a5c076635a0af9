"""Records OpenEnv's own servers: `python record_openenv.py SOURCE OUT PYTHON`.

SOURCE is a checkout of https://github.com/huggingface/OpenEnv (BSD-3-Clause), and this runs in an environment of its
own that has what its pyproject.toml and those of the environments name. PYTHON is one that has uirl: its client plays
what `openenv_plays.py` says. OUT becomes one JSON file per environment, with every frame and every other exchange.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NAMES = ("echo_env", "repl_env", "grid_world_env", "maze_env", "connect4_env", "coding_env")


class Watching:
    """Middleware that keeps what a client sent and was sent."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.frames: list[dict[str, str]] = []
        self.http: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.talk(scope, receive, send)
        elif scope["type"] == "http":
            await self.exchange(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def talk(self, scope: Any, receive: Any, send: Any) -> None:
        async def read() -> Any:
            message = await receive()
            if message["type"] == "websocket.receive":
                text = message.get("text") or (message.get("bytes") or b"").decode()
                self.frames.append({"from": "client", "text": text})
            return message

        async def write(message: Any) -> None:
            if message["type"] == "websocket.send":
                self.frames.append({"from": "server", "text": message["text"]})
            await send(message)

        await self.app(scope, read, write)

    async def exchange(self, scope: Any, receive: Any, send: Any) -> None:
        kept: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "body": "", "answer": ""}

        async def read() -> Any:
            message = await receive()
            kept["body"] += message.get("body", b"").decode()
            return message

        async def write(message: Any) -> None:
            kept["status"] = message.get("status", kept.get("status"))
            kept["answer"] += message.get("body", b"").decode()
            await send(message)

        await self.app(scope, read, write)
        self.http.append(kept)


def serve(app: Any) -> str:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def main(source: str, out: str, python: str) -> None:
    root = Path(__file__).parents[2]
    found = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = found or os.environ["COMMIT"]
    sys.path[:0] = [f"{source}/src", f"{source}/envs"]
    for name in NAMES:
        watching = Watching(importlib.import_module(f"{name}.server.app").app)
        url = serve(watching)
        play = [python, "-m", "tests.originals.openenv_plays", name, url]
        done = subprocess.run(
            play, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
        )
        recording = {
            "source": "https://github.com/huggingface/OpenEnv", "commit": commit, "license": "BSD-3-Clause",
            "environment": name, "http": watching.http, "frames": watching.frames,
        }  # fmt: skip
        path = Path(out) / f"openenv_{name}.json"
        path.write_text(json.dumps(recording, ensure_ascii=False, indent=1) + "\n")
        print(name, done.returncode, len(watching.frames), done.stdout, done.stderr[-800:], sep="\n")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), str(Path(sys.argv[2]).resolve()), sys.argv[3])
    os._exit(0)
