"""A room: files that stay between commands, each of which runs behind walls of its own and leaves no process behind.

Two sandboxes of bubblewrap, one within the other. The outer one holds a small disk in memory and runs nothing of the
policy. Each command gets an inner one with its own processes: those that the policy started are gone before anything
else runs on the same files.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.walls import (
    ALONE,
    START_SECONDS,
    SYSTEM,
    bubblewrap,
    end_tree,
    entering,
    number_told,
    owns_nothing,
    saying,
    showing,
    tree,
)
from uirl.tools.sandbox.watch import Ran, Watch

NEEDED = ("bwrap", "prlimit", "nsenter", "mount", "tar", "bash")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_FILES, OWN_MB = 50_000, 128
"""Files of an episode; memory for what is put beside them, as tests are."""
MOST_PROCESSES = 64
_SHOWN = (*SYSTEM, "/etc/ssl", "/etc/magic", "/etc/mime.types")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_HOSTS = b"127.0.0.1 localhost room\n"


class Room:
    """Files of one episode. Its folders `tops` can be written, all else is the system's and read-only."""

    def __init__(self, tops: Iterable[str], *, memory_mb: int, disk_mb: int) -> None:
        """Raise ConfigError where programs are missing, EnvironmentFailure where the walls do not stand."""
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing:
            raise ConfigError(
                f"a shell needs {', '.join(missing)}; on Debian: apt-get install bubblewrap util-linux tar"
            )
        self._tops = tuple(dict.fromkeys(tops))
        self._memory = memory_mb << 20
        self._user = owns_nothing()
        command = [*bubblewrap({}, "--uid", "0", "--gid", "0"), *showing(_SHOWN)]
        command += ["--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--dir", "/room"]
        with saying() as (told, said):
            # It ends with its input, which is ours: also where this process is killed.
            self._holder: subprocess.Popen[bytes] = subprocess.Popen(
                [*command, "--info-fd", str(said), "--", "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(said,),
                cwd="/",
                start_new_session=True,
                **self._user,
            )
        try:
            inside = number_told(told)
            if inside is None:
                raise EnvironmentFailure("the sandbox did not start; does bubblewrap work for this user?")
            self._inside = inside
            self._furnish(disk_mb)
        except BaseException:
            self.close()
            raise

    def put(self, files: Mapping[str, Path | bytes | None], folder: str = "tops") -> None:
        """Write files (path -> a file, a link, a folder, content, or None for a new folder), owned by whoever runs the
        commands: below / of what they see, or into another folder of the room, which they only see with `also`."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, source in files.items():
                name = f"{folder}/{path}".strip("/")
                entry = archive.gettarinfo(str(source), name) if isinstance(source, Path) else tarfile.TarInfo(name)
                if source is None:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mode = 0o644 if isinstance(source, bytes) else entry.mode | (0o700 if entry.isdir() else 0o600)
                if isinstance(source, bytes):
                    entry.size = len(source)
                    archive.addfile(entry, io.BytesIO(source))
                elif isinstance(source, Path) and entry.isreg():
                    with source.open("rb") as opened:
                        archive.addfile(entry, opened)
                else:
                    archive.addfile(entry)
        self._outside("tar", "-x", "-C", "/room", "--no-same-owner", input=packed.getvalue())

    def run(
        self,
        script: str,
        seconds: float,
        *,
        folder: str = "/",
        environment: Mapping[str, str] | None = None,
        also: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a script of bash and return what it printed. Afterwards none of its processes is left.

        `also`: path inside -> folder of the room that is shown there too. Raises EnvironmentFailure where the sandbox
        itself is gone; nothing within it can bring that about.
        """
        known = {"HOME": "/root", "LANG": "C.UTF-8", "TZ": "UTC", "TERM": "dumb", "PATH": PATH, **(environment or {})}
        _, *walls = bubblewrap(known, *ALONE, "--uid", "0", "--gid", "0", "--hostname", "room")
        command = ["bwrap", *walls]  # the one that is found within
        command += ["--proc", "/proc", "--dir", "/dev", "--ro-bind", "/room/own/etc", "/etc"]
        command += showing(_SHOWN, _DEVICES)
        for inside, link in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            command += ["--symlink", f"/proc/self/fd{link}", f"/dev/{inside}"]
        command += ["--bind", "/room/tops/tmp", "/dev/shm"]
        for inside, source in {**{f"/{top}": f"tops/{top}" for top in self._tops}, **(also or {})}.items():
            command += ["--bind", f"/room/{source}", inside]
        told, begins = os.pipe()
        command += ["--remount-ro", "/", "--chdir", "/", "--json-status-fd", str(begins), "--"]
        limits = [f"--nproc={MOST_PROCESSES}", f"--data={self._memory}", f"--fsize={self._memory}", "--core=0"]
        enter = 'cd -- "$1" 2>/dev/null; eval "$2"'
        command += ["prlimit", *limits, "bash", "-c", enter, "bash", folder, script]
        with open(told, "rb", buffering=0) as said:
            try:
                process: subprocess.Popen[bytes] = subprocess.Popen(
                    [*entering(self._inside_cat()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(begins,),
                    cwd="/",
                    start_new_session=True,
                    **self._user,
                )
            finally:
                os.close(begins)
            watch = Watch(process, seconds, lambda: self._too_much(process.pid))
            try:
                watch.wait()
            finally:
                end_tree(process)
            output = watch.output.decode(errors="replace")
            if b"child-pid" not in (said.read(1000) or b""):
                raise EnvironmentFailure(f"the sandbox of the shell is gone, or does not start: {output[-300:]}")
        stopped = "stopped: its time was over" if watch.late else watch.stopped
        return Ran(output, process.returncode, watch.seconds, stopped)

    def read(self, path: str, limit: int) -> bytes | None:
        """Return a file of the room, at most `limit` bytes; None: there is none, or it is no plain file."""
        try:
            file = os.open(f"/proc/{self._inside_cat()}/root/room/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(file, "rb") as opened:
            return opened.read(limit) if stat.S_ISREG(os.fstat(file).st_mode) else None

    def close(self) -> None:
        """End every process and free the files. Twice is fine."""
        end_tree(self._holder)

    def _furnish(self, disk_mb: int) -> None:
        # Two disks: what the policy fills leaves room for what is put in at the end.
        script = (
            "mount -t tmpfs -o mode=755,$1 room /room && mkdir /room/own && mount -t tmpfs -o mode=755,$2 own /room/own"
        )
        sizes = (f"size={disk_mb}m,nr_inodes={MOST_FILES}", f"size={OWN_MB}m,nr_inodes={MOST_FILES}")
        self._outside("sh", "-c", script, "sh", *sizes)
        etc: dict[str, Path | bytes | None] = {"passwd": _PASSWD, "group": b"root:x:0:\n", "hosts": _HOSTS}
        for path in map(Path, _SHOWN):  # where they are mounted, in a folder that is read-only by then
            if path.parent == Path("/etc") and path.exists():
                etc[path.name] = None if path.is_dir() else b""
        self.put({f"own/etc/{name}": content for name, content in etc.items()}, "")
        self.put(dict.fromkeys(self._tops))

    def _inside_cat(self) -> int:
        """Return the process that stands in the outer sandbox."""
        end = time.monotonic() + START_SECONDS
        while self._holder.poll() is None and time.monotonic() < end:
            for process in tree(self._inside):
                if process != self._inside:
                    return process
            time.sleep(0.005)
        raise EnvironmentFailure("the sandbox of the shell is gone; did somebody end it, or had the machine no memory?")

    def _too_much(self, process: int) -> str | None:
        """Return that a command and all that it started hold more memory than they may; None: they do not."""
        used = sum(map(_resident, tree(process)))
        return f"stopped: more than {self._memory >> 20} MB of memory" if used > self._memory else None

    def _outside(self, *command: str, input: bytes = b"") -> None:
        """Run a command of ours in the outer sandbox, before or after those of the policy."""
        done = subprocess.run(
            [*entering(self._inside_cat()), *command],
            input=input,
            capture_output=True,
            check=False,
            cwd="/",
            env={"PATH": PATH},
            timeout=START_SECONDS,
            **self._user,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-300:]
            raise EnvironmentFailure(f"{command[0]} in the sandbox: {said.strip()}; is disk_mb too small?")


def _resident(process: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
