"""The process of an app, for all its sessions. It runs in a sandbox, apart from this package: the standard library and
the app's own packages are all it has.

Requests name their session in a header that the browser of the session alone sends. Each session has a process of its
own, forked from this one once the app is loaded: what a session breaks is its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler

HEADER = "x-uirl-session"
TEMPLATE, LOG = "template", "server.log"
NOW = 1767603600
"""The time that apps believe it is: 5 January 2026, 9 o'clock."""
_SESSION = re.compile(rb"\r\n" + HEADER.encode() + rb": ?([0-9a-f]{32})\r\n", re.IGNORECASE)
_LONGEST_HEAD = 1 << 16
_HEAD_SECONDS = 10.0
_FILE_BYTES, _MEMORY_BYTES = 64 << 20, 2 << 30
Serve = Callable[[socket.socket, bytes], None]
"""Answers one connection, of which these bytes were read."""


def main() -> None:
    """Load the app, make the store that sessions begin with, say so, and serve until stdin ends."""
    settings = json.loads(sys.argv[1])
    listener = socket.socket(fileno=settings["socket"])
    app, root = settings["app"], Path(settings["root"])
    sys.path[:0] = [settings["packages"], settings["code"]]
    (root / TEMPLATE).mkdir()
    cookies: dict[str, str] = {}
    if app["program"]:
        program = importlib.import_module(app["program"])
        freeze_clock()
        cookies, make = program.begin(app, root / TEMPLATE)
        begin = wsgi_session(make)
    else:
        shutil.copyfile(settings["seed_store"], root / TEMPLATE / app["store"])
        begin = command_session(app["command"], {"store": app["store"], "app": settings["folder"]})
    print(json.dumps({"cookies": cookies}), flush=True)
    Dispatcher(listener, root, begin).run()


def freeze_clock() -> None:
    """Let the app's clock stand still, where its packages have what does that."""
    with contextlib.suppress(ImportError):
        import time_machine

        time_machine.travel(NOW, tick=False).start()


class Dispatcher:
    """Hands each connection to the process of its session. No code of the app runs in this process after the start."""

    def __init__(self, listener: socket.socket, root: Path, begin: Callable[[Path], Serve]) -> None:
        self.listener, self.root, self.begin = listener, root, begin
        self.sessions: dict[str, tuple[int, socket.socket]] = {}
        self.heads: dict[socket.socket, tuple[float, bytearray]] = {}

    def run(self) -> None:
        """Serve until stdin ends: then whoever started this is gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            ready, _, _ = select.select([0, self.listener, *self.heads], [], [], 1.0)
            if 0 in ready and not os.read(0, 1):
                break
            if self.listener in ready:
                connection, _ = self.listener.accept()
                self.heads[connection] = time.monotonic(), bytearray()
            for connection in [one for one in ready if one in self.heads]:
                self._read(connection)
            self._tidy()
        for name in list(self.sessions):  # a server of a session would keep the walls up
            self._end(name)

    def _read(self, connection: socket.socket) -> None:
        head = self.heads[connection][1]
        try:
            piece = connection.recv(_LONGEST_HEAD)
        except OSError:
            piece = b""
        head += piece
        if piece and b"\r\n\r\n" not in head and len(head) < _LONGEST_HEAD:
            return
        del self.heads[connection]
        found = _SESSION.search(head)
        # who does not know the name of a session is told nothing
        if found and piece and (self.root / found[1].decode()).is_dir():
            self._hand_on(found[1].decode(), connection, bytes(head))
        connection.close()

    def _hand_on(self, name: str, connection: socket.socket, head: bytes) -> None:
        for _ in range(2):
            if name not in self.sessions:
                self.sessions[name] = self._fork(self.root / name, connection)
            try:
                socket.send_fds(self.sessions[name][1], [head], [connection.fileno()])
                return
            except OSError:  # its process has ended; the store is still there
                self._end(name)

    def _fork(self, folder: Path, first: socket.socket) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = os.fork()
        if process:
            theirs.close()
            ours.setblocking(False)  # a session that takes nothing holds nobody up
            return process, ours
        try:
            for other in (ours, self.listener, first, *self.heads, *(channel for _, channel in self.sessions.values())):
                other.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for limit, most in (("FSIZE", _FILE_BYTES), ("DATA", _MEMORY_BYTES), ("CORE", 0)):
                resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))
            os.setpgid(0, 0)
            os.chdir(folder)
            serve = self.begin(folder)
            while True:
                head, handles, _, _ = socket.recv_fds(theirs, 2 * _LONGEST_HEAD, 1)
                if not handles:
                    break
                serve(socket.socket(fileno=handles[0]), head)
        finally:
            os._exit(0)

    def _end(self, name: str) -> None:
        process, channel = self.sessions.pop(name)
        channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)

    def _tidy(self) -> None:
        for name in [name for name in self.sessions if not (self.root / name).is_dir()]:
            self._end(name)
        now = time.monotonic()
        for connection in [one for one, (since, _) in self.heads.items() if now - since > _HEAD_SECONDS]:
            del self.heads[connection]
            connection.close()


class _Handler(WSGIRequestHandler):
    """Answers one request, of which the head was read before."""

    def __init__(self, connection: socket.socket, head: bytes, app: Any) -> None:
        self.connection, self.app = connection, app
        self.client_address, self.request_version = ("127.0.0.1", 0), "HTTP/1.0"
        self.rfile = io.BufferedReader(_After(head, connection), _LONGEST_HEAD)
        self.wfile: Any = io.BytesIO()
        self.server = self  # type: ignore[assignment]
        host, port = connection.getsockname()[:2]
        self.base_environ = {
            **{"SERVER_NAME": host, "SERVER_PORT": str(port), "GATEWAY_INTERFACE": "CGI/1.1"},
            **{"REMOTE_HOST": "", "CONTENT_LENGTH": "", "SCRIPT_NAME": ""},
        }
        self.raw_requestline = self.rfile.readline(_LONGEST_HEAD)
        if self.parse_request():
            answer: SimpleHandler = ServerHandler(self.rfile, self.wfile, sys.stderr, self.get_environ(), False, False)
            answer.request_handler = self  # type: ignore[attr-defined]
            answer.run(app)
        connection.sendall(self.wfile.getvalue())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what a policy asks for is in the episode."""


