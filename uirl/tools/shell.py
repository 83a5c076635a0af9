"""`ShellTool`: a shell whose files stay between calls, behind walls."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from uirl.tools.base import Tool, ToolError
from uirl.tools.sandbox.room import Ran, Room

LONGEST = 100_000
"""Bytes of a script: the kernel takes no longer argument than 128 KiB."""
USUAL = ("app", "tmp", "root", "home", "workspace", "data", "opt", "srv", "var", "mnt", "logs")


class ShellTool(Tool):
    """Runs a script of bash; the result is what it printed.

    Files stay for the episode, processes end with their call. There is no network and nothing of this machine but its
    system folders, read-only; time, memory, processes, files and output have limits. A status other than 0 is told
    behind the output; breaking a limit is a `ToolError`.
    """

    name = "shell"
    description = (
        "Runs a script of bash and returns what it prints. Files stay between calls, processes end with their call. "
        "No network, no input."
    )

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        total_seconds: float | None = None,
        memory_mb: int = 1024,
        disk_mb: int = 256,
        folder: str = "/app",
        environment: Mapping[str, str] | None = None,
        tops: Iterable[str] = (),
    ) -> None:
        """Prepare a shell.

        Args:
            seconds: Of one call.
            total_seconds: Of all calls of an episode together; None: no limit.
            memory_mb: Of all processes of a call together.
            disk_mb: Of all files of an episode, which lie in memory.
            folder: Where each call begins.
            environment: Variables of each call.
            tops: Folders of / that can be written beside the usual ones.
        """
        self._options: dict[str, Any] = {"seconds": seconds, "total_seconds": total_seconds, "memory_mb": memory_mb}
        self._options |= {"disk_mb": disk_mb, "folder": folder, "environment": environment, "tops": tuple(tops)}
        self.seconds, self.total_seconds, self.folder = seconds, total_seconds, folder
        self.environment = dict(environment or {})
        self._tops = (*USUAL, *tops, *filter(None, [folder.strip("/").split("/")[0]]))
        self._memory_mb, self._disk_mb = memory_mb, disk_mb
        self.timeout = seconds + 90  # ours, the start included; the policy feels `seconds`
        self._room: Room | None = None
        self._lock = threading.Lock()
        self.deadline = math.inf
        """When calls end at the latest, by `time.monotonic`."""
        self.used = 0.0
        """Seconds that the calls of this episode took."""

    @property
    def room(self) -> Room:
        """The files of this episode; a fresh room the first time."""
        if self._room is None:
            self._room = Room(self._tops, memory_mb=self._memory_mb, disk_mb=self._disk_mb)
            self._room.put({self.folder: None} if self.folder.strip("/") else {})
        return self._room

    @property
    def left(self) -> float:
        """Seconds that are left for all further calls of this episode."""
        return math.inf if self.total_seconds is None else max(0.0, self.total_seconds - self.used)

    def execute(self, command: str) -> str:
        """Run a script.

        Args:
            command: The script.
        """
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            raise ToolError("the script holds half a character (a lone surrogate); expected whole ones") from None
        if "\0" in command or size > LONGEST:
            raise ToolError(f"the script holds a zero byte, or more than {LONGEST} bytes; write files in parts")
        with self._lock:
            seconds = min(self.seconds, self.left, self.deadline - time.monotonic())
            if seconds <= 0:
                raise ToolError("the time is over")
            ran = self.room.run(command, seconds, folder=self.folder, environment=self.environment)
            self.used += ran.seconds
        return _told(ran)

    def reset(self, seed: int | None = None) -> None:
        """Begin with fresh files."""
        self.close()
        self.used = 0.0

    def spawn(self) -> ShellTool:
        """Return a shell with files of its own."""
        return type(self)(**self._options)

    def close(self) -> None:
        """End the room with its files."""
        room, self._room = self._room, None
        if room is not None:
            room.close()


def _told(ran: Ran) -> str:
    output = ran.output.rstrip("\n")
    if ran.stopped is not None:
        raise ToolError(f"{output[-4000:]}\n{ran.stopped}".strip())
    status = f"(status {ran.status})" if ran.status else ""
    return "\n".join(filter(None, (output, status))) or "(no output)"
