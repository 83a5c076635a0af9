"""The process of an app: its packages, the sandbox around it, the folders of its sessions."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from uirl.environments.apps.host import LOG, TEMPLATE
from uirl.environments.apps.schema import HERE, App, read_app
from uirl.environments.apps.store import whole_store
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.files import cache_folder, storage_errors
from uirl.runtime.scratch import ScratchFolder, home_with_room, sweep
from uirl.runtime.walls import SYSTEM, bubblewrap, end_tree, python_and_library, showing, works

_LOG = logging.getLogger(__name__)
_SCRATCH = "uirl-app-"
_INSTALL_SECONDS, _START_SECONDS = 1800, 60.0
_BOOT = "import runpy, sys; sys.argv[1:] = [sys.argv[1]]; runpy.run_path({host!r}, run_name='__main__')"
_ROOM = 256 << 20


def packages_of(name: str, app: App) -> Path:
    """Return the folder of an app's packages, which pip fills the first time. Raises ConfigError where it cannot."""
    key = hashlib.sha256("\0".join((sys.version, *sorted(app.packages))).encode()).hexdigest()[:12]
    with contextlib.ExitStack() as stack:
        stack.enter_context(storage_errors(f"app {name}: no folder for its packages"))
        target = cache_folder("apps") / f"{Path(name).name}-{key}"
        lock = stack.enter_context(open(f"{target}.lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        work = target.with_name(f".{target.name}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if app.packages:
            _LOG.warning("app %s: pip brings %s into %s, once", name, ", ".join(app.packages), target)
            _install(name, app, work)
        work.rename(target)
    return target


def _install(name: str, app: App, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--target", str(folder), *app.packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except subprocess.TimeoutExpired:
        said = [f"nothing within {_INSTALL_SECONDS} s"]
    if said is not None:
        raise ConfigError(
            f"app {name}: pip could not bring its packages, it said {said!r}; expected an index that has "
            f"{', '.join(app.packages)}"
        )


class Server:
    """The process of one app, for all sessions of this process that play it. It ends with this process."""

    address: str
    """http://127.0.0.1:port."""
    cookies: dict[str, str]
    """With which somebody is signed in."""
    template: bytes
    """The store that sessions begin with."""

    def __init__(self, name: str) -> None:
        """Start the process. Raises ConfigError where its packages cannot be had, EnvironmentFailure where it does
        not come up."""
        self.app, folder = read_app(name)
        packages = packages_of(name, self.app)
        sweep(_SCRATCH, home := home_with_room(_ROOM))
        self._scratch = ScratchFolder(_SCRATCH, home)
        self.root = self._scratch.path / "sessions"
        self.root.mkdir(0o700)
        code = HERE if (HERE / f"{self.app.program}.py").is_file() else folder
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            settings = {
                **{"app": self.app.to_dict(), "root": str(self.root), "socket": listener.fileno()},
                **{
                    "packages": str(packages),
                    "code": str(code),
                    "folder": str(folder),
                    "seed_store": str(folder / self.app.store),
                },
            }
            self._process = subprocess.Popen(
                _command(settings, [packages, HERE, folder, *(folder / path for path in self.app.shown)], self.root),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listener.fileno(),),  # a socket stays in the network that it was made in
                env=_environment(self.root),
                start_new_session=True,
            )
        told = self._first_line(name)
        self.cookies = told["cookies"]
        self.template = whole_store(self.root / TEMPLATE / self.app.store)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def new_session(self, store: bytes) -> Path:
        """Return the folder of a new session with this store; its name is the secret that requests tell."""
        folder = self.root / secrets.token_hex(16)
        folder.mkdir(0o700)
        (folder / self.app.store).write_bytes(store)
        return folder

    def end_session(self, folder: Path) -> None:
        """Remove a session; its process is ended within a second."""
        shutil.rmtree(folder, ignore_errors=True)

    def told(self, folder: Path) -> str:
        """Return the end of what the server of a session wrote."""
        log = folder / LOG
        return log.read_text(errors="replace")[-500:].strip() if log.is_file() else "nothing"

    def close(self) -> None:
        """End the process with all sessions."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            end_tree(self._process)
        self._scratch.close()

    def _first_line(self, name: str) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], _START_SECONDS)
        line = output.readline() if ready else b""
        if not line:
            self.close()
            raise EnvironmentFailure(f"app {name} did not come up within {_START_SECONDS:g} s; its errors are above")
        told: dict[str, Any] = json.loads(line)
        return told


def _command(settings: dict[str, Any], shown: list[Path], root: Path) -> list[str]:
    python, library = python_and_library()
    boot = [python, "-s", "-S", "-P", "-B", "-c", _BOOT.format(host=str(HERE / "host.py")), json.dumps(settings)]
    command = bubblewrap(None, "--proc", "/proc", "--dev", "/dev")
    command += ["--tmpfs", "/tmp"]  # before what is shown of it
    command += showing([*SYSTEM, *library, python, *map(str, shown)])
    command += ["--bind", str(root), str(root), "--remount-ro", "/", "--chdir", str(root), "--"]
    if works([*command, python, "-c", ""]):
        return [*command, *boot]
    _LOG.warning("apps run without walls around them: bubblewrap is not there, or does not work (docs/apps.md)")
    return boot


def _environment(root: Path) -> dict[str, str]:
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"HOME": str(root), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **fixed}


_servers: dict[str, Server] = {}
_starting = threading.Lock()


def shared_server(name: str) -> Server:
    """Return the running server of an app in this process; it is started where it does not run."""
    with _starting:
        server = _servers.get(name)
        if server is None or not server.alive:
            if server is not None:
                server.close()
            server = _servers[name] = Server(name)
        return server
