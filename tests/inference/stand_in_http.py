"""A real HTTP server on a free port, for the stand-ins of model servers: threads, keep-alive, and faults on demand."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What goes back, and how it is spoiled."""

    body: Any = None
    """Bytes or str as they are; anything else as JSON."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Pause before the answer."""
    keep: float = 1.0
    """Share of the body that is sent before the connection breaks."""


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


class StandIn:
    """A server. Subclasses answer in `answer`; `faults` go out instead, one per request, while there are any."""

    def __init__(self) -> None:
        self.faults: deque[Answer] = deque()
        self.seen: list[Seen] = []
        self.broken: list[str] = []
        """What went wrong in here; a client that went away is among it."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # headers and body are two packets: the second would wait 40 ms for an answer
            )

            def setup(self) -> None:
                super().setup()
                stand_in._open.add(self.connection)

            def finish(self) -> None:
                stand_in._open.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                stand_in._serve(self)

            def do_GET(self) -> None:
                stand_in._serve(self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, *args: Any) -> None:
                stand_in.broken.append(repr(sys.exc_info()[1]))

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, seen: Seen) -> Answer:
        """What this server says to a request."""
        return Answer({"got": seen.body})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._open):
            # close alone would leave the thread that reads from it
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        raw = handler.rfile.read(length)
        seen = Seen(
            handler.command,
            handler.path,
            json.loads(raw) if raw else None,
            {name.lower(): value for name, value in handler.headers.items()},
        )
        with self._lock:
            self.seen.append(seen)
            fault = self.faults.popleft() if self.faults else None
        self._send(handler, fault or self.answer(seen))

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        time.sleep(answer.seconds)
        body = answer.body
        if not isinstance(body, bytes):
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
        if answer.keep < 1:
            handler.close_connection = True
        if answer.keep > 0:
            handler.send_response(answer.status)
            handler.send_header("content-length", str(len(body)))
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body[: int(len(body) * answer.keep)])
