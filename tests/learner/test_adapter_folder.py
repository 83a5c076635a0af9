"""A policy begins with adapters that peft saved, or says why they are not its own."""

import json
import shutil

import pytest
import torch

from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import make_config, sample_trajectories
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.learner import Policy, export_peft, load_policy, save_checkpoint
from uirl.learner.lora import _require_base
from uirl.runtime.folders import read_tensors, write_tensors

LORA = (TEXT, "model.use_lora=true", "model.lora.r=4", "training.learning_rate=0.01")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A policy with adapters that learned, and the folder in which peft would find them."""
    images = ImageStore()
    learner = make_learner(images, *LORA)
    learner.update(sample_trajectories(learner.policy, images))
    return learner, export_peft(tmp_path_factory.mktemp("learned") / "adapter", learner.policy)


@pytest.fixture
def trained(learned, tmp_path):
    """The same with a folder of its own, which may be changed."""
    return learned[0], shutil.copytree(learned[1], tmp_path / "adapter")


def adapters_of(policy):
    return {name: tensor.detach().clone() for name, tensor in policy.adapter_weights()}


def begin(folder, *overrides):
    return Policy.from_config(make_config(*LORA, f"model.adapter_path={folder}", *overrides))


def test_it_begins_where_the_adapters_ended(trained):
    learner, folder = trained
    ours, theirs = adapters_of(begin(folder)), adapters_of(learner.policy)
    assert any(tensor.any() for name, tensor in theirs.items() if ".lora_B." in name)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_it_learns_on_with_these_adapters_as_its_reference(trained, images):
    _, folder = trained
    learner = make_learner(images, *LORA, f"model.adapter_path={folder}", "algorithm.kl_loss_coef=0.1")
    before = adapters_of(learner.policy)
    samples = sample_trajectories(learner.policy, images)
    assert learner.update(samples)["kl_reference"] < 0.1
    after = adapters_of(learner.policy)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    reference = learner.policy.reference_weights
    assert all(torch.equal(reference[name], before[name]) for name in before)


def test_its_checkpoint_needs_the_folder_no_more(trained, images, tmp_path):
    _, folder = trained
    learner = make_learner(images, *LORA, f"model.adapter_path={folder}")
    learner.update(sample_trajectories(learner.policy, images))
    saved = save_checkpoint(tmp_path / "step_1", learner, {})
    for path in folder.glob("adapter_*"):
        path.unlink()
    theirs = adapters_of(learner.policy)
    for model in (None, learner.config.model):
        ours = adapters_of(load_policy(saved, model=model))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.lora.r=8"], r"has r=4, expected the 8 of model\.lora\.r; set model\.lora\.r=4"),
        (["model.lora.lora_alpha=1"], r"lora_alpha=32\.0, expected the 1\.0 .*; set model\.lora\.lora_alpha=32\.0"),
        (["model.lora.target=attention"], r"which this policy has not .* set model\.lora\.target=\[down_proj, gate_"),
        (["model.tiny.hidden_size=64"], r"belongs to another base model: .* expected .* for uirl/tiny-lm"),
    ],
)
def test_adapters_of_another_policy_are_refused(trained, overrides, told):
    with pytest.raises(ConfigError, match=told):
        begin(trained[1], *overrides)


def changed(folder, **settings):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


OTHER = {
    "megatron_config": {"a": 1},
    "bias": "all",
    "peft_type": "IA3",
    "arrow_config": {"a": 1},
    "ensure_weight_tying": True,
}
BESIDE = {
    "r",
    "lora_alpha",
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
}
"""Which layers have adapters, which their weights say, and sizes, which have tests of their own."""
SILENT = {
    "task_type": "SEQ_CLS", "auto_mapping": {"a": 1}, "peft_version": "0.1", "base_model_name_or_path": "/elsewhere",
    "revision": "main", "inference_mode": False, "lora_dropout": 0.5, "megatron_core": None, "qalora_group_size": 4,
    "runtime_config": {"a": 1},
}  # fmt: skip
"""Settings that change nothing of what the weights compute."""


def test_of_all_settings_of_peft_those_that_compute_something_else_are_refused(trained):
    """Those of future versions too: what is not known to change nothing is refused."""
    from dataclasses import fields

    from peft import LoraConfig

    learner, folder = trained
    plain = (folder / "adapter_config.json").read_text()
    usual = LoraConfig().to_dict() | {"of_the_future": None}
    names = {field.name for field in fields(LoraConfig)} - BESIDE | {"of_the_future"}
    assert names > set(SILENT)
    for name in sorted(names - set(SILENT) - {"init_lora_weights"}):
        other = OTHER.get(name, not usual[name] if isinstance(usual[name], bool) else {"a": 1})
        changed(folder, **{name: other})
        with pytest.raises(ConfigError, match=rf"has {name}=.*, expected .*, a plain LoRA; merge it"):
            begin(folder)
        (folder / "adapter_config.json").write_text(plain)
    changed(folder, **SILENT, of_the_future=False)
    ours, theirs = adapters_of(begin(folder)), adapters_of(learner.policy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    "way", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "mica", "of_the_future"]
)
def test_adapters_that_begin_by_changing_their_base_model_are_refused(trained, way):
    changed(trained[1], init_lora_weights=way)
    with pytest.raises(ConfigError, match=rf"has init_lora_weights='{way}', expected True"):
        begin(trained[1])


@pytest.mark.parametrize("way", [True, False, "gaussian", "orthogonal", "eva"])
def test_other_beginnings_of_adapters_are_taken(trained, way):
    learner, folder = trained
    changed(folder, init_lora_weights=way)
    ours, theirs = adapters_of(begin(folder)), adapters_of(learner.policy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_is_no_adapter_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"expected a folder of peft with a readable adapter_config\.json"):
        begin(tmp_path)
    changed(trained[1], base_model_name_or_path="another/model")
    with pytest.raises(ConfigError, match=r"was trained on another/model, got the base model uirl/tiny-lm"):
        begin(trained[1])
    changed(trained[1], base_model_name_or_path=None)
    weights = trained[1] / "adapter_model.safetensors"
    broken = {name: tensor * float("nan") for name, tensor in read_tensors(weights).items()}
    write_tensors(weights, broken)
    with pytest.raises(ConfigError, match="is not finite"):
        begin(trained[1])
    weights.unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model\.safetensors; .*safe_serialization=True"):
        begin(trained[1])


@pytest.mark.parametrize(
    ("named", "base", "fits"),
    [
        ("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-4B-Instruct", True),
        ("Qwen/Qwen3-VL-4B-Instruct", "qwen/qwen3-vl-4b-instruct", True),
        ("Qwen/Qwen3-VL-4B-Instruct", "/models/four", True),
        ("", "Qwen/Qwen3-VL-4B-Instruct", True),
        ("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-4B-Thinking", False),
    ],
)
def test_a_base_model_of_another_name_is_refused_where_both_are_ids(tmp_path, named, base, fits):
    if fits:
        _require_base(tmp_path, named, base)
    else:
        with pytest.raises(ConfigError, match=rf"was trained on {named}, got .* {base}; set model\.model_name={named}"):
            _require_base(tmp_path, named, base)
