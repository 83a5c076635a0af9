"""What `uirl plan` advises was planned: each set of keys goes together and fits, or is said not to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published import write_published
from uirl.config import ConfigStore
from uirl.training.plan.moment import GIB
from uirl.training.plan.plan import Plan, Traces, plan_of
from uirl.training.plan.remedy import advice, remedies

pytestmark = pytest.mark.slow

WINDOW = ["rollout.max_images=3", "rollout.keep_images=2"]
LORA = ["model.use_lora=true", "model.gradient_checkpointing=true", "model.dtype=bfloat16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published("Qwen2.5-VL-7B", tmp_path_factory.mktemp("published"))


def config_of(folder: Path, *changes: str) -> ConfigStore:
    small = ["training.adv_estimator=grpo", "training.batch_size=8", "rollout.parallel=1"]
    small += ["training.micro_batch_tokens=2048"]
    return ConfigStore().override([f"model.local_path={folder}", *small, *changes])


@pytest.mark.parametrize(
    ("gib", "changes", "expected"),
    [
        (16, [*LORA, *WINDOW], ["model.quantization=nf4"]),
        (16, [*LORA, *WINDOW, "actors.staleness=1"], ["model.quantization=nf4", "actors.staleness=0"]),
        (24, [*WINDOW, "model.freeze_vision=true", "model.dtype=bfloat16", "model.gradient_checkpointing=true"], None),
    ],
)
def test_the_keys_that_help_are_found(folder: Path, gib: int, changes: list[str], expected: list[str] | None) -> None:
    traces = Traces()

    def planned(changed: ConfigStore) -> Plan:
        return plan_of(changed, limit=gib * GIB, tokens=2048, picture=(640, 360), traces=traces)

    config = config_of(folder, *changes)
    plan = planned(config)
    assert plan.problems
    found, fits = remedies(config, plan, planned)
    assert expected is None or found == expected
    changed = config.override(found).check(training=True)
    assert str(planned(changed)) == str(fits)
    assert not fits.problems
    assert advice(found, fits) == f"it fits with: {' '.join(found)}"
