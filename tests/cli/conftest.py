"""Runs that several files of tests read, each trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl.cli.main import main

QUICK = [
    "model.model_name=uirl/tiny-lm",
    "model.tiny.hidden_size=32",
    "environment.name=guess_number",
    "environment.options={n: 4, guesses: 2, demonstrator: random}",
    "inference.max_tokens=4",
    "training.batch_size=16",
    "training.eval_episodes=8",
    "training.eval_every=null",
    "training.num_epochs=1",
    "training.num_iters_per_epoch=2",
    "training.warm_start={steps: 16, batch_size: 16, learning_rate: 0.02, evaluate_every: null, stop_at_success: null}",
    "logging.trackers=[]",
]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, alone in its folder."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["train", *QUICK, f"logging.runs_dir={folder}", "logging.run_name=whole"]) == 0
    return folder / "whole"


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with adapters."""
    folder, adapters = tmp_path_factory.mktemp("lora"), ["model.use_lora=true", "model.lora.r=4"]
    assert main(["train", *QUICK, *adapters, f"logging.runs_dir={folder}", "logging.run_name=lora"]) == 0
    return folder / "lora"
