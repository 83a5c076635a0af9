"""Records MobileWorld's own agent for MAI-UI on MobileWorld's own server: `python record_mobile_world.py SOURCE OUT`.

SOURCE is a checkout of https://github.com/Tongyi-MAI/MobileWorld (Apache-2.0), and this runs in an environment of its
own, with what its uv.lock names (mcp 1.9.4, fastmcp 2.9.2, pillow 11.3.0, fastapi 0.116.1). Nothing of it is changed
but the addresses of its servers of tools. In place of a phone stands a program `adb` that draws a small picture of how
often it was touched; in place of models a server that gives scripted replies. OUT becomes one JSON file per task: what
the model was sent, byte by byte, and every exchange with the server.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 54, 120
SHOTS = 24
ADB = """#!/bin/sh
# touched COUNT: how often an input came; the picture is of that number
dir={dir}
case "$*" in
  *"wm size"*) echo "Physical size: {width}x{height}" ;;
  *"sys.boot_completed"*) echo 1 ;;
  *"snapshot load"*) echo 0 > $dir/touched; echo OK ;;
  *"screen_brightness"*) echo 255 ;;
  *"screencap -p"*) cat $dir/$(cat $dir/touched).png ;;
  *"shell input"*|*"shell monkey"*|*"ADB_INPUT"*) echo $(($(cat $dir/touched) + 1)) > $dir/touched ;;
  *) echo "" ;;
esac
"""
TOOLS = """
from fastmcp import FastMCP
mcp = FastMCP("{name}")
{tools}
mcp.run(transport="sse", host="127.0.0.1", port={port}, log_level="error")
"""
AMAP = '''
@mcp.tool
def maps_geo(address: str, city: str = "") -> str:
    """将详细的结构化地址转换为经纬度坐标。"""
    return '{"return": [{"location": "120.212600,30.290960", "city": "' + (city or "杭州市") + '"}]}'

@mcp.tool
def maps_distance(origins: str, destination: str, type: str = "1") -> str:
    """Measures the distance between two points ("lon,lat"); type 0: as the crow flies."""
    if "," not in origins:
        raise ValueError("origins must be lon,lat")
    return '{"results": [{"distance": "157254"}]}'
'''
OTHER = '''
@mcp.tool
def search(query: str) -> str:
    """Not for this task."""
    return query
'''


def call(action: str, thought: str = "One more step.", **arguments: Any) -> str:
    """A reply in the words of MAI-UI."""
    return tool("mobile_use", thought, action=action, **arguments)


def tool(name: str, thought: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<thinking>\n{thought}\n</thinking>\n<tool_call>\n{body}\n</tool_call>"


EPISODES: dict[str, list[str]] = {
    "AdjustBrightnessMaximumTask": [
        call("open", "I open the settings.", text="Settings"),
        "  " + call("swipe", "Display is further down.", direction="up") + "\n\n",
        call("click", 'I tap on "Display".', coordinate=[499, 512]),
        "Wide.</think>\n" + call("long_press", "", coordinate=[100, 200]).partition("</thinking>\n")[2],
        call("drag", "All the way to the right.", start_coordinate=[100, 300], end_coordinate=[990, 300]),
        call("open", "There may be another app.", text="Lux Auto Brightness"),
        call("type", "Nothing to write.", text=""),
        call("system_button", "Back.", button="Back"),
        call("terminate", "The slider is at its end.", status="success"),
    ],
    "SetAlarmTaskAskUser1": [
        call("open", "I open the clock.", text="Clock"),
        call("ask_user", "When?", text="What time do you get up?"),
        call("click", "The owner has said it.", coordinate=[500, 900]),
        call("type", "多加一个。", text="早上好 — 7:30"),
        call("double_click", "Twice.", coordinate=[0, 0]),
        call("wait", "It is saving."),
        call("fly", "There is no such action."),
    ],
    "CheckDistanceMcpTask": [
        tool("amap_maps_geo", "先查两个地点的坐标。", address="杭州东站", city="杭州"),
        tool("amap_maps_distance", "A mistake first.", origins="杭州东站", destination="121.45,31.22"),
        tool("amap_maps_distance", "再查直线距离。", origins="120.2126,30.29096", destination="121.45,31.22", type="0"),
        call("click", "Let me look at the screen again.", coordinate=[10, 20]),
        call("answer", "157.254 公里。", text="157.254"),
    ],
    "AdjustBrightnessMinimumTask": [call("click", "First a tap.", coordinate=[10, 20]), "I am done."],
}
RUNNING: list[subprocess.Popen[bytes]] = []
USER_SAYS = "At half past seven, please. 谢谢！"


class Model:
    """A server for both models: that of the agent, whose requests are kept, and that of the owner."""

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def chat(request: Any) -> Any:
            body = json.loads(await request.body())
            if body["model"] == "owner":
                said = USER_SAYS
            else:
                self.asked.append(body)
                said = self.replies.pop(0)
            message = {"role": "assistant", "content": said}
            return JSONResponse({
                "id": "1", "object": "chat.completion", "created": 0, "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            })  # fmt: skip

        return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


class Watching:
    """Middleware that keeps every exchange."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.kept: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked, said, status = b"", b"", 0

        async def read() -> Any:
            nonlocal asked
            message = await receive()
            asked += message.get("body", b"")
            return message

        async def write(message: Any) -> None:
            nonlocal said, status
            status = message.get("status", status)
            said += message.get("body", b"")
            await send(message)

        try:
            await self.app(scope, read, write)
        finally:
            self.kept.append({
                "method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode(),
                "body": asked.decode() or None, "status": status, "answer": said.decode(),
            })  # fmt: skip


