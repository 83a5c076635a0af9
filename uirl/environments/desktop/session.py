"""A desktop: an X server and, in a sandbox of its own for each episode, a window manager and real programs."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import secrets
import shutil
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uirl.environments.desktop.x11 import Connection, DisplayLost, authority
from uirl.errors import ConfigError
from uirl.runtime.assets import read_asset
from uirl.runtime.scratch import ScratchFolder, home_with_room, sweep
from uirl.runtime.walls import SYSTEM, bubblewrap, end_tree, entering, number_told, owns_nothing, saying, showing, tree

if TYPE_CHECKING:
    from PIL.Image import Image

PROGRAMS = ("openbox", "mousepad", "galculator", "pcmanfm", "gnumeric")
NEEDED = ("bwrap", "prlimit", "nsenter", "env", "Xvfb", *PROGRAMS)
OPTIONS = {"mousepad": ("--disable-server",)}
"""Program -> its arguments before files."""
HOME = "/home/user"
PLACE = 60, 40
DATE = 1_714_557_600
"""Of the files of a task, in seconds: 2024-05-01, 10 o'clock."""
_SAID, _SCRATCH = "{said}", "uirl-desktop-"
HOME_BYTES, TEMPORARY_BYTES = 32 << 20, 8 << 20
"""Of the files that an episode can hold: they lie in memory."""
SERVER_MEMORY, PROGRAM_MEMORY = 512 << 20, 1 << 30
"""Bytes of data (`RLIMIT_DATA`) of the X server and of each program."""
MOST_PROCESSES = 64
QUIET = 0.035
"""Seconds without a move of any thread after which a desktop is still: two frames of GTK's clock, and a little."""
REST = 0.3
"""The same at the end of an episode: a button of GTK that a key pressed acts after a quarter of a second."""
LOOK = 0.004
LONGEST_WAIT = 3.0
"""Seconds after which a desktop that does not come to rest is shown as it is."""
START_LIMIT = 20.0
ANSWER_LIMIT = 10.0
MOST_FILES, LONGEST_FILE, DEEPEST = 2000, 4 << 20, 16
"""Of a home, when it is read: more is the policy's doing."""
_SHOWN = ("/usr/lib", "/usr/lib64", "/usr/share", "/etc/ld.so.cache", "/var/cache/fontconfig")
_LINKS = [part for name in ("bin", "sbin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")]
_ENVIRONMENT = {
    "HOME": HOME,
    "PATH": "/usr/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "DISPLAY": ":0",
    "XAUTHORITY": "/etc/desktop/authority",
    "XDG_RUNTIME_DIR": "/tmp",
    "XDG_CONFIG_DIRS": "/etc/desktop",
    "XDG_DATA_DIRS": "/usr/share",
    "FONTCONFIG_FILE": "/etc/desktop/fonts.xml",
    "GTK2_RC_FILES": "/etc/desktop/gtkrc.ini",
    "GSETTINGS_BACKEND": "keyfile",
    "GIO_USE_VFS": "local",
    "GIO_USE_VOLUME_MONITOR": "unix",
    "GTK_OVERLAY_SCROLLING": "0",
    "NO_AT_BRIDGE": "1",
    "DBUS_SESSION_BUS_ADDRESS": "disabled:",
}
_SETTINGS = ("rc.xml", "menu.xml", "fonts.xml", "gtkrc.ini", "gtk-3.0/settings.ini")


