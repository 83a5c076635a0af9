"""(a) What `uirl plan` says an update takes of a GPU, and what it takes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_parts.models import checkpoint_of, policy_of
from benchmarks.gpu_parts.setting import GIB, Row, Setting
from benchmarks.rehearsal import Ledger, Rehearsal
from uirl.config import ConfigStore, load_config
from uirl.training.plan import PROCESS, plan_of

CONFIGS = Path(__file__).parents[2] / "configs" / "one_gpu"
NOTE = (
    "One update of the largest micro-batch that a config can lead to, after a small one, on made-up samples, in a "
    "process of its own. Measured is `torch.cuda.max_memory_allocated`, on a CPU the bytes of live tensors; the "
    "planned figure is without the allowance for the context of the process, which neither counts."
)


@dataclass(frozen=True, slots=True)
class Case:
    """`file`: of `configs/one_gpu`; `changes`: beside it."""

    model: str
    file: str
    changes: tuple[str, ...] = ()
    picture: tuple[int, int] = (1280, 720)


FIXED = ("model.dtype=bfloat16", "model.gradient_checkpointing=true", "training.learning_rate=2.0e-5")
FIXED += ("training.warm_start.enabled=false", "rollout.parallel=8", "training.micro_batch_tokens=4096")
"""Said here whatever the files say: figures of today and of next year are of the same job."""
WHOLE = ("model.use_lora=false", "training.learning_rate=1e-6")
LARGE = ("rollout.parallel=32", "training.micro_batch_tokens=20480")
TEXT = ("model.max_image_pixels=null", "rollout.max_images=null", "rollout.keep_images=null")
SMALL = "qwen3_vl_2b_lora_16gb.yaml"
CASES = {
    "Qwen3-VL-2B, LoRA": Case("Qwen3-VL-2B", SMALL),
    "Qwen3-VL-4B, LoRA": Case("Qwen3-VL-4B", "qwen3_vl_4b_lora_24gb.yaml"),
    "Qwen2.5-VL-7B, LoRA": Case("Qwen2.5-VL-7B", "qwen2_5_vl_7b_lora_80gb.yaml", LARGE),
    "Qwen3-8B, LoRA": Case("Qwen3-8B", SMALL, TEXT),
    "Qwen3-VL-2B, all of it": Case("Qwen3-VL-2B", SMALL, WHOLE),
    "Qwen3-VL-2B, LoRA, no checkpointing": Case("Qwen3-VL-2B", SMALL, ("model.gradient_checkpointing=false",)),
}
TINY = ["inference.max_context=192", "inference.max_tokens=8", "rollout.token_budget=128", "training.batch_size=8"]
TINY += ["training.micro_batch_tokens=384"]


def config_of(case: Case, setting: Setting, *changes: str) -> ConfigStore:
    """The config of a case on the device."""
    folder = checkpoint_of(case.model, setting)
    where = [f"model.local_path={folder}", f"model.device={setting.device}"]
    return load_config(CONFIGS / case.file, [*FIXED, *case.changes, *where, *(TINY if setting.tiny else ()), *changes])


def measure(name: str, setting: Setting) -> list[Row]:
    """One row: planned and measured GiB."""
    case = CASES[name]
    config = config_of(case, setting)
    picture = setting.pick(case.picture, (64, 64))
    plan = plan_of(config, limit=None, gpu=setting.on_gpu, picture=picture)
    moment, work = plan.moments[0], plan.workload
    # those of a whole run, in main memory, and here are few
    planned = moment.total - PROCESS - moment.parts.get("pictures kept", 0)
    policy, ledger = policy_of(config, setting), Ledger()
    setting.forget_peak()
    with contextlib.nullcontext() if setting.on_gpu else ledger:
        Rehearsal(config, policy, work, ledger).update()
    measured = ledger.most / GIB if setting.peak is None else setting.peak
    return [
        {
            "configuration": name,
            "parameters": plan.parameters,
            "trained": plan.trained,
            "micro-batch": f"{work.rows} x {work.width}, {work.pictures} pictures",
            "planned GiB": planned / GIB,
            "measured GiB": measured,
            "planned / measured": planned / GIB / measured,
        }
    ]
