"""Adapters reach the layers of every family, however it calls them and whether its experts lie in one or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learner.updates import make_learner
from tests.learner.worlds import make_config, sample_trajectories
from uirl.config.sections.model import LoraConfig
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.inference import load_model
from uirl.learner import collate, lora

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Phi": {},
    "Phi3": {},
    "Starcoder2": {},
    "GPTNeoX": {},
    "Bloom": {"n_head": 4, "n_layer": 2},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "Falcon": {},
    "Lfm2": {},
    "Mixtral": {"num_local_experts": 4},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 4, "head_dim": 8, "mlp_only_layers": [0], **EXPERTS},
    "Qwen2Moe": {"num_experts": 4, "shared_expert_intermediate_size": 16, **EXPERTS},
    "Glm4Moe": {"n_routed_experts": 4, "head_dim": 8, "first_k_dense_replace": 1, **EXPERTS},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "JetMoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
    "Phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Llama4Text": {"num_local_experts": 4, "intermediate_size_mlp": 48, "head_dim": 8, "moe_layers": [1]},
    "DeepseekV3": {
        "n_routed_experts": 4,
        "num_key_value_heads": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
    | EXPERTS
    | LATENT,
}
CONFIG = LoraConfig(r=2, lora_alpha=6.0)


def model_of(family: str, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family] | changes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_all_reaches_nearly_all_weights_and_comes_back_from_peft(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = model_of(family)
    base, again = copy.deepcopy(model), copy.deepcopy(model)
    targets = lora.target_modules(model, CONFIG)
    share = lora.adapted_share(model, targets)
    assert share > 0.95
    lora.add_adapters(model, CONFIG, seed=0)
    ids = torch.arange(3, 17).reshape(2, 7)
    plain = base(ids).logits
    assert torch.equal(model(ids).logits, plain)
    for name, parameter in lora.adapter_weights(model):
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    changed = model(ids).logits
    assert (changed - plain).abs().max() > 1e-2
    with lora.adapters_off(model):
        assert torch.equal(model(ids).logits, plain)
    lora.save_adapter(tmp_path, model, CONFIG, base="base")
    assert (PeftModel.from_pretrained(again, tmp_path).eval()(ids).logits - changed).abs().max() < 1e-5
    names = {name for name, _ in base.named_parameters()}
    merged = dict(lora.merged_weights(model))
    assert merged.keys() == names
    base.load_state_dict(merged, strict=False)
    assert (base(ids).logits - changed).abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_and_mlp_are_halves_of_all(family: str) -> None:
    model = model_of(family)
    parts = [lora.target_modules(model, LoraConfig(target=kind)).weights for kind in ("attention", "mlp")]  # type: ignore[arg-type]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == lora.target_modules(model, CONFIG).weights


def test_where_most_weights_are_out_of_reach_all_is_refused() -> None:
    model = model_of("Llama")
    for layer in model.model.layers:
        layer.mlp.experts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(64, 256))])
    with pytest.raises(ConfigError, match=r"target=all reaches \d+% of the weights .*, expected at least 50%"):
        lora.add_adapters(model, CONFIG, seed=0)


def test_experts_in_one_have_no_dropout_and_no_form_for_engines() -> None:
    model = model_of("Mixtral")
    with pytest.raises(ConfigError, match=r"lora_dropout=0\.1: peft takes no such adapters"):
        lora.add_adapters(model, LoraConfig(lora_dropout=0.1), seed=0)
    model = model_of("Mixtral")
    lora.add_adapters(model, CONFIG, seed=0)
    with pytest.raises(ConfigError, match=r"engines of their own take no such adapters; set model\.lora\.target"):
        lora.peft_config(model, CONFIG)


@pytest.mark.parametrize("family", ["Mixtral", "DeepseekV3", "Starcoder2"])
def test_a_policy_samples_and_learns_with_adapters_everywhere(family: str, tmp_path: Path) -> None:
    tokenizer = load_model(make_config("model.model_name=uirl/tiny-lm").model).tokenizer
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    model_of(family, vocab_size=len(tokenizer), **ids).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    changes = [f"model.local_path={tmp_path}", "model.use_lora=true", "model.lora.r=2", "training.learning_rate=0.01"]
    learner = make_learner(ImageStore(), *changes)
    policy = learner.policy
    before = {name: tensor.detach().clone() for name, tensor in policy.model.named_parameters()}
    samples = sample_trajectories(policy, ImageStore())
    for _ in range(2):  # in the first step A has no gradient yet, since B is 0
        learner.update(samples)
    changed = {name for name, tensor in policy.model.named_parameters() if not torch.equal(before[name], tensor)}
    assert changed == {name for name, _ in policy.adapter_weights()}
    batch = collate(policy.loaded, sample_trajectories(policy, ImageStore()), ImageStore())
    with torch.no_grad():
        assert (policy.log_probs_and_values(batch).log_probs - batch.rollout_log_probs).abs().max() < 1e-4