def find_programs() -> list[str]:
    """Return the paths of what a desktop needs. Raises ConfigError with the remedy where something is missing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"desktops need {', '.join(missing)}; run scripts/install_desktop.sh, or on Debian: apt-get install "
            "xvfb openbox mousepad galculator pcmanfm gnumeric bubblewrap fonts-dejavu-core"
        )
    return [shutil.which(name) or name for name in NEEDED]


class Desktop:
    """An X server with a window manager and programs. Belongs to the thread that started it."""

    def __init__(self, size: tuple[int, int], files: Mapping[str, bytes]) -> None:
        """Start a desktop of `size` pixels without programs, with `files` (path in the home -> content).

        Raises DisplayLost where something does not start.
        """
        self.size = size
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._connection: Connection | None = None
        self._picture: mmap.mmap | None = None
        sweep(_SCRATCH, home := home_with_room(8 * size[0] * size[1]))  # twice the picture
        self._scratch = ScratchFolder(_SCRATCH, home)
        self.user = owns_nothing()
        """As `subprocess` takes it."""
        try:
            cookie = self._start_server()
            self._first = self._start_session(files)
            self._connection = Connection(self._scratch.path / "x" / "X0", cookie, ANSWER_LIMIT)
            self._furnish(files)
            # What the sandboxes hold of it stays theirs; of a run that is killed nothing is left.
            self._scratch.close()
        except BaseException:
            self.close()
            raise

    def open(self, program: str, *paths: str, place: tuple[int, int] = PLACE) -> None:
        """Start a program with files of the home and return when its window stands at `place` and is drawn.

        Raises DisplayLost where it opens none.
        """
        before = {window.id for window in self.input.windows()}
        command = [program, *OPTIONS.get(program, ()), *(f"{HOME}/{path}" for path in paths)]
        self._run(program, PROGRAM_MEMORY, self.inside(*command))
        end = time.monotonic() + START_LIMIT
        while not (new := [window for window in self.input.windows() if window.id not in before]):
            if time.monotonic() > end or self._processes[program].poll() is not None:
                raise DisplayLost(f"{program} opened no window within {START_LIMIT:g} s, or ended")
            time.sleep(LOOK)
        self.input.move_window(new[0].id, *place)
        self.settle()

    @property
    def input(self) -> Connection:
        """The keyboard, the mouse and the windows. Raises DisplayLost where the session has ended."""
        if self._connection is None:
            raise DisplayLost("the desktop is closed")
        for what in ("the X server", "the window manager"):
            if self._processes[what].poll() is not None:
                raise DisplayLost(f"{what} ended with status {self._processes[what].returncode}")
        return self._connection

    def settle(self, still: float = QUIET) -> bool:
        """Wait until no thread has moved for `still` seconds; return False where that takes more than `LONGEST_WAIT`.

        It is asked of the kernel how often each thread ran: a busy machine makes it longer, and not wrong.
        """
        end, quiet, before = time.monotonic() + LONGEST_WAIT, 0.0, ()
        self.input.sync()
        while time.monotonic() < end:
            now = tuple(self._moves())
            if now != before or any(state in "RD" for state, _ in now):
                before, quiet = now, time.monotonic() + still
            elif time.monotonic() >= quiet:
                return True
            time.sleep(LOOK)
        return False

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs `command` behind the walls, as one more program of the session."""
        known = (f"{name}={value}" for name, value in _ENVIRONMENT.items())
        enter = [*entering(self._inside()), "env", "-i", f"--chdir={HOME}", *known]
        return [*enter, "prlimit", f"--nproc={MOST_PROCESSES}", *command]

    def picture(self) -> Image:
        """Return what the screen shows."""
        from PIL import Image

        assert self._picture is not None
        (header,) = struct.unpack_from(">I", self._picture)
        colours, stride = struct.unpack_from(">76xI", self._picture)[0], struct.unpack_from(">48xI", self._picture)[0]
        start = header + 12 * colours
        pixels = self._picture[start : start + stride * self.size[1]]
        return Image.frombytes("RGB", self.size, pixels, "raw", "BGRX", stride)

    def read_home(self) -> dict[str, bytes | None]:
        """Return path -> content of the files in the home, hidden ones too; None: it is no file, or too long. An empty
        folder is a path with / at its end.

        A link is never followed, and what a program did to the folder meanwhile is an outcome like any other.
        """
        found: dict[str, bytes | None] = {}
        home = os.open(f"/proc/{self._inside()}/root{HOME}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            _read_folder(home, "", found)
        finally:
            os.close(home)
        return found

    def close(self) -> None:
        """End every process and free the folder."""
        if self._connection is not None:
            self._connection.close()
        if self._picture is not None:
            self._picture.close()
        self._connection = self._picture = None
        for process in self._processes.values():
            end_tree(process)
        self._processes = {}
        self._scratch.close()

    def _start_server(self) -> bytes:
        """Start the X server; return the cookie that it asks for."""
        cookie, folder = secrets.token_bytes(16), self._scratch.path
        (folder / "x").mkdir()
        (folder / "fb").mkdir()
        (folder / "authority").write_bytes(authority(cookie))
        if self.user:
            for path in (folder, folder / "x", folder / "fb", folder / "authority"):
                os.chown(path, self.user["user"], self.user["group"])
        command = bubblewrap(
            {"PATH": "/usr/bin"}, "--die-with-parent", "--uid", "0", "--gid", "0", "--dev", "/dev", "--tmpfs", "/tmp"
        )
        command += [*showing(SYSTEM), "--ro-bind", str(folder / "authority"), "/authority"]
        command += ["--bind", str(folder / "x"), "/tmp/.X11-unix", "--bind", str(folder / "fb"), "/fb", "--"]
        command += ["Xvfb", ":0", "-screen", "0", "{}x{}x24".format(*self.size), "-nolisten", "tcp", "-dpi", "96"]
        command += ["-noreset", "-auth", "/authority", "-fbdir", "/fb", "-displayfd", _SAID]
        self._started("the X server", SERVER_MEMORY, command)
        with open(folder / "fb" / "Xvfb_screen0", "rb") as file:
            self._picture = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return cookie

    def _start_session(self, files: Mapping[str, bytes]) -> int:
        """Start the window manager behind the walls that hold the programs too; return the first process there."""
        written = {f"{HOME}/{path}": content for path, content in files.items()}
        written |= {f"/etc/desktop/{name}": read_asset(__file__, Path(name).name).encode() for name in _SETTINGS}
        command = bubblewrap(_ENVIRONMENT, "--die-with-parent", "--uid", "1000", "--gid", "1000", *_LINKS)
        command += ["--dir", "/usr/bin"]
        programs = filter(None, map(shutil.which, ("prlimit", "env", *PROGRAMS)))
        command += showing((*_SHOWN, *programs), ("null", "urandom"))
        command += ["--ro-bind", str(self._scratch.path / "authority"), "/etc/desktop/authority"]
        command += ["--size", str(TEMPORARY_BYTES), "--tmpfs", "/tmp", "--size", str(HOME_BYTES), "--tmpfs", HOME]
        command += ["--dir", f"{HOME}/.config", "--ro-bind", str(self._scratch.path / "x" / "X0"), "/tmp/.X11-unix/X0"]
        with contextlib.ExitStack() as held:
            descriptors = []
            for path, content in written.items():
                file = held.enter_context(tempfile.TemporaryFile())
                file.write(content)
                file.seek(0)
                descriptors.append(file.fileno())
                command += ["--file", str(file.fileno()), path]
            command += ["--chdir", HOME, "--remount-ro", "/", "--info-fd", _SAID, "--"]
            command += ["prlimit", f"--nproc={MOST_PROCESSES}", "openbox", "--sm-disable"]
            command += ["--config-file", "/etc/desktop/rc.xml"]
            return self._started("the window manager", PROGRAM_MEMORY, command, descriptors)

    def _furnish(self, files: Mapping[str, bytes]) -> None:
        """Wait for the window manager, and give the files a time that does not depend on the day."""
        end = time.monotonic() + START_LIMIT
        while not self.input.is_managed():
            if time.monotonic() > end:
                raise DisplayLost(f"the window manager did not start within {START_LIMIT:g} s")
            time.sleep(LOOK)
        for path in sorted({*files, *(str(folder) for file in files for folder in Path(file).parents)}):
            os.utime(f"/proc/{self._inside()}/root{HOME}/{path}", (DATE, DATE))

    def _started(self, what: str, memory: int, command: Sequence[str], descriptors: Sequence[int] = ()) -> int:
        """Run what writes a number into the descriptor that it is told as `_SAID`; return that number."""
        with saying() as (told, said):
            self._run(what, memory, [str(said) if part == _SAID else part for part in command], (said, *descriptors))
        number = number_told(told, START_LIMIT)
        if number is None:
            raise DisplayLost(f"{what} did not start within {START_LIMIT:g} s, or ended")
        return number

    def _run(self, what: str, memory: int, command: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """Start a program within limits, as a user that owns nothing."""
        self._processes[what] = subprocess.Popen(
            ["prlimit", f"--data={memory}", "--core=0", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            cwd="/",
            start_new_session=True,
            **self.user,
        )

    def _inside(self) -> int:
        """Return a process that sees the home as the programs do."""
        for process in tree(self._first):
            if process != self._first:
                return process
        raise DisplayLost("the window manager is gone")

    def _moves(self) -> Iterator[tuple[str, str]]:
        """Yield the state of every thread, and how often it gave the processor up."""
        for process in itertools.chain.from_iterable(tree(one.pid) for one in self._processes.values()):
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{process}/task"):
                    told = Path(f"/proc/{process}/task/{thread}/status").read_text("ascii", "replace")
                    state = told[told.index("\nState:\t") + 8]
                    yield state, thread + told[told.index("\nvoluntary_ctxt_switches") :]


def _read_folder(folder: int, path: str, found: dict[str, bytes | None]) -> None:
    names = sorted(os.listdir(folder))
    if not names and path:
        found[path] = b""
    for name in names:
        if len(found) >= MOST_FILES or path.count("/") >= DEEPEST:
            found[path + "..."] = None
            return
        with contextlib.suppress(OSError):  # it went meanwhile
            kind = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(kind.st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    _read_folder(inner, f"{path}{name}/", found)
                finally:
                    os.close(inner)
                continue
            found[path + name] = None
            if stat.S_ISREG(kind.st_mode) and kind.st_size <= LONGEST_FILE:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    found[path + name] = opened.read(LONGEST_FILE + 1)
