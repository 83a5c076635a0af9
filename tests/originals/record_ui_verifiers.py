"""Records the single-session server of ui-verifiers: `python record_ui_verifiers.py SOURCE OUT PYTHON`, under Xvfb.

SOURCE is a checkout of https://github.com/TobiasNorlund/ui-verifiers; its server and its hands run as they are, on a
screen of `Xvfb :77 -screen 0 1280x800x24` with DISPLAY=:77. Its session opens public forms of Google, which cannot be
had without the internet: in its place stands one that counts what was typed. PYTHON is one that has uirl: its client
plays what `ui_verifiers_plays.py` says.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any


class Session:
    """A right row is counted after each text that was typed."""

    typed = 0

    async def start(self) -> None:
        """There is nothing to open."""

    def get_progress(self) -> dict[str, Any]:
        return {"submitted_row_indices": list(range(Session.typed)), "num_incorrect_submissions": 0}


class Watching:
    """Middleware that keeps every exchange."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.kept: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, kind, answer = 0, "", b""

        async def write(message: Any) -> None:
            nonlocal status, kind, answer
            if message["type"] == "http.response.start":
                status, kind = message["status"], dict(message["headers"]).get(b"content-type", b"").decode()
            answer += message.get("body", b"")
            await send(message)

        query = scope["query_string"].decode()
        await self.app(scope, receive, write)
        Session.typed += "action_type=type" in query
        self.kept.append({
            "method": scope["method"], "path": scope["path"], "query": query, "status": status, "kind": kind,
            "base64": base64.b64encode(answer).decode(),
        })  # fmt: skip


def main(source: str, out: str, python: str) -> None:
    import uvicorn

    root = Path(__file__).parents[2]
    found = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = found or os.environ["COMMIT"]
    sys.modules["session"] = types.ModuleType("session")
    sys.modules["session"].SimpleDataEntrySession = Session  # type: ignore[attr-defined]
    if "mouseinfo" not in sys.modules:  # it wants tkinter, and is not used
        sys.modules["mouseinfo"] = types.ModuleType("mouseinfo")
        sys.modules["mouseinfo"].MouseInfoWindow = None  # type: ignore[attr-defined]
    sys.path.insert(0, f"{source}/tasks/simple_data_entry")
    import server as original

    watching = Watching(original.app)
    server = uvicorn.Server(uvicorn.Config(watching, host="127.0.0.1", port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    play = [python, "-m", "tests.originals.ui_verifiers_plays", url]
    done = subprocess.run(play, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True)
    recording = {
        "source": "https://github.com/TobiasNorlund/ui-verifiers", "commit": commit,
        "license": "none named; what its server answered, no code", "exchanges": watching.kept,
    }  # fmt: skip
    path = Path(out) / "ui_verifiers.json"
    path.write_text(json.dumps(recording, ensure_ascii=False, indent=1) + "\n")
    print(done.returncode, path.stat().st_size, done.stdout, done.stderr[-800:], sep="\n")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), str(Path(sys.argv[2]).resolve()), sys.argv[3])
    os._exit(0)
