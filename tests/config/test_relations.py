"""Combinations of keys that cannot work are refused, with the reason; neighbours of them that can work are not."""

import pytest

from uirl.config import ConfigStore
from uirl.errors import ConfigError

REFUSED = {
    "no evaluation between updates would say which is best": (
        ["checkpoint.keep_best=reward", "training.eval_every=null"],
        ["checkpoint.keep_best=reward", "training.eval_every=5"],
    ),
    "a group of one has no baseline": (
        ["training.adv_estimator=grpo", "training.group_size=1"],
        ["training.adv_estimator=gae", "training.group_size=1"],
    ),
    "no multiple of the 8 episodes of a group": (
        ["training.adv_estimator=rloo", "training.batch_size=12"],
        ["training.adv_estimator=gae", "training.batch_size=12"],
    ),
    "a minibatch needs at least one episode": (
        ["training.batch_size=8", "training.minibatches=9"],
        ["training.batch_size=8", "training.minibatches=8"],
    ),
    "none would ever be learned from": (
        ["training.adv_estimator=grpo", "training.group_size=4", "actors.group_floor=5"],
        ["training.adv_estimator=grpo", "training.group_size=4", "actors.group_floor=4"],
    ),
    "rollout.max_tokens=256 leaves no room": (
        ["rollout.max_tokens=256", "inference.max_tokens=256"],
        ["rollout.max_tokens=257", "inference.max_tokens=256"],
    ),
    "rollout.token_budget=100 leaves no room": (
        ["rollout.token_budget=100", "inference.max_tokens=100"],
        ["rollout.token_budget=100", "inference.max_tokens=99"],
    ),
    "inference.max_context=10 leaves no room": (["inference.max_context=10"], ["inference.max_context=1000"]),
    "cannot stay in a window of that size": (
        ["rollout.keep_images=3", "rollout.max_images=2"],
        ["rollout.keep_images=2", "rollout.max_images=2"],
    ),
    "rollout.keep_images=2 with rollout.max_images=None": (["rollout.keep_images=2"], ["rollout.keep_images=null"]),
    "the first reply ends the episode": (
        ["inference.multi_turn=false", "rollout.max_turns=2"],
        ["inference.multi_turn=false", "rollout.max_turns=1"],
    ),
    "every token would be left out of the loss": (
        ["algorithm.mismatch_range=[2, 0.5]"],
        ["algorithm.mismatch_range=[0.5, 2]"],
    ),
    "every stale token would be left out of the loss": (
        ["algorithm.stale_range=[2, 0.5]"],
        ["algorithm.stale_range=[0.5, 2]"],
    ),
    "the critic would never be trained": (
        ["training.value_coef=0"],
        ["training.value_coef=0", "training.adv_estimator=reinforce_plus_plus"],
    ),
    "the controller adapts training.kl_coef, which then weighs nothing": (
        ["algorithm.kl_target=0.1"],
        ["algorithm.kl_target=0.1", "training.use_kl_in_reward=true"],
    ),
    "it could never leave 0": (
        ["algorithm.kl_target=0.1", "training.use_kl_in_reward=true", "training.kl_coef=0"],
        ["algorithm.kl_target=0.1", "training.use_kl_in_reward=true"],
    ),
    "use a horizon of more than 51": (
        ["algorithm.kl_target=0.1", "training.use_kl_in_reward=true", "algorithm.kl_horizon=51"],
        ["algorithm.kl_target=0.1", "training.use_kl_in_reward=true", "algorithm.kl_horizon=52"],
    ),
    "algorithm.kl_type=k1 with algorithm.kl_loss_coef=0.1": (
        ["algorithm.kl_type=k1", "algorithm.kl_loss_coef=0.1"],
        ["algorithm.kl_type=k2", "algorithm.kl_loss_coef=0.1"],
    ),
    "the sign of the penalty would decide": (
        ["training.use_kl_in_reward=true", "training.adv_estimator=rejection_sampling"],
        ["algorithm.kl_loss_coef=0.1", "training.adv_estimator=rejection_sampling"],
    ),
    "algorithm.loss_length=64 is read by": (
        ["algorithm.loss_length=64"],
        ["algorithm.loss_length=64", "algorithm.loss_aggregation=seq-mean-token-sum-norm"],
    ),
    "training.stop_at_success with training.eval_every=null": (
        ["training.stop_at_success=0.9", "training.eval_every=null"],
        ["training.stop_at_success=0.9"],
    ),
    "no evaluation that could stop it": (
        ["training.warm_start.evaluate_every=null"],
        ["training.warm_start.evaluate_every=null", "training.warm_start.stop_at_success=null"],
    ),
    "the embedded engine keeps the model on one device": (
        ["model.tensor_parallel_size=2"],
        ["model.tensor_parallel_size=2", "inference.backend=vllm"],
    ),
    "which only sdpa and eager take": (
        ["model.attn_implementation=flash_attention_2"],
        ["model.attn_implementation=flash_attention_2", "inference.backend=vllm", "model.dtype=bfloat16"],
    ),
    "the kernel computes in 16 bits alone": (
        ["model.attn_implementation=flash_attention_2", "inference.backend=vllm", "model.dtype=float32"],
        ["model.attn_implementation=flash_attention_2", "inference.backend=vllm", "model.dtype=bfloat16"],
    ),
    "weights of 4 bits are not trained themselves": (
        ["model.quantization=nf4", "model.model_name=some/model"],
        ["model.quantization=nf4", "model.model_name=some/model", "model.use_lora=true"],
    ),
    "a built-in model is made in memory": (
        ["model.quantization=nf4", "model.use_lora=true"],
        ["model.quantization=nf4", "model.use_lora=true", "model.model_name=some/model"],
    ),
    "with actors.staleness=1: an engine with weights of its own": (
        ["model.quantization=nf4", "model.use_lora=true", "model.model_name=some/model", "actors.staleness=1"],
        [
            *("model.quantization=nf4", "model.use_lora=true", "model.model_name=some/model", "actors.staleness=1"),
            "inference.backend=vllm",
        ],
    ),
    "with actors.engines=2: an engine with weights of its own": (
        ["model.quantization=nf4", "model.use_lora=true", "model.model_name=some/model", "actors.engines=2"],
        ["model.quantization=nf4", "model.use_lora=true", "model.model_name=some/model"],
    ),
    "use a multiple of 8": (
        ["model.tiny.hidden_size=100"],
        ["model.tiny.hidden_size=100", "model.model_name=some/model"],
    ),
    "use a multiple of 16": (
        ["model.tiny.vision_hidden_size=40"],
        ["model.tiny.vision_hidden_size=40", "model.model_name=uirl/tiny-lm"],
    ),
    "use 56": (["model.tiny.image_size=60"], ["model.tiny.image_size=84"]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_combination_that_cannot_work_is_refused_with_the_reason(reason):
    refused, fine = REFUSED[reason]
    with pytest.raises(ConfigError) as caught:
        ConfigStore().override(refused)
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    ConfigStore().override(fine)


def test_assignments_may_pass_through_a_combination_that_cannot_work():
    config = ConfigStore()
    config.training.group_size = 1
    config.training.adv_estimator = "grpo"
    config.training.group_size = 4
    assert config.check() is config


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        (["inference.temperature=0"], "never explores"),
        (["model.dtype=float16"], "loss scaling"),
        (["inference.backend=scripted"], "replays given replies"),
        (["training.old_log_probs=rollout", "inference.top_p=0.9"], "every ratio of the two would be too small"),
        (["training.old_log_probs=rollout", "inference.top_k=5"], "every ratio of the two would be too small"),
        (["actors.staleness=auto", "training.old_log_probs=rollout"], "nothing would measure it"),
        (["actors.staleness=auto", "training.adv_estimator=rejection_sampling"], "nothing would measure it"),
    ],
)
def test_what_may_generate_but_not_learn(assignments, reason):
    config = ConfigStore().override(assignments)
    with pytest.raises(ConfigError, match=reason):
        config.check(training=True)


def test_all_broken_relations_are_listed():
    with pytest.raises(ConfigError) as caught:
        ConfigStore().override(["training.value_coef=0", "training.minibatches=1000", "model.tensor_parallel_size=2"])
    assert len(str(caught.value).splitlines()) == 3
