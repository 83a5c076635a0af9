"""The plan against the thing itself: the same step of the learner on real tensors, counted the same way."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
import torch

from tests.inference.models.picture_families import saved
from tests.published import PARAMETERS, write_published
from uirl.algorithms import token_scores
from uirl.config import ConfigStore
from uirl.errors import CheckpointError, ContractError
from uirl.learner import Policy
from uirl.training.plan import depth, fake
from uirl.training.plan.ledger import Ledger
from uirl.training.plan.moment import GIB
from uirl.training.plan.plan import PROCESS, Plan, plan_of
from uirl.training.plan.rehearsal import Rehearsal
from uirl.training.plan.workload import workload_of

pytestmark = pytest.mark.slow

SMALL = ["inference.max_tokens=16", "inference.max_turns=2", "training.batch_size=4", "training.minibatches=1"]
SMALL += ["training.micro_batch_tokens=256", "rollout.max_images=2"]
LM, VLM = "model.model_name=uirl/tiny-lm", "model.model_name=uirl/tiny-vlm"
BF16, LORA, AGAIN = "model.dtype=bfloat16", "model.use_lora=true", "model.gradient_checkpointing=true"
GRPO = "training={adv_estimator: grpo, group_size: 2}"
CASES = {
    "a language model, all of it": [LM],
    "a language model, adapters, 16 bits": [LM, GRPO, LORA, BF16],
    "a vision model, all of it, 16 bits, recomputing, with a reference": [
        VLM,
        BF16,
        AGAIN,
        "algorithm.kl_loss_coef=0.1",
        "model.tiny.architecture=qwen3_vl",
    ],
    "a vision model, adapters": [VLM, GRPO, LORA],
    "a vision model, frozen eyes, one micro-batch": [VLM, "model.freeze_vision=true", "training.batch_size=1"],
}


def small(*changes: str) -> ConfigStore:
    return ConfigStore().override([*SMALL, *changes])


def planned(config: ConfigStore) -> Plan:
    return plan_of(config, limit=None, gpu=False, picture=(112, 112), tokens=96)


def kept_pictures(rehearsal: Rehearsal) -> int:
    """Bytes of encoded pictures that wait for their next use, which are those of the host."""
    vision = rehearsal.loaded.vision
    shown = [image for image, _ in rehearsal.images._kept.values()]
    return 0 if vision is None else sum(image.bytes for image in vision.encode(shown))


@pytest.mark.parametrize("case", CASES)
def test_an_update_takes_what_the_plan_says(case: str) -> None:
    config = small(*CASES[case])
    plan = planned(config)
    policy, ledger = Policy.from_config(config), Ledger()
    work = workload_of(config, policy.loaded, picture=(112, 112), tokens=96)
    assert work == plan.workload
    assert all(plan.moments[0].parts.values()), "a part that takes nothing is not told"
    beside = {"contexts, libraries", "pictures kept"}
    planned_parts = {name: size for name, size in plan.moments[0].parts.items() if name not in beside}
    with ledger:
        rehearsal = Rehearsal(config, policy, work, ledger)
        parts = rehearsal.update()
    assert ledger.most == parts.total()
    assert sum(planned_parts.values()) == pytest.approx(ledger.most - kept_pictures(rehearsal), rel=0.005)
    for part in ("weights", "adapters", "reference", "optimizer", "gradients"):
        assert planned_parts.get(part, 0) == pytest.approx(parts[part], rel=0.001, abs=4096), part


def test_a_model_that_looks_at_its_pictures_is_planned(tmp_path: Path) -> None:
    """Idefics3 leaves out pictures that are all 0: of numbers that nobody knows all stay."""
    saved("idefics3", tmp_path)
    config = small(f"model.local_path={tmp_path}", "model.lora.vision=true", GRPO, LORA)
    policy, ledger = Policy.from_config(config), Ledger()
    work = workload_of(config, policy.loaded, picture=(64, 48))
    with ledger:
        rehearsal = Rehearsal(config, policy, work, ledger)
        rehearsal.update()
    plan = plan_of(config, limit=None, picture=(64, 48))
    counted = ledger.most - kept_pictures(rehearsal)
    assert plan.moments[0].total - PROCESS == pytest.approx(counted, rel=0.03)


def test_what_cannot_be_traced_is_said(tmp_path: Path) -> None:
    """PyTorch's grouped products of experts know fake tensors in 16 bits alone."""
    saved("qwen3_vl_moe", tmp_path)
    with pytest.raises(ContractError, match=r"cannot be planned: .* float32 .* BF16 .* another model\.dtype"):
        planned(small(f"model.local_path={tmp_path}"))


def test_layers_that_are_not_traced_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(VLM, "model.tiny.num_layers=9", "model.tiny.vision_layers=8")
    few = planned(config)
    monkeypatch.setattr(depth, "ALL", 9)
    whole = planned(config)
    for one, other in zip(few.moments, whole.moments, strict=True):
        assert one.total - PROCESS == pytest.approx(other.total - PROCESS, rel=0.01)


def test_blocks_of_logits_that_are_not_traced_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "_BLOCK_ELEMENTS", 2**11)  # four rows
    config = small(LM, "algorithm.kl_loss_coef=0.1")
    few = planned(config)
    monkeypatch.setattr(fake, "_few_blocks", contextlib.nullcontext)
    assert [moment.parts for moment in planned(config).moments] == [moment.parts for moment in few.moments]


def test_a_plan_changes_no_score_of_real_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "_BLOCK_ELEMENTS", 2**5)
    logits, targets = torch.randn(40, 8), torch.randint(8, (40,))
    expected = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    with fake._few_blocks():
        log_probs, _ = token_scores.score_tokens(logits.clone(), targets)
        assert token_scores.VISITOR.get() is not None
    assert torch.allclose(log_probs, expected, atol=1e-6)
    assert token_scores.VISITOR.get() is None


def test_a_ledger_counts_a_storage_until_it_is_gone_and_once() -> None:
    with Ledger() as ledger:
        first = torch.zeros(1000)
        view = first.view(10, 100)
        second = first + 1
        assert (ledger.total, ledger.most) == (8000, 8000)
        del first
        gc.collect()
        assert ledger.total == 8000, "a view holds it"
        del view, second
        gc.collect()
        assert (ledger.total, ledger.most) == (0, 8000)
        ledger.restart()
        assert ledger.most == 0


def test_a_plan_takes_no_memory(tmp_path: Path) -> None:
    """Eight billion parameters on any machine: 15.4 GiB of weights in 16 bits, which nobody allocates."""
    folder = write_published("Qwen2.5-VL-7B", tmp_path)
    config = small(f"model.local_path={folder}", BF16, LORA, AGAIN, GRPO)
    plan = plan_of(config, limit=80 * GIB, tokens=512, picture=(112, 112))
    assert plan.parameters - plan.trained == PARAMETERS["Qwen2.5-VL-7B"]
    assert plan.moments[0].parts["weights"] == pytest.approx(2 * PARAMETERS["Qwen2.5-VL-7B"], rel=1e-4)
    assert not plan.problems


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing-here"):
        planned(small(f"model.local_path={tmp_path / 'nothing-here'}"))