class _After(io.RawIOBase):
    """Bytes that were read, then those of the connection."""

    def __init__(self, head: bytes, connection: socket.socket) -> None:
        self._head, self._connection = head, connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            return self._connection.recv_into(buffer)
        count = min(len(buffer), len(self._head))
        buffer[:count], self._head = self._head[:count], self._head[count:]
        return count


def wsgi_session(make: Callable[[Path], Any]) -> Callable[[Path], Serve]:
    """Return what serves a session by a WSGI app, which `make` gives for its folder."""

    def begin(folder: Path) -> Serve:
        app = make(folder)

        def serve(connection: socket.socket, head: bytes) -> None:
            connection.settimeout(_HEAD_SECONDS)
            with connection, contextlib.suppress(OSError):
                _Handler(connection, head, app)

        return serve

    return begin


def command_session(command: list[str], names: dict[str, str]) -> Callable[[Path], Serve]:
    """Return what serves a session by a server of its own, started by a command with {port}, {store} and the like."""

    def begin(folder: Path) -> Serve:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        values = {**names, "port": str(port), "folder": str(folder), "python": sys.executable}
        values["store"] = str(folder / names["store"])
        words = [re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), word) for word in command]
        with open(folder / LOG, "wb") as log:
            started = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)

        def serve(connection: socket.socket, head: bytes) -> None:
            threading.Thread(target=_relay, args=(connection, head, port, started), daemon=True).start()

        return serve

    return begin


def _relay(connection: socket.socket, head: bytes, port: int, started: subprocess.Popen[bytes]) -> None:
    with connection, contextlib.suppress(OSError):
        for wait in range(300):
            with contextlib.suppress(ConnectionRefusedError):  # the server is on its way up
                server = socket.create_connection(("127.0.0.1", port))
                break
            if started.poll() is not None:
                return
            time.sleep(0.02 if wait < 100 else 0.1)
        else:
            return
        with server:
            server.sendall(head)
            back = threading.Thread(target=_pump, args=(server, connection), daemon=True)
            back.start()
            _pump(connection, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
