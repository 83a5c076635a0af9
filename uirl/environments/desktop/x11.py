"""One connection to an X server: input by XTest, windows and their titles, in the core protocol over a private socket.

Libraries look for the socket where everybody finds it, wait for an answer without a limit (python-xlib), or end the
process when the server does (Xlib). What is needed here is nine requests.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from uirl.errors import EnvironmentFailure

COOKIE = b"MIT-MAGIC-COOKIE-1"
BUTTONS = {"left": 1, "middle": 2, "right": 3}
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
KEYSYMS = {
    "ctrl": 0xFFE3, "alt": 0xFFE9, "shift": 0xFFE1, "meta": 0xFFEB, "enter": 0xFF0D, "tab": 0xFF09, "escape": 0xFF1B,
    "backspace": 0xFF08, "delete": 0xFFFF, "insert": 0xFF63, "space": 0x20, "home": 0xFF50, "end": 0xFF57,
    "pageup": 0xFF55, "pagedown": 0xFF56, "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54,
    "\n": 0xFF0D, "\t": 0xFF09, **{f"f{number}": 0xFFBD + number for number in range(1, 13)},
}  # fmt: skip
"""Names of `uirl.environments.ui.keys`, and the two characters that are keys."""
_PRESS_KEY, _RELEASE_KEY, _PRESS, _RELEASE, _MOVE = 2, 3, 4, 5, 6
_SHIFT = KEYSYMS["shift"]
MOST_PROPERTY = 4096
"""Bytes of a window's property that are read: a program decides how long it is."""


class DisplayLost(EnvironmentFailure):
    """The X server, or the sandbox with the programs, is gone or does not answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window that the window manager manages."""

    id: int
    title: str
    dialog: bool
    box: tuple[int, int, int, int]
    """Left, top, width and height without the frame."""


def keysym_of(key: str) -> int:
    """Return the keysym of a key's name or of a character."""
    if key in KEYSYMS:
        return KEYSYMS[key]
    code = ord(key)
    return code if code < 0x100 else 0x01000000 | code


