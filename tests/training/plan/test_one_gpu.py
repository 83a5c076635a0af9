"""The files for one GPU fit it, with the sizes of the published checkpoints and screenshots as large as they come.

Each is a trace of seconds: a file that does not fit costs its user an hour.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published import write_published
from uirl.config import load_config
from uirl.training.plan.moment import GIB
from uirl.training.plan.plan import plan_of
from uirl.training.plan.settle import settle

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = {
    "one_gpu/qwen2_5_vl_7b_lora_80gb.yaml": ("Qwen2.5-VL-7B", 80, (1920, 1080)),
    "one_gpu/qwen3_vl_4b_lora_24gb.yaml": ("Qwen3-VL-4B", 24, (1920, 1080)),
    "one_gpu/qwen3_vl_2b_lora_16gb.yaml": ("Qwen3-VL-2B", 16, (1920, 1080)),
    # MAI-UI-2B is a Qwen3-VL-2B
    "mobile_world.yaml": ("Qwen3-VL-2B", 80, (1080, 2400)),
}


def test_every_file_for_one_gpu_is_planned() -> None:
    assert {f"one_gpu/{path.name}" for path in (CONFIGS / "one_gpu").iterdir()} == FILES.keys() - {"mobile_world.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_file_fits_its_gpu(file: str, tmp_path: Path) -> None:
    name, gpu, picture = FILES[file]
    config = load_config(CONFIGS / file)
    assert name in config.model.model_name or file == "mobile_world.yaml"
    config.model.local_path = str(write_published(name, tmp_path))
    settled = settle(config, here=(True, gpu * GIB), picture=picture)
    assert settled.config.check(training=True).model.dtype == "bfloat16"
    assert not settled.config.wants_warm_start
    plan = settled.plan or plan_of(settled.config, limit=gpu * GIB, picture=picture)
    assert not plan.problems, str(plan)
    assert plan.workload.bound is not None, "no length is assumed"
    assert plan.workload.pictures
