"""Tasks in Harbor's format, played behind walls: what solves them, what does not, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from uirl.environments.adapters.harbor import HarborEnvironment, _rewards
from uirl.environments.conformance import check_environment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.tools import ShellTool, ToolError
from uirl.types import Action, StepResult

pytestmark = pytest.mark.real
DONE = Action(text="Done.")
CHECK = """#!/bin/bash
if [ "$(python3 -m check)" = "good hello" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
PYTHON = "import json, helper; print(helper.WORD, open('/app/out.txt').read().strip())"
DOCKERFILE = """# a comment
FROM debian:bookworm-slim
ENV GREETING=hello PATH=/app:$PATH
RUN apt-get update && apt-get install -y bash && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY data /data
COPY seed.txt ./
RUN echo made > made.txt
"""


def make(folder: Path, **changed: str) -> Path:
    files = {
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 20.0\n',
        "instruction.md": "Write hello into out.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/seed.txt": "seed",
        "environment/data/deep/a.txt": "a",
        "solution/solve.sh": "#!/bin/bash\necho $GREETING > out.txt\n",
        "tests/test.sh": CHECK,
        "tests/check.py": PYTHON,
        "tests/helper.py": "WORD = 'good'",
        **changed,
    }
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def play(env: HarborEnvironment, *actions: Action, limit: float = 60.0) -> list[StepResult]:
    async def run() -> list[StepResult]:
        session = EnvironmentSession(env.spawn(), step_timeout=limit)
        results: list[StepResult] = []
        try:
            await session.reset(env.tasks()[0], 0)
            for action in actions:
                results.append(await session.step(action))
                if results[-1].done:
                    break
        finally:
            await session.close()
        return results

    return asyncio.run(run())


def shell(command: str) -> Action:
    return Action.of("shell", command=command)


def outcome(env: HarborEnvironment, *actions: Action, **options: Any) -> tuple[float, Any]:
    last = play(env, *actions, **options)[-1]
    assert last.done
    return last.reward, last.observation.info["success"]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> HarborEnvironment:
    return HarborEnvironment(path=str(make(tmp_path_factory.mktemp("tasks") / "greet")))


def test_the_contract_holds_and_the_solution_solves(env: HarborEnvironment) -> None:
    check_environment(env.spawn(), actions=[shell("kill -9 -1"), DONE])


def test_the_dockerfile_is_done_and_files_stay(env: HarborEnvironment) -> None:
    seen = play(
        env, shell("pwd; cat made.txt seed.txt /data/deep/a.txt; echo $GREETING > out.txt"), shell("cat out.txt")
    )
    assert seen[0].observation.tool_results[0].text.split() == ["/app", "made", "seeda"]
    assert seen[1].observation.tool_results[0].text == "hello"


def test_nothing_done_is_nothing_won(env: HarborEnvironment) -> None:
    assert outcome(env, DONE) == (0.0, False)


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        "mkdir -p /tests",
        "echo 'print(\"good hello\"); raise SystemExit' | tee json.py sitecustomize.py usercustomize.py conftest.py",
        "mkdir -p /root/.local/lib/python3.11/site-packages; cd /root/.local/lib/python3.11/site-packages;"
        " echo 'import os; os.write(1, b\"good hello\"); os._exit(0)' | tee usercustomize.py sitecustomize.py",
        "printf '#!/bin/sh\\necho good hello' > python3; chmod +x python3; cp python3 /root/; mkdir -p /root/bin;"
        " cp python3 /root/bin; echo 'PATH=/app:$PATH' | tee /root/.bashrc /root/.profile /root/.bash_profile",
        "(sleep 1; while :; do echo hello > out.txt; echo 1 > /logs/verifier/reward.txt; done) &>/dev/null & disown",
        "rm -rf /app/* /tmp /etc /usr; chmod 000 /app; ln -s / out.txt",
        "mkfifo out.txt",
        "head -c 1G /dev/zero > /tmp/full; true",
        "ln -sfn /tests/helper.py out.txt",
    ],
)
def test_what_a_policy_leaves_does_not_decide(env: HarborEnvironment, trick: str) -> None:
    assert outcome(env, shell(trick), DONE, limit=8.0) == (0.0, False)


def test_the_time_of_the_task_and_the_last_turn_end_with_the_tests(tmp_path: Path) -> None:
    text = "[agent]\ntimeout_sec = 1.0\n"
    env = HarborEnvironment(path=str(make(tmp_path / "a", **{"task.toml": text})))
    assert outcome(env, shell("echo hello > out.txt; sleep 30")) == (1.0, True)
    env = HarborEnvironment(path=str(tmp_path), max_turns=1)
    assert outcome(env, shell("echo hello > out.txt")) == (1.0, True)


@pytest.mark.parametrize(
    ("told", "reward", "success"),
    [
        ('{"reward": 0.5, "style": 1}', 0.5, False),
        ('{"reward": 1, "speed": 0}', 1.0, True),
        ('{"a": 1, "b": 0}', 0.5, False),
        ('{"a": 1, "b": 1}', 1.0, True),
    ],
)
def test_parts_of_a_reward(tmp_path: Path, told: str, reward: float, success: bool) -> None:
    env = HarborEnvironment(
        path=str(make(tmp_path / "a", **{"tests/test.sh": f"echo '{told}' > /logs/verifier/reward.json"}))
    )
    assert outcome(env, DONE) == (reward, success)
    whole = HarborEnvironment(path=str(tmp_path), partial_reward=False)
    assert outcome(whole, DONE) == (float(success), success)


