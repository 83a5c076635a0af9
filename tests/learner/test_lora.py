"""Adapters: where they go, that gradients reach nothing else, and that off and merged are what they say."""

import pytest
import torch

from tests.inference.models.picture_families import saved
from tests.learner.worlds import make_config, sample_trajectories, weights_of
from uirl.config.sections.model import LoraConfig
from uirl.errors import CheckpointError, ConfigError
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, collate, export_peft, save_checkpoint
from uirl.learner.lora import target_modules

TEXT = "model.language_model.layers.0."
VISION = "model.visual.blocks.0."


def lora_config(*overrides: str):
    # neither number is a default of peft, so that a description which lacks one reads as another adapter
    return make_config("model.use_lora=true", "model.lora.r=4", "model.lora.lora_alpha=6", *overrides)


def adapted(policy: Policy) -> set[str]:
    return {name.split(".lora_")[0] for name, _ in policy.adapter_weights()}


def stir(policy: Policy) -> None:
    """Makes the adapters matter: B starts from 0."""
    with torch.no_grad():
        for _, p in policy.adapter_weights():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))


ATTENTION = {TEXT + f"self_attn.{name}_proj" for name in "qkvo"}
MLP = {TEXT + f"mlp.{name}_proj" for name in ("gate", "up", "down")}
CONNECTOR = {f"model.visual.merger.mlp.{number}" for number in (0, 2)}
SEEING = {VISION + name for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.lora.target=attention"], ATTENTION),
        (["model.lora.target=mlp"], MLP),
        (["model.lora.target=all"], ATTENTION | MLP),
        (["model.lora.target=all", "model.lora.vision=true"], ATTENTION | MLP | SEEING | CONNECTOR),
        (["model.lora.target=attention", "model.lora.vision=true"], ATTENTION | {n for n in SEEING if "attn" in n}),
        (["model.lora.target=[q_proj, v_proj]"], {n for n in ATTENTION if n.endswith(("q_proj", "v_proj"))}),
        (["model.lora.target=[qkv]", "model.lora.vision=true"], {VISION + "attn.qkv"}),
    ],
)
def test_adapters_go_where_they_are_asked_to(overrides, expected):
    policy = Policy.from_config(lora_config("model.tiny.num_layers=1", *overrides))
    assert adapted(policy) == expected
    assert type(policy.model).__name__ == "Qwen2VLForConditionalGeneration"


@pytest.mark.parametrize("architecture", ["qwen2_5_vl", "qwen3_vl"])
def test_the_names_of_other_architectures_are_known(architecture):
    config = lora_config(f"model.tiny.architecture={architecture}", "model.lora.vision=true")
    names = {name.rsplit(".", 1)[-1] for name in adapted(Policy.from_config(config)) if "visual.blocks" in name}
    mlp = {"gate_proj", "up_proj", "down_proj"} if architecture == "qwen2_5_vl" else {"linear_fc1", "linear_fc2"}
    assert names == {"qkv", "proj"} | mlp  # the connector lies beside the blocks


def test_a_name_that_fits_nothing_is_refused(policy):
    config = lora_config("model.lora.target=[q_proj, qkv]").model.lora
    with pytest.raises(ConfigError, match=r"no linear layer qkv.*outside its vision tower"):
        target_modules(policy.model, config)


@pytest.mark.parametrize("vision", ["false", "true"])
def test_gradients_and_steps_reach_the_adapters_alone(vision, images):
    config = lora_config(f"model.lora.vision={vision}", "training.adv_estimator=reinforce_plus_plus")
    policy = Policy.from_config(config)
    before = weights_of(policy)
    learner = Learner(policy, config, images)
    samples = sample_trajectories(policy, images)
    for _ in range(2):  # in the first step A has no gradient yet, since B is 0
        learner.supervised(samples)
    changed = {name for name, p in weights_of(policy).items() if not torch.equal(p, before[name])}
    assert changed == {name for name, _ in policy.adapter_weights()}


def test_the_reference_is_the_base_while_adapters_are_fresh_and_their_copy_later(images):
    policy = Policy.from_config(lora_config())
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=2), images)
    policy.freeze_reference()
    assert policy.reference_weights is None
    with torch.no_grad():
        base = policy.log_probs_and_values(batch).log_probs
        stir(policy)
        with policy.reference():
            assert torch.equal(policy.log_probs_and_values(batch).log_probs, base)
        warm = policy.log_probs_and_values(batch).log_probs
        policy.freeze_reference()
        stir(policy)
        with policy.reference():
            assert torch.equal(policy.log_probs_and_values(batch).log_probs, warm)
    assert policy.reference_weights.keys() == {name for name, _ in policy.adapter_weights()}


def test_adapters_drop_inputs_only_while_gradients_flow(images):
    policy = Policy.from_config(lora_config("model.lora.lora_dropout=0.5", "model.lora.vision=true"))
    stir(policy)
    samples = sample_trajectories(policy, images)
    batch = collate(policy.loaded, samples, images)
    with torch.no_grad():
        said = policy.log_probs_and_values(batch).log_probs
        assert (said - batch.rollout_log_probs).abs().max() < 1e-4
        policy.train(True)
        assert not torch.allclose(policy.log_probs_and_values(batch).log_probs, said, atol=1e-3)
        policy.train(False)
        assert torch.equal(policy.log_probs_and_values(batch).log_probs, said)


def test_adapters_depend_on_the_seed_and_leave_the_random_state_alone():
    state = torch.get_rng_state()
    first, same = (dict(Policy.from_config(lora_config()).adapter_weights()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    other = dict(Policy.from_config(lora_config("training.seed=1")).adapter_weights())
    name = next(n for n in first if ".lora_A." in n)
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("overrides", [[], ["model.lora.vision=true"]])
def test_a_checkpoint_holds_an_adapter_that_peft_reads(tmp_path, overrides):
    from peft import PeftModel

    config = lora_config("model.tiny.num_layers=1", *overrides)
    policy = Policy.from_config(config)
    stir(policy)
    learner = Learner(policy, config, ImageStore())
    checkpoint = save_checkpoint(tmp_path / "step-1", learner, {})
    base = Policy.from_config(make_config("model.tiny.num_layers=1"))
    read = PeftModel.from_pretrained(base.model, str(checkpoint / "adapter"))
    own = dict(policy.adapter_weights())
    theirs = {name.removeprefix("base_model.model."): p for name, p in read.named_parameters() if ".lora_" in name}
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    ids = torch.arange(5, 12)[None]
    assert torch.equal(read(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_an_exported_adapter_opens_with_the_auto_classes_of_hf(tmp_path):
    from transformers import AutoModelForCausalLM

    policy = Policy.from_config(lora_config("model.model_name=uirl/tiny-lm"))
    stir(policy)
    folder = export_peft(tmp_path / "adapter", policy)
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(5, 12)[None]
    assert torch.equal(read(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    with pytest.raises(CheckpointError, match="has no adapters"):
        export_peft(tmp_path / "none", Policy.from_config(make_config("model.model_name=uirl/tiny-lm")))


@pytest.mark.parametrize("family", ["llava", "idefics2", "qwen2_vl"])
def test_the_vision_tower_of_every_kind_is_left_alone(family, tmp_path):
    model = saved(family, tmp_path).model
    everywhere = target_modules(model, LoraConfig(target="all", vision=True)).layers
    chosen = target_modules(model, LoraConfig(target="all")).layers
    tower = [
        name for name in everywhere if any(part in name for part in ("vision", "visual", "connector", "projector"))
    ]
    assert tower
    assert set(chosen) == set(everywhere) - set(tower)
