"""Many machines of docs/env_servers.md, on one: the servers of the script, one killed while a run plays on all."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.environments.remote.running import until
from tests.patience import PATIENCE
from uirl.cli.main import command_parser

ROOT = Path(__file__).parents[3]
SCRIPT, UNIT, PAGE = (
    ROOT / "deploy" / "environment_vm.sh",
    ROOT / "deploy" / "uirl-env@.service",
    ROOT / "docs" / "env_servers.md",
)
TOKENS = {"UIRL_ENV_TOKEN": "agents", "UIRL_ENV_GRADER_TOKEN": "graders"}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [door.getsockname()[1] for door in doors]


def asked(port: int, path: str) -> str | None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": "Bearer graders"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())
    return None


def serving(port: int) -> int | None:
    """The process that serves on a port."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
            if "serve" in words and str(port) in words:
                return int(entry.name)
    return None


@pytest.mark.actors
def test_a_run_on_the_scripts_servers_of_which_one_is_killed(tmp_path: Path) -> None:
    ports = free_ports(3)
    environment = {
        **os.environ,
        **TOKENS,
        "PORTS": " ".join(map(str, ports)),
        "HOST": "127.0.0.1",
        "UIRL": f"{sys.executable} -m uirl.cli.main",
    }
    options = ["--env", "guess_number", "--option", "demonstrator=random"]
    with (tmp_path / "servers.log").open("wb") as log:
        script = subprocess.Popen(["sh", str(SCRIPT), *options], env=environment, stdout=log, stderr=log)
    try:
        until(lambda: all(asked(port, "/health") for port in ports), "the servers")
        urls = json.dumps([f"http://127.0.0.1:{port}" for port in ports])
        changes = [
            "model.model_name=uirl/tiny-lm",
            "environment.name=remote",
            f"environment.options={{urls: {urls}, token_env: UIRL_ENV_GRADER_TOKEN, retry_backoff: 0.5}}",
            "inference.max_tokens=4",
            "rollout.parallel=12",
            "rollout.retries=3",
            "training.batch_size=24",
            "training.num_epochs=4",
            "training.num_iters_per_epoch=5",
            "training.eval_episodes=8",
            "training.eval_every=null",
            "training.warm_start.enabled=false",
            "logging.trackers=[]",
            f"logging.runs_dir={tmp_path}",
            "logging.run_name=run",
        ]
        run = subprocess.Popen(
            [sys.executable, "-m", "uirl.cli.main", "train", *changes],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        metrics = tmp_path / "run" / "metrics.jsonl"
        until(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text()), "the first update")
        killed = serving(ports[1])
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, said
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["ledger"]["balanced"]
        assert (summary["ledger"]["ordered"], summary["ledger"]["in_flight"]) == (20 * 24, 0)
        until(lambda: asked(ports[1], "/health"), "the server that was killed")
        assert serving(ports[1]) != killed
        assert "again in 2 s" in (tmp_path / "servers.log").read_text()
        for port in ports:
            assert re.search(r"^uirl_sessions_active 0$", asked(port, "/metrics") or "", re.MULTILINE)
    finally:
        script.terminate()
        script.wait(60)
    until(lambda: not any(serving(port) for port in ports), "the end of all servers")


def test_the_script_says_what_it_lacks(tmp_path: Path) -> None:
    wrong_program = tmp_path / "uirl"
    wrong_program.write_text("#!/bin/sh\nexit 2\n")
    wrong_program.chmod(0o755)

    def said(*words: str, **variables: str) -> str:
        environment = {"PATH": os.environ["PATH"], **variables}
        done = subprocess.run(
            ["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 2
        return done.stderr

    assert "UIRL_ENV_TOKEN=... UIRL_ENV_GRADER_TOKEN=... sh deploy/environment_vm.sh --env" in said()
    assert "UIRL_ENV_GRADER_TOKEN is not set" in said("--env", "screen", UIRL_ENV_TOKEN="a")
    wrong = said("--env", "nothing", PORTS="1", UIRL=str(wrong_program), **TOKENS)
    assert "port 1: the command is wrong" in wrong


def test_the_unit_serves_with_both_tokens() -> None:
    unit = configparser.RawConfigParser(strict=True, allow_no_value=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    head = UNIT.read_text()
    (given,) = re.findall(r"^#   UIRL_ENV=(.*)$", head, re.MULTILINE)
    words = shlex.split(unit["Service"]["ExecStart"].replace("%i", "8000").replace("$UIRL_ENV", given))
    options = command_parser().parse_args(words[1:])
    assert (options.environment, options.port, options.host) == ("miniwob", 8000, "0.0.0.0")
    assert {options.token_env, options.grader_token_env} == TOKENS.keys()
    assert all(re.search(f"^#   {name}=", head, re.MULTILINE) for name in TOKENS)


def test_the_command_of_the_page() -> None:
    (command,) = re.findall(r"environment_vm\.sh (--env .*)$", PAGE.read_text(), re.MULTILINE)
    assert command_parser().parse_args(["serve", *shlex.split(command)]).environment == "miniwob"
