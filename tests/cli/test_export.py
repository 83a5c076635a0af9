"""`uirl export`: a run's policy and episodes for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.test_command import QUICK
from uirl.cli.main import main
from uirl.storage import TrajectoryStore


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, 'whole' and 'lora'."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("whole", []), ("lora", ["model.use_lora=true", "model.lora.r=4"])):
        named = [f"logging.runs_dir={folder}", f"logging.run_name={name}"]
        assert main(["train", *QUICK, *more, *named]) == 0
    return folder


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> Path:
    capsys.readouterr()
    assert main(["export", *words]) == 0
    return Path(capsys.readouterr().out.strip())


@pytest.mark.parametrize("run", ["whole", "lora"])
def test_weights_open_with_hf_and_measure_as_the_run_does(
    runs: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    folder = exported(capsys, str(runs / run), "--to", "hf")
    assert folder == runs / run / "exports" / "step_000002-hf"
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    reports = []
    for path in (runs / run, folder):
        assert main(["eval", str(path), *QUICK[2:4], "--episodes", "8", "--json", str(runs / "report.json")]) == 0
        reports.append(json.loads((runs / "report.json").read_text()))
    assert reports[0]["reward"] == reports[1]["reward"]


def test_an_adapter_opens_with_hf(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = runs / "lora" / "checkpoints" / "step_000002"
    folder = exported(capsys, str(checkpoint), "--to", "peft")
    assert folder == runs / "lora" / "exports" / "step_000002-peft"
    AutoModelForCausalLM.from_pretrained(folder)
    assert main(["export", str(runs / "whole"), "--to", "peft"]) == 2
    assert "has no adapters" in capsys.readouterr().err


def test_episodes_are_those_of_training_that_were_solved(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported(capsys, str(runs / "whole"), "--to", "sft", "--out", str(runs / "out" / "sft.jsonl"))
    written = {json.loads(line)["id"] for line in file.read_text().splitlines()}
    with TrajectoryStore(runs / "whole" / "trajectories.sqlite", read_only=True) as store:
        episodes = store.list()
    assert {e.split for e in episodes} > {"train"}
    assert written == {e.id for e in episodes if e.split == "train" and e.success and e.failure is None}


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
