"""Adapters on weights of 4 bits: what is quantised, that engine and learner share it, what leaves it, and its size."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learner.updates import log_probs_of
from tests.learner.worlds import make_config, sample_trajectories
from uirl.config import ConfigStore, ModelConfig
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.inference.models.quantized import bytes_of_quantized, is_quantized, language_linears, plain_weight
from uirl.learner import Learner, Policy, export_hf, export_peft, load_checkpoint, load_policy, save_checkpoint
from uirl.training.plan import Described, plan_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint")
    load_model(make_config("model.tiny.hidden_size=64", "model.tiny.intermediate_size=128").model).save(made)
    return made


def config_of(folder: Path, *changes: str) -> ConfigStore:
    nf4 = ["model.quantization=nf4", "model.use_lora=true", "model.dtype=bfloat16", "training.learning_rate=0.01"]
    return ConfigStore().override(
        [f"model.local_path={folder}", "model.device=cpu", *nf4, "training.adv_estimator=reinforce_plus_plus", *changes]
    )


def learner_of(folder: Path, images: ImageStore, *changes: str) -> Learner:
    config = config_of(folder, "training.warm_start.learning_rate=0.01", *changes)
    return Learner(Policy.from_config(config), config, images)


def test_the_language_model_is_quantised_and_nothing_else(folder: Path) -> None:
    model = Policy.from_config(config_of(folder)).model
    narrow = {name for name, parameter in model.named_parameters() if is_quantized(parameter)}
    assert narrow == {f"{name}.weight" for name in language_linears(model)}
    assert len(narrow) == 14, "seven linear layers in each of two"
    others = {parameter.dtype for name, parameter in model.named_parameters() if name not in narrow}
    assert others == {torch.bfloat16}, "adapters too"


def test_what_the_engine_samples_is_what_the_learner_computes(folder: Path, images) -> None:
    learner = learner_of(folder, images)
    samples = sample_trajectories(learner.policy, images)
    learner.update(samples)  # raises where the two are too far apart
    codes = {name: p.clone() for name, p in learner.policy.model.named_parameters() if is_quantized(p)}
    losses = [learner.supervised(samples)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.2
    for name, parameter in learner.policy.model.named_parameters():
        assert name not in codes or torch.equal(codes[name], parameter)


@pytest.mark.parametrize("target", ["all", "attention"])
def test_an_export_is_what_was_trained_in_16_bits(folder: Path, images, tmp_path, target) -> None:
    learner = learner_of(folder, images, f"model.lora.target={target}")
    samples = sample_trajectories(learner.policy, images)
    before = log_probs_of(learner, samples)
    for _ in range(3):
        learner.supervised(samples)
    export_hf(tmp_path / "hf", learner)
    assert "quantization_config" not in json.loads((tmp_path / "hf" / "config.json").read_text())
    plain = make_config(f"model.local_path={tmp_path / 'hf'}", "model.dtype=bfloat16")
    policy = Policy(load_model(plain.model))
    assert not any(is_quantized(parameter) for parameter in policy.model.parameters())
    expected, got = (log_probs_of(one, samples) for one in (learner, Learner(policy, learner.config, images)))
    assert (expected - got).abs().max() < 0.05 < 0.5 < (expected - before).abs().max()
    export_peft(tmp_path / "peft", learner.policy)
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)


def test_a_checkpoint_has_the_adapters_and_gives_the_same_policy(folder: Path, images, tmp_path) -> None:
    learner = learner_of(folder, images)
    samples = sample_trajectories(learner.policy, images)
    learner.update(samples)
    saved = save_checkpoint(tmp_path / "step-1", learner, {})
    expected = learner.update(samples)
    again = learner_of(folder, images)
    load_checkpoint(saved, again)
    assert again.update(samples) == expected
    loaded = Learner(load_policy(saved, model=learner.config.model), learner.config, images)
    load_checkpoint(saved, again)
    assert torch.equal(log_probs_of(loaded, samples), log_probs_of(again, samples))
    assert not (saved / "policy").exists()


def test_the_plan_counts_the_bytes_of_the_codes_and_their_scales(folder: Path) -> None:
    config = config_of(folder)
    kept = 0
    for name, parameter in Policy.from_config(config).model.named_parameters():
        if is_quantized(parameter):
            state: Any = parameter.quant_state  # type: ignore[attr-defined]
            kept += parameter.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
        elif ".lora_" not in name:
            kept += parameter.nbytes
    planned = plan_of(config, limit=None, gpu=False).kept
    assert planned["weights"] == pytest.approx(kept, rel=0.02)  # buffers of the model, scales that fill no block


def test_a_weight_takes_about_half_a_byte(folder: Path) -> None:
    """Counted without the package: 4 bits, a byte per 64, four per 64 x 256."""
    assert bytes_of_quantized(2**14) == 2**13 + 2**8 + 4
    config = config_of(folder)
    whole = config.override(["model.quantization=null"])
    model = Described.of(config.model)
    narrow, wide = (plan_of(one, limit=None, model=model).kept for one in (config, whole))
    layers = sum(layer.weight.numel() for layer in language_linears(model.loaded.model).values())
    assert wide["weights"] - narrow["weights"] == pytest.approx(2 * layers - bytes_of_quantized(layers))
    assert narrow["a layer in full"] == 2 * 128 * 64


def test_what_is_no_code_is_its_own_weight() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert plain_weight(weight) is weight


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"quantization=nf4: cannot import bitsandbytes .* 'uirl\[bitsandbytes\]'"):
        load_model(ModelConfig(local_path=str(folder), quantization="nf4", use_lora=True, device="cpu"))
