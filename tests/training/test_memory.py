"""The formula of memory against what was measured: bytes of live tensors of the same step, and of published models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plan import CASES, config_of, predicted
from benchmarks.rehearsal import Ledger, Rehearsal
from tests.inference.models.picture_families import saved
from tests.inference.pictures import picture
from tests.published import PARAMETERS, published_config, write_published
from uirl.config import ConfigStore
from uirl.images import ImageStore
from uirl.inference import ChatRenderer
from uirl.learner import Policy
from uirl.rollout.conversation import ContextWindow, Conversation
from uirl.training.memory import GIB, kv_cache, patches_of, rows_of_episode, shape_of_config
from uirl.training.plan import PROCESS, UPDATE, Described, Plan, plan_of
from uirl.types import Observation

GRPO = ["training.adv_estimator=grpo", "training.batch_size=8", "training.entropy_coef=0"]
BF16, LORA, AGAIN = "model.dtype=bfloat16", "model.use_lora=true", "model.gradient_checkpointing=true"
MEASURED = dict(zip(CASES, (1007, 370, 542, 684, 742, 1000), strict=True))
"""MiB of live tensors of an update (benchmarks/RESULTS.md, "What the plan of memory says, and what is measured")."""


@pytest.mark.parametrize("case", CASES)
def test_an_update_takes_what_was_measured(case: str) -> None:
    assert predicted(config_of(case, 600)) / 2**20 == pytest.approx(MEASURED[case], rel=0.05)


COUNTED = {
    # model: (what is trained, tokens, a picture, GiB, GiB where activations are computed again)
    "Qwen2.5-VL-7B": [(LORA, 10_240, (1280, 720), 43.8, 4.91)],
    "Qwen3-VL-4B": [(LORA, 4096, (1280, 720), 15.1, 1.37)],
    "Qwen3-VL-2B": [(LORA, 4096, (1280, 720), 7.7, 0.88), ("model.use_lora=false", 15_872, (1080, 2400), 57.7, 5.42)],
}
"""Activations in bfloat16 on one sequence (benchmarks/RESULTS.md, "What norms and gated layers keep"), counted
operation by operation on shapes, by a program that this formula has replaced."""


@pytest.mark.parametrize("name", COUNTED)
def test_activations_of_published_models_are_those_that_were_counted(name: str, tmp_path: Path) -> None:
    sizes = ["inference.max_turns=3", "inference.max_tokens=256", "rollout.max_images=3"]
    config = ConfigStore().override([*GRPO, *sizes, f"model.local_path={write_published(name, tmp_path)}", BF16])
    model = Described.of(config.model)
    for trained, tokens, size, kept, again in COUNTED[name]:
        for changes, expected in (([], kept), ([AGAIN], again)):
            run = config.override([f"training.micro_batch_tokens={tokens}", trained, *changes])
            plan = plan_of(run, limit=None, tokens=tokens, picture=size, model=model)
            planned = part(plan, UPDATE, "activations") + part(plan, UPDATE, "logits")
            assert planned / GIB == pytest.approx(expected, rel=0.05 if trained == LORA else 0.1), (tokens, changes)
    adapters = plan_of(config.override([LORA]), limit=None, model=model).trained
    assert adapters == config.model.lora.r * model.shape.text.layers * model.shape.text.adapted


def part(plan: Plan, moment: str, name: str) -> float:
    return next(m for m in plan.moments if m.name == moment).parts.get(name, 0.0)


SMALL = ["inference.max_tokens=16", "inference.max_turns=2", "training.batch_size=4", "training.minibatches=1"]
SMALL += ["training.micro_batch_tokens=256", "rollout.max_images=2"]
FAMILIES = ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "idefics3", "internvl"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [[], [LORA, AGAIN]], ids=["all of it", "adapters"])
def test_an_update_of_a_small_model_of_a_family_takes_about_that(
    family: str, changes: list[str], tmp_path: Path
) -> None:
    """Of models 32 or 64 wide what is no layer weighs more: a fifth is allowed."""
    saved(family, tmp_path)
    config = ConfigStore().override([*SMALL, *GRPO, f"model.local_path={tmp_path}", "model.dtype=bfloat16", *changes])
    policy, ledger = Policy.from_config(config), Ledger()
    plan = plan_of(config, limit=None, picture=(64, 48))
    with ledger:
        rehearsal = Rehearsal(config, policy, plan.workload, ledger)
        parts = rehearsal.update()
    counted = ledger.most - kept_pictures(rehearsal)
    assert plan.moments[0].total - PROCESS == pytest.approx(counted, rel=0.2)
    for name in ("weights", "adapters", "optimizer"):
        assert part(plan, UPDATE, name) == pytest.approx(parts[name], rel=0.001, abs=4096), name


def kept_pictures(rehearsal: Rehearsal) -> int:
    """Bytes of encoded pictures that wait for their next use, which are those of the host."""
    vision = rehearsal.loaded.vision
    shown = [image for image, _ in rehearsal.images._kept.values()]
    return 0 if vision is None else sum(image.bytes for image in vision.encode(shown))


@pytest.mark.parametrize("name", ["Qwen2.5-VL-3B", "Qwen2.5-VL-7B", "Qwen3-VL-2B", "Qwen3-8B"])
def test_parameters_are_those_of_the_published_checkpoints(name: str) -> None:
    shape = shape_of_config(published_config(name))
    assert shape.parameters == PARAMETERS[name]
    assert shape.tied == (name in ("Qwen2.5-VL-3B", "Qwen3-VL-2B"))
    config = published_config(name).get_text_config()
    heads = config.num_key_value_heads
    assert kv_cache(shape, 1, 1) == 2 * config.num_hidden_layers * heads * 128 * 2
    assert kv_cache(shape, 1, 4 * heads) == 2 * config.num_hidden_layers * 128 * 2, "no further than there are heads"


def test_a_plan_takes_no_memory(tmp_path: Path) -> None:
    """Eight billion parameters on any machine: 15.4 GiB of weights in 16 bits, which nobody allocates."""
    folder = write_published("Qwen2.5-VL-7B", tmp_path)
    config = ConfigStore().override([*SMALL, *GRPO, f"model.local_path={folder}", BF16, LORA, AGAIN])
    plan = plan_of(config, limit=80 * GIB, tokens=512, picture=(112, 112))
    assert plan.parameters == PARAMETERS["Qwen2.5-VL-7B"]
    assert part(plan, UPDATE, "weights") == pytest.approx(2 * PARAMETERS["Qwen2.5-VL-7B"], rel=1e-4)
    assert not plan.problems


@pytest.mark.parametrize("size", [(1280, 720), (1080, 2400), (30, 800), (5000, 4000)])
def test_a_picture_has_the_patches_that_the_processor_makes(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    vision = shape_of_config(published_config("Qwen2.5-VL-7B")).vision
    assert vision is not None
    height, width = smart_resize(size[1], size[0], factor=28, min_pixels=1, max_pixels=4_000_000)
    assert patches_of(vision, *size, 4_000_000) == height * width // 14**2


@pytest.mark.parametrize(("most", "kept"), [(None, None), (1, 1), (3, None), (3, 2), (3, 1), (5, 3)])
def test_sequences_hold_as_many_pictures_as_the_window_leaves(
    vlm_chat: ChatRenderer, most: int | None, kept: int | None
) -> None:
    talk = Conversation(vlm_chat, ContextWindow(most, keep_images=kept))
    rows: list[int] = []
    for turn in range(9):
        talk.observe(Observation("look", (ImageStore().put(picture(turn)),)))
        context = talk.context()
        if context.starts_segment:
            rows.append(0)
        rows[-1] += len(context.new_images)
        talk.reply(vlm_chat.demonstration("yes"), "yes", ended=True)
    assert rows_of_episode(9, most, kept) == rows
