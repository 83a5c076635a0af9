"""The commands by which the run book starts a Ray cluster, with real Ray on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.verl


ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent

ASK = "import ray; ray.init(address='{address}'); print('GPUs', int(ray.cluster_resources()['GPU']))"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home without a token, in which Ray's sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def environment(home: Path, **more: str) -> dict[str, str]:
    """That of somebody who has set nothing of Ray's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    tools = os.pathsep.join([str(BIN), own.get("PATH", "")])
    return own | {"HOME": str(home), "PATH": tools, "RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0"} | more


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(address: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a program says that connects to the cluster and counts its GPUs."""
    command = [sys.executable, "-c", ASK.format(address=address)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process and everything it started."""
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def book() -> list[str]:
    """The commands of the run book's cluster, without their comments."""
    page = (ROOT / "docs" / "verl_run_book.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", page.partition("## Four nodes")[2], re.DOTALL)
    return [line.partition("  #")[0].strip() for line in blocks[0].splitlines()]


def test_the_cluster_of_the_run_book_asks_for_the_token(home: Path) -> None:
    port = free_port()
    lines = [line.replace("6379", str(port)).replace("FIRST_NODE", "127.0.0.1") for line in book()]
    assert [line.split()[0] for line in lines] == ["export", "(umask", "ray", "ray", "ray"]
    assert not any("0.0.0.0" in line for line in lines)
    before, starts = lines[:2], [line for line in lines if line.startswith("ray start")]
    variables = environment(home)
    started = []
    try:
        for line in starts:
            script = "\n".join(
                ["set -e", *before, f"{line.replace('--num-gpus=8', '--num-gpus=2 --num-cpus=1')} --block"]
            )
            started.append(subprocess.Popen(["bash", "-c", script], env=variables, start_new_session=True, text=True))
            address = f"127.0.0.1:{port}"
            told = environment(home, RAY_AUTH_MODE="token")
            while f"GPUs {2 * len(started)}" not in ask(address, told).stdout:
                assert all(process.poll() is None for process in started), "ray start ended"
        assert (home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0, "others can read the token"
        stranger = environment(home / "elsewhere")
        refused = ask(address, stranger)
        assert refused.returncode != 0
        assert "GPUs" not in refused.stdout
        assert "uthenticat" in refused.stderr
    finally:
        for process in reversed(started):
            end(process)
