"""What cannot fit is refused before it is loaded, by the sums of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published import write_published
from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.training.loop import RayPPOTrainer
from uirl.training.plan import guard
from uirl.training.plan.moment import GIB
from uirl.training.plan.plan import plan_of
from uirl.training.plan.states import policy_of_shapes, states_of

BF16, LORA = "model.dtype=bfloat16", "model.use_lora=true"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published("Qwen3-VL-2B", tmp_path_factory.mktemp("published"))


def config_of(folder: Path, *changes: str) -> ConfigStore:
    return ConfigStore().override([f"model.local_path={folder}", "training.adv_estimator=grpo", *changes])


def test_full_fine_tuning_of_two_billion_needs_more_than_24_gib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.1e9 weights in 16 bits with float32 masters, moments and gradients: 18 bytes each, 35.7 GiB."""
    monkeypatch.setattr(guard, "memory_here", lambda _: (True, 24 * GIB))
    with pytest.raises(ConfigError, match=r"optimizer 23\.8, .* 35\.7 GiB in all, .* 24\.0 GiB .*model.use_lora=true"):
        RayPPOTrainer(config_of(folder, BF16))
    guard.require_room(config_of(folder, BF16, LORA))
    monkeypatch.setattr(guard, "memory_here", lambda _: (True, 36 * GIB))
    guard.require_room(config_of(folder, BF16))
    monkeypatch.setattr(guard, "memory_here", lambda _: (False, None))
    guard.require_room(config_of(folder))


def test_a_built_in_model_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(guard, "memory_here", lambda device: asked.append(device) or (False, 1))
    guard.require_room(ConfigStore())
    assert not asked


@pytest.mark.parametrize(
    "changes",
    [
        [BF16, LORA],
        ["model.freeze_vision=true", "algorithm.kl_loss_coef=0.1", "model.tiny.num_layers=1"],
    ],
)
def test_the_sums_are_those_of_the_plan(changes: list[str]) -> None:
    config = ConfigStore().override(["training.batch_size=2", "inference.max_turns=2", *changes])
    states = states_of(policy_of_shapes(config), config)
    planned = plan_of(config, limit=None, tokens=64, picture=(56, 56)).moments[0].parts
    for name in ("weights", "adapters", "value head", "reference", "optimizer"):
        assert planned.get(name, 0) == pytest.approx(states[name], rel=0.001, abs=4096), name