@pytest.mark.parametrize("text", ["", "NaN", "1" + "0" * 400, "9" * 9000, "[" * 60_000, '{"a": "x"}', "1e7", "\xff"])
def test_what_is_no_reward(text: str) -> None:
    assert _rewards(text.encode("latin-1"), b"1") is None
    assert _rewards(None, text.encode("latin-1")) is None


def test_tests_that_never_write_a_reward_are_a_failure(tmp_path: Path) -> None:
    env = HarborEnvironment(path=str(make(tmp_path / "a", **{"tests/test.sh": "exit 0"})))
    with pytest.raises(EnvironmentFailure, match="writes no reward about an untouched start"):
        play(env, DONE)


def test_a_reward_that_only_the_policy_prevents_is_a_loss(tmp_path: Path) -> None:
    script = "cat /app/out.txt 2>/dev/null | grep -q . && exit 1; echo 0 > /logs/verifier/reward.txt"
    env = HarborEnvironment(path=str(make(tmp_path / "a", **{"tests/test.sh": script})))
    assert outcome(env, shell("echo x > out.txt"), DONE) == (0.0, False)


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("environment/Dockerfile", "FROM node:22", "node:22"),
        ("environment/Dockerfile", "FROM python:3.12-alpine", "alpine"),
        ("environment/Dockerfile", "FROM debian\nRUN apt-get install -y no-such-package-1", "no no-such-package-1"),
        ("environment/Dockerfile", "FROM debian\nRUN pip install no-such-package-1==2", "no no-such-package-1"),
        ("environment/Dockerfile", "FROM debian\nADD https://x.org/a /a", "ADD https"),
        ("environment/Dockerfile", "FROM debian\nCOPY ../task.toml /a", "COPY"),
        ("environment/Dockerfile", "FROM debian\nCOPY seed.txt /usr/lib/a", "/usr"),
        ("environment/Dockerfile", "FROM debian\nWORKDIR /app\nRUN false", "RUN 'false' failed"),
        ("environment/docker-compose.yaml", "services: {}", "compose"),
        ("task.toml", "[environment]\ngpus = 1", "environment.gpus"),
        ("task.toml", '[environment]\nenv = {A = "${HOME}"}', "variable of this machine"),
        ("task.toml", "[", "Expected|Invalid"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(tmp_path: Path, path: str, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HarborEnvironment(path=str(make(tmp_path / "a", **{path: content})))


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task in"):
        HarborEnvironment(path=str(tmp_path))


def test_walls_of_the_shell() -> None:
    tool = ShellTool(seconds=4.0, memory_mb=256, disk_mb=16)
    try:
        assert tool.execute("(sleep 90 & disown); echo a > x; id -u") == "0"
        told = tool.execute("cat x; ls /proc | grep -c '^[0-9]'; grep -c : /proc/net/dev; ls /; ls /room /tmp/../work")
        assert told.split()[0] == "a"
        assert int(told.split()[1]) < 8
        assert not {"tests", "room", "boot", "sys"} & set(told.splitlines()[3:])
        assert "Read-only" in tool.execute("touch /usr/a /etc/a /a 2>&1")
        assert "No space" in tool.execute("head -c 64M /dev/zero > big; rm big")
        assert "CapEff:\t0000000000000000" in tool.execute("cat /proc/self/status; unshare -U true")
        assert "status" in tool.execute("unshare -U true")
        with contextlib.suppress(ToolError):  # the shell itself may find no room for a process, and wait for it
            tool.execute(":(){ :|:& };:; true")
        for script, why in (("sleep 60", "time was over"), ("yes", "bytes of output")):
            with pytest.raises(ToolError, match=why):
                tool.execute(script)
        with pytest.raises(ToolError, match="256 MB of memory"):
            tool.execute(
                "for i in 1 2 3; do python3 -c 'a = b\"a\" * (120 << 20); import time; time.sleep(3)' & done; wait"
            )
        for script in ("a" * 200_000, "é" * 60_000, "\0", "\ud800"):
            with pytest.raises(ToolError, match="script holds"):
                tool.execute(script)
        assert tool.execute("cat x") == "a"
        tool.reset()
        assert "No such file" in tool.execute("cat x")
    finally:
        tool.close()


def test_a_bubblewrap_outside_of_what_is_shown_is_not_looked_for_within(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # as an environment of Conda has one of its own
        os.chmod(folder, 0o755)  # the sandbox is another user's
        Path(folder, "bwrap").symlink_to(shutil.which("bwrap") or "")
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        tool = ShellTool()
        try:
            assert tool.execute("echo here") == "here"
        finally:
            tool.close()


def test_nothing_is_left_of_a_process_that_is_killed() -> None:
    script = (
        "from uirl.tools import ShellTool; tool = ShellTool(); tool.execute('true');"
        "print(tool.room._holder.pid, flush=True); tool.execute('sleep 50')"
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    holder = Path("/proc") / program.stdout.readline().strip()
    assert b"bwrap" in (holder / "cmdline").read_bytes()
    program.kill()
    program.communicate()
    end = time.monotonic() + 20
    while holder.exists() and b"bwrap" in (holder / "cmdline").read_bytes() and time.monotonic() < end:
        time.sleep(0.02)
    assert not holder.exists() or b"bwrap" not in (holder / "cmdline").read_bytes()
