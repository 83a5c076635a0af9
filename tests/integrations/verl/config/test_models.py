"""The policy that a run under verl starts from, described without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl.config import ConfigStore, ModelConfig
from uirl.errors import CheckpointError
from uirl.images import ImageStore
from uirl.integrations.verl.models import described_model
from uirl.learner import Learner, Policy, save_checkpoint

SIZES = ("model.model_name=uirl/tiny-lm", "model.device=cpu", "model.tiny.hidden_size=64")


def run_of_the_local_trainer(folder: Path, *overrides: str) -> Path:
    store = ConfigStore().override([*SIZES, *overrides])
    save_checkpoint(folder / "checkpoints" / "step_000001", Learner(Policy.from_config(store), store, ImageStore()), {})
    return folder


@pytest.mark.parametrize("adapters", [(), ("model.use_lora=true",)], ids=["weights", "adapters"])
def test_a_run_of_the_local_trainer_is_described(adapters: tuple[str, ...], tmp_path: Path) -> None:
    run = run_of_the_local_trainer(tmp_path / "run", *adapters)
    for path in (run, run / "checkpoints" / "step_000001"):
        assert described_model(path, ModelConfig()).get_text_config().hidden_size == 64


def test_a_built_in_model_has_the_sizes_of_the_config() -> None:
    assert described_model("uirl/tiny-lm", ConfigStore().override(SIZES).model).get_text_config().hidden_size == 64


def test_a_folder_that_holds_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a HF folder"):
        described_model(tmp_path, ModelConfig())