def serve(app: Any) -> str:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def make_phone(folder: Path) -> None:
    from PIL import Image, ImageDraw

    for number in range(SHOTS):
        image = Image.new("RGB", (WIDTH, HEIGHT), (8 * number, 40, 90))
        ImageDraw.Draw(image).rectangle((number, 5 * number, number + 20, 5 * number + 4), fill="white")
        image.save(folder / f"{number}.png")
    program = folder / "adb"
    program.write_text(ADB.format(dir=folder, width=WIDTH, height=HEIGHT))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def tool_server(folder: Path, name: str, tools: str) -> dict[str, Any]:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    script = folder / f"{name}.py"
    script.write_text(TOOLS.replace("{name}", name).replace("{tools}", tools).replace("{port}", str(port)))
    RUNNING.append(subprocess.Popen([sys.executable, str(script)]))
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return {"transport": "sse", "url": f"http://127.0.0.1:{port}/sse"}
        time.sleep(0.1)


def main(source: str, out: str) -> None:
    commit = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = commit or os.environ["COMMIT"]
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    make_phone(folder)
    model = Model()
    models = serve(model.app())
    os.environ |= {
        "USER_AGENT_MODEL": "owner", "USER_AGENT_BASE_URL": f"{models}/v1", "USER_AGENT_API_KEY": "k",
        "ARTIFACTS_ROOT": str(folder / "artifacts"), "no_proxy": "*",
    }  # fmt: skip
    sys.path.insert(0, f"{source}/src")
    from mobile_world.core import server
    from mobile_world.runtime import mcp_server

    mcp_server.MCP_CONFIG["mcpServers"] = {
        "amap": tool_server(folder, "amap", AMAP),
        "arXiv": tool_server(folder, "arXiv", OTHER),
    }
    mcp_server.SyncMCPClient.__init__.__defaults__ = (None, None, 5, 0, 2)  # no pauses between its tries
    from mobile_world.agents.implementations.mai_ui_agent import MAIUINaivigationAgent
    from mobile_world.core.runner import _execute_single_task, _init_env
    from mobile_world.runtime.utils.trajectory_logger import TrajLogger

    server.initialize_suite_family("mobile_world")
    watching = Watching(server.app)
    phone = serve(watching)
    import requests

    for task, replies in EPISODES.items():
        watching.kept.clear()
        model.asked.clear()
        model.replies = list(replies)
        # what a careful client asks first
        requests.get(f"{phone}/health")
        env = _init_env(phone, "emulator-5554", 0.01, "mobile_world", True)
        env.reset_tools(task_type=task)
        agent = MAIUINaivigationAgent(models + "/v1", "Tongyi-MAI/MAI-UI-8B", "k", tools=copy.deepcopy(env.tools))
        logs = TrajLogger(str(folder / "logs"), task)
        steps, score = _execute_single_task(env, agent, task, 50, logs, enable_mcp=False)
        kept = [one for one in watching.kept if one["path"] != "/task/list"]
        recording = {
            "source": "https://github.com/Tongyi-MAI/MobileWorld", "commit": commit, "license": "Apache-2.0",
            "agent": "mai_ui_agent", "task": task, "steps": steps, "score": score, "tools": env.tools,
            "replies": replies, "asked": [json.dumps(body, ensure_ascii=False) for body in model.asked],
            "exchanges": kept,
        }  # fmt: skip
        path = Path(out) / f"mobile_world_{task}.json"
        path.write_text(json.dumps(recording, ensure_ascii=False, indent=1) + "\n")
        print(task, steps, score, path.stat().st_size, flush=True)


if __name__ == "__main__":
    try:
        main(str(Path(sys.argv[1]).resolve()), str(Path(sys.argv[2]).resolve()))
    finally:
        for one in RUNNING:
            one.kill()
    os._exit(0)