class Connection:
    """A client of the X server on a socket. For one thread."""

    def __init__(self, path: Path, cookie: bytes, timeout: float) -> None:
        """Connect; `timeout`: seconds in which the server has to answer. Raises DisplayLost."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._sent, self._atoms = 0, dict[str, int]()
        with self._answered():
            self._socket.connect(str(path))
            name, data = _padded(COOKIE), _padded(cookie)
            self._socket.sendall(struct.pack("<BxHHHH2x", ord("l"), 11, 0, len(COOKIE), len(cookie)) + name + data)
            status, words = struct.unpack("<B5xH", self._read(8))
            setup = self._read(4 * words)
        if status != 1:
            raise DisplayLost(f"the X server refused the connection: {setup[:80]!r}")
        vendor, formats, low, high = struct.unpack_from("<16xH3xB4xBB", setup)
        screen = 32 + len(_padded(bytes(vendor))) + 8 * formats
        (self.root,) = struct.unpack_from("<I", setup, screen)
        self._held: list[tuple[int, int]] = []
        present, self._xtest = struct.unpack_from("<8xBB", self._ask(98, 0, struct.pack("<H2x", 5) + _padded(b"XTEST")))
        if not present:
            raise DisplayLost("the X server has no XTEST; expected Xvfb as Debian builds it")
        self._codes: dict[int, tuple[int, bool]] = {}
        self._spare = self._read_keyboard(low, high)

    def close(self) -> None:
        self._socket.close()

    def sync(self) -> None:
        """Return when the server has carried out everything that was sent."""
        self._ask(43, 0, b"")

    def move(self, x: int, y: int) -> None:
        self._fake(_MOVE, 0, x, y)

    def button(self, button: str, down: bool) -> None:
        self._hold(_PRESS, BUTTONS[button], down)

    def key(self, key: str, down: bool) -> None:
        """Press a key by its name or character, or let it go. Raises KeyError where the keyboard has no such key."""
        self._hold(_PRESS_KEY, self._codes[keysym_of(key)][0], down)

    def wheel(self, direction: str, notches: int) -> None:
        for _ in range(notches):
            self._fake(_PRESS, WHEEL[direction])
            self._fake(_RELEASE, WHEEL[direction])

    def release_all(self) -> None:
        """Let go of everything that is held."""
        for kind, detail in self._held[::-1]:
            self._fake(kind + 1, detail)
        self._held = []

    def learn(self, text: str) -> bool:
        """Give every character of a text a key; return whether the programs have to be told of new ones first.

        Raises ValueError where the keyboard has no room for so many different ones.
        """
        new = [code for code in dict.fromkeys(map(keysym_of, text)) if code not in self._codes]
        if len(new) > len(self._spare):
            raise ValueError(f"the keyboard has room for {len(self._spare)} more characters; got {len(new)} new ones")
        for code in new:
            keycode = self._spare.pop()
            self._send(100, 1, struct.pack("<BB2xII", keycode, 2, code, code))
            self._codes[code] = keycode, False
        return bool(new)

    def type(self, text: str) -> None:
        """Press the keys of a text that `learn` was told."""
        shift, _ = self._codes[_SHIFT]
        for character in text:
            keycode, shifted = self._codes[keysym_of(character)]
            if shifted:
                self._fake(_PRESS_KEY, shift)
            self._fake(_PRESS_KEY, keycode)
            self._fake(_RELEASE_KEY, keycode)
            if shifted:
                self._fake(_RELEASE_KEY, shift)

    def windows(self) -> list[Window]:
        """Return the windows that the window manager manages, the oldest first."""
        listed = self._property(self.root, "_NET_CLIENT_LIST")
        return [w for w in map(self._window, _numbers(listed)) if w is not None]

    def _window(self, window: int) -> Window | None:
        geometry = self._ask(14, 0, struct.pack("<I", window), missing=True)
        origin = self._ask(40, 0, struct.pack("<IIhh", window, self.root, 0, 0), missing=True)
        if not geometry or not origin:
            return None  # it is gone by now
        left, top = struct.unpack_from("<12xhh", origin)
        width, height = struct.unpack_from("<16xHH", geometry)
        title = self._property(window, "_NET_WM_NAME").decode("utf-8", "replace")
        kinds = _numbers(self._property(window, "_NET_WM_WINDOW_TYPE"))
        transient = any(_numbers(self._property(window, "WM_TRANSIENT_FOR")))
        return Window(
            window, title, transient or self._atom("_NET_WM_WINDOW_TYPE_DIALOG") in kinds, (left, top, width, height)
        )

    def is_managed(self) -> bool:
        """Return whether a window manager is there."""
        return bool(self._property(self.root, "_NET_SUPPORTING_WM_CHECK"))

    def move_window(self, window: int, x: int, y: int) -> None:
        """Ask the window manager to put the frame of a window there."""
        self._tell_manager(window, "_NET_MOVERESIZE_WINDOW", 0x300 | 1, x, y)

    def close_window(self, window: int) -> None:
        """Ask the window manager to close a window, as a press on its cross does."""
        self._tell_manager(window, "_NET_CLOSE_WINDOW")

    def _tell_manager(self, window: int, message: str, *values: int) -> None:
        event = struct.pack("<BBHII5i", 33, 32, 0, window, self._atom(message), *(*values, 0, 0, 0, 0, 0)[:5])
        self._send(25, 0, struct.pack("<II", self.root, 0x180000) + event)

    def _property(self, window: int, name: str) -> bytes:
        request = struct.pack("<IIIII", window, self._atom(name), 0, 0, MOST_PROPERTY // 4)
        reply = self._ask(20, 0, request, missing=True)
        if not reply:
            return b""
        width, length = reply[1] // 8, struct.unpack_from("<16xI", reply)[0]
        return reply[32 : 32 + width * length]

    def _atom(self, name: str) -> int:
        if name not in self._atoms:
            reply = self._ask(16, 0, struct.pack("<H2x", len(name)) + _padded(name.encode()))
            (self._atoms[name],) = struct.unpack_from("<8xI", reply)
        return self._atoms[name]

    def _read_keyboard(self, low: int, high: int) -> list[int]:
        """Find the key of every keysym; return the codes that no key has."""
        reply = self._ask(101, 0, struct.pack("<BB2x", low, high - low + 1))
        each, spare = reply[1], []
        symbols = struct.unpack_from(f"<{each * (high - low + 1)}I", reply, 32)
        for keycode in range(low, high + 1):
            of_key = symbols[each * (keycode - low) : each * (keycode - low + 1)]
            if not any(of_key):
                spare.append(keycode)
            for level, symbol in enumerate(of_key[:2]):
                self._codes.setdefault(symbol, (keycode, level == 1))
        return spare

    def _hold(self, kind: int, detail: int, down: bool) -> None:
        self._fake(kind if down else kind + 1, detail)
        with contextlib.suppress(ValueError):
            self._held.remove((kind, detail))
        if down:
            self._held.append((kind, detail))

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        self._send(self._xtest, 2, struct.pack("<BB2xII8xhh8x", kind, detail, 0, self.root, x, y))

    def _send(self, opcode: int, data: int, body: bytes) -> None:
        with self._answered():
            self._socket.sendall(struct.pack("<BBH", opcode, data, 1 + len(body) // 4) + body)
        self._sent = self._sent + 1 & 0xFFFF

    def _ask(self, opcode: int, data: int, body: bytes, missing: bool = False) -> bytes:
        """Return the reply to a request; empty where `missing` and what it asks about does not exist."""
        self._send(opcode, data, body)
        with self._answered():
            while True:
                packet = self._read(32)
                kind, number = packet[0] & 0x7F, struct.unpack_from("<H", packet, 2)[0]
                if kind in (1, 35):
                    packet += self._read(4 * struct.unpack_from("<I", packet, 4)[0])
                if kind in (0, 1) and number == self._sent:
                    break
        if kind == 0 and not missing:
            raise DisplayLost(f"the X server refused request {opcode} with error {packet[1]}")
        return packet if kind else b""

    def _read(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise DisplayLost("the X server closed the connection")
            parts += part
        return parts

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DisplayLost(f"the X server does not answer: {error}") from error


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _numbers(data: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])


def authority(cookie: bytes) -> bytes:
    """Return a file of authority that has one cookie, for every display."""
    fields: Iterable[bytes] = (b"", b"", COOKIE, cookie)
    return struct.pack(">H", 65535) + b"".join(struct.pack(">H", len(field)) + field for field in fields)
