"""What a person begins with: configs by name, a project of their own, and what this machine has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from uirl.cli.begin import PARTS, shipped
from uirl.cli.main import main
from uirl.config import ConfigStore, load_config

ROOT = Path(__file__).parents[2]


def test_every_config_that_comes_along_is_listed_printed_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs"]) == 0
    said = capsys.readouterr().out
    assert all(len(line) < 80 for line in said.splitlines())
    assert {"screen", "one_gpu/qwen3_vl_2b_lora_16gb"} <= shipped().keys()
    assert "start/largest" not in shipped()
    for name, path in shipped().items():
        assert f"\n{name}\n" in f"\n{said}"
        assert isinstance(load_config(path), ConfigStore)
    assert main(["configs", "screen"]) == 0
    assert capsys.readouterr().out == (ROOT / "configs/screen.yaml").read_text()
    assert main(["configs", "scren"]) == 2
    assert "did you mean 'screen'?" in capsys.readouterr().err


def test_a_config_is_taken_by_its_name_where_no_file_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "screen"]) == 0
    of_name = capsys.readouterr().out
    assert main(["plan", str(ROOT / "configs/screen.yaml")]) == 0
    assert capsys.readouterr().out == of_name
    for name in ("screen.yaml", "configs/screen.yaml"):  # as in a checkout
        assert main(["plan", name]) == 0
        assert capsys.readouterr().out == of_name
    for name, near in (
        ("scren", "screen"),
        ("configs/scren.yaml", "screen"),
        ("one_gpu/qwen3_vl_2b_16gb", "one_gpu/qwen3_vl_2b"),
    ):
        assert main(["train", name]) == 2
        assert f"no file, run or config {name!r}; did you mean '{near}" in capsys.readouterr().err
    assert main(["verl", "--config", "configs/verl_config.yaml", "--picture", "nonsense", "--plan"]) == 2
    assert "cannot read" not in capsys.readouterr().err
    Path("screen").write_text("no_such_section: 1")
    assert main(["plan", "screen"]) == 2
    assert "screen: " in capsys.readouterr().err


def test_to_train_without_a_config_says_what_there_is_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 2
    assert "screen" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_project_begins_with_what_can_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    assert main(["init", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"environment.py", "largest.yaml", "test_environment.py"}
    played = subprocess.run([sys.executable, "-m", "pytest", "-q", "."], cwd=folder, capture_output=True, text=True)
    assert played.returncode == 0, played.stdout
    config = load_config(folder / "largest.yaml")
    assert config.environment.name == "environment:Largest"
    assert main(["init", str(folder)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_doctor_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[4:].partition(":")[0] for line in lines] == list(PARTS)
    assert any(line.startswith("ok  Python: 3.") for line in lines)


@pytest.mark.slow
def test_from_the_wheel_a_project_begins_and_learns(tmp_path: Path) -> None:
    """Outside of the tree, with nothing of it but what the wheel holds."""

    def run(*words: str, cwd: Path) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=cwd, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path / "lib")}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*quiet, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), ".", cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(*quiet, "install", "--no-deps", "--target", str(tmp_path / "lib"), str(wheel), cwd=tmp_path)
    uirl = ("-m", "uirl.cli.main")
    run(*uirl, "init", "mine", cwd=tmp_path)
    assert "ok    environment" in run(*uirl, "check", "largest.yaml", cwd=tmp_path / "mine")
    run(*uirl, "train", "largest.yaml", "training.stop_at_success=0.8", cwd=tmp_path / "mine")
    summary = json.loads((tmp_path / "mine/runs/largest/summary.json").read_text())
    assert summary["success_before"] < 0.7 < summary["success_after"]
    assert str(tmp_path) in run("-c", "import uirl; print(uirl.__file__)", cwd=tmp_path)
