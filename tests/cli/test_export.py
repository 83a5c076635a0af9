"""`uirl export`: a run's policy and episodes for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import QUICK
from uirl.cli.main import main
from uirl.config import ConfigStore
from uirl.config.stored import remember
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Action, Observation, Task, Trajectory, Turn


@pytest.fixture
def runs(whole: Path, lora: Path) -> dict[str, Path]:
    return {"whole": whole, "lora": lora}


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> Path:
    capsys.readouterr()
    assert main(["export", *words]) == 0
    return Path(capsys.readouterr().out.strip())


@pytest.mark.parametrize("run", ["whole", "lora"])
def test_weights_open_with_hf_and_measure_as_the_run_does(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    folder = exported(capsys, str(runs[run]), "--to", "hf")
    assert folder == runs[run] / "exports" / "step_000002-hf"
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    reports = []
    for path in (runs[run], folder):
        assert main(["eval", str(path), *QUICK[2:4], "--episodes", "8", "--json", str(tmp_path / "report.json")]) == 0
        reports.append(json.loads((tmp_path / "report.json").read_text()))
    assert reports[0]["reward"] == reports[1]["reward"]


def test_an_adapter_opens_with_hf(whole: Path, lora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = lora / "checkpoints" / "step_000002"
    folder = exported(capsys, str(checkpoint), "--to", "peft")
    assert folder == lora / "exports" / "step_000002-peft"
    AutoModelForCausalLM.from_pretrained(folder)
    assert main(["export", str(whole), "--to", "peft"]) == 2
    assert "has no adapters" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["hf", "peft"])
def test_what_no_export_has_written_is_not_replaced(
    lora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = lora
    before = sorted(path.name for path in run.iterdir())
    precious = tmp_path / "precious"
    (precious / "inside").mkdir(parents=True)
    (precious / "inside" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("of words")
    (tmp_path / "link").symlink_to(precious)
    for place in (precious, run, run.parent, tmp_path / "file", tmp_path / "link"):
        assert main(["export", str(run), "--to", kind, "--out", str(place)]) == 2
        assert "would be" in capsys.readouterr().err
    assert (precious / "inside" / "thesis.txt").read_text() == "years"
    assert (tmp_path / "file").read_text() == "of words"
    assert sorted(path.name for path in run.iterdir()) == before
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # an empty folder, and the export in it
        folder = exported(capsys, str(run), "--to", kind, "--out", str(tmp_path / "empty"))
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o644}
    (folder / "notes.txt").write_text("mine")
    assert main(["export", str(run), "--to", kind, "--out", str(folder)]) == 2
    assert "notes.txt" in capsys.readouterr().err


def test_episodes_are_those_of_training_that_were_solved(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(capsys, str(whole), "--to", "sft", "--out", str(tmp_path / "out" / "sft.jsonl"))
    written = {json.loads(line)["id"] for line in file.read_text().splitlines()}
    with TrajectoryStore(whole / "trajectories.sqlite", read_only=True) as store:
        episodes = store.list()
    assert {e.split for e in episodes} > {"train"}
    assert written == {e.id for e in episodes if e.split == "train" and e.success and e.failure is None}


def played(folder: Path, environment: str, options: dict[str, object], **inference: object) -> Path:
    """A run directory with one solved episode of two replies."""
    config = ConfigStore.from_dict({"environment": {"name": environment, "options": options}, "inference": inference})
    turns = [Turn(Observation(text), action=Action(reply)) for text, reply in (("one", "1"), ("two", "2"))]
    RunDirectory.create(folder, config.to_yaml()).close()
    remember(config.to_dict())
    with TrajectoryStore(folder / "trajectories.sqlite") as store:
        store.add(Trajectory("t", Task("a"), turns, stop_reason="terminated", metrics={"success": 1.0}), step=1)
    return folder


@pytest.mark.parametrize(
    ("environment", "options", "inference", "words", "system", "tools"),
    [
        ("guess_number", {"describe": True}, {}, [], "Find a number from 1 to 7", []),
        ("guess_number", {}, {}, [], None, []),
        ("guess_number", {"describe": True}, {"system_prompt": "as I say"}, [], "as I say", []),
        ("guess_number", {"describe": True}, {}, ["--system-prompt", "other"], "other", []),
        ("guess_number", {"describe": True}, {}, ["--system-prompt", ""], None, []),
        ("calculator", {"describe": "template"}, {}, [], "Work out the expression", ["calculator"]),
        ("no.such:Thing", {}, {"system_prompt": "as I say"}, [], "as I say", []),
    ],
)
def test_episodes_begin_with_what_the_policy_was_told(
    environment: str,
    options: dict[str, object],
    inference: dict[str, object],
    words: list[str],
    system: str | None,
    tools: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = played(tmp_path / "run", environment, options, **inference)
    file = exported(capsys, str(run), "--to", "sft", *words)
    (line,) = map(json.loads, file.read_text().splitlines())
    first, *rest = line["messages"]
    if system is None:
        assert first["role"] == "user"
    else:
        assert first["role"] == "system"
        assert first["content"].startswith(system)
        assert [message["role"] for message in rest] == ["user", "assistant"] * 2
    assert [tool["function"]["name"] for tool in json.loads(line.get("tools", "[]"))] == tools


def test_an_example_per_reply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path / "run", "guess_number", {})
    file = exported(capsys, str(run), "--to", "sft", "--each-reply", "--out", str(tmp_path / "x.jsonl"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["completion"] for line in lines] == [[{"role": "assistant", "content": reply}] for reply in "12"]
    assert [len(line["prompt"]) for line in lines] == [1, 3]


def test_a_run_without_a_solved_episode_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    RunDirectory.create(run, ConfigStore.from_dict({"environment": {"name": "guess_number"}}).to_yaml()).close()
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        lost = Trajectory("t", Task("a"), [Turn(Observation("one"), action=Action("1"))], stop_reason="terminated")
        store.add(lost, step=1)
    written = tmp_path / "sft.jsonl"
    written.write_text("of an earlier run")
    assert main(["export", str(run), "--to", "sft", "--out", str(written)]) == 2
    assert "nothing to imitate" in capsys.readouterr().err
    assert written.read_text() == "of an earlier run"


def test_an_environment_that_cannot_be_asked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path / "run", "no.such:Thing", {})
    assert main(["export", str(run), "--to", "sft"]) == 2
    assert "say it: --system-prompt TEXT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere", "--to", "hf"], "does not exist"),
        ([".", "--to", "hf"], "neither a run directory"),
        ([".", "--to", "sft"], "holds no trajectories.sqlite"),
    ],
)
def test_what_is_no_run_is_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err
