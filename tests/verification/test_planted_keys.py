"""Keys in the environment of a run with a judge: they reach the servers they are for, and nothing that is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.inference.stand_in_http import Answer
from tests.verification.scripted_judge import ScriptedJudge
from tests.verification.test_runs import RUN
from tests.viewer.conftest import client_of
from uirl.cli.main import main
from uirl.viewer.runs import Runs

PLANTED = "planted-7f3a9c"
NAMES = ("UIRL_LLM_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "UIRL_SERVE_TOKEN", "MY_JUDGE_KEY")


@pytest.fixture
def server() -> Iterator[ScriptedJudge]:
    with ScriptedJudge() as opened:
        opened.outcome = lambda seen: "success"
        yield opened


def holding(folder: Path) -> list[str]:
    """Return the files that hold a planted key, be it in a free page of a database."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and PLANTED.encode() in path.read_bytes():
            found.append(str(path))
        if path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as connection:
                found += [f"{path}: {line:.80}" for line in connection.iterdump() if PLANTED in line]
    return found


def test_no_key_is_kept_or_told(
    server: ScriptedJudge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    for name in NAMES:
        monkeypatch.setenv(name, f"{PLANTED}-{name}")
    refused = [Answer(f"no such field for {PLANTED}-MY_JUDGE_KEY", 400), Answer(f"wrong: {PLANTED}-MY_JUDGE_KEY", 401)]
    server.faults += [*refused, *refused]
    judged = ["verification.enabled=true", "verification.judge=eye", "verification.api_key_env=MY_JUDGE_KEY"]
    judged += [f"verification.judge_url={server.url}", "verification.retries=0"]
    memory = f"verification.memory={tmp_path / 'judge.sqlite'}"
    run = str(tmp_path / "run")
    commands = [
        ["train", *RUN, *judged, memory, f"logging.runs_dir={tmp_path}", "actors.processes=1"],
        ["judge", run, f"verification.judge_url={server.url}", "verification.api_key_env=MY_JUDGE_KEY"],
        ["eval", run, "--episodes", "2", "--json", str(tmp_path / "report.json")],
        ["export", run, "--to", "sft", "--out", str(tmp_path / "sft.jsonl")],
    ]
    for command in commands:
        main(command)
    assert server.seen
    assert {seen.headers["authorization"] for seen in server.seen} == {f"Bearer {PLANTED}-MY_JUDGE_KEY"}
    told = capfd.readouterr()
    assert PLANTED not in told.out + told.err + caplog.text
    assert holding(tmp_path) == []
    with client_of(Runs([run])) as client:
        rows = client.get("/api/runs/run/trajectories").json()["rows"]
        assert rows
        one = f"/trajectories/{rows[0]['id']}"
        for route in ("", "/metrics", "/facets", one, f"{one}/turns/0", f"{one}/export.html", "/trajectories"):
            assert PLANTED not in client.get(f"/api/runs/run{route}").text
