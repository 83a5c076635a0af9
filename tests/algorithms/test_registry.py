"""The table of algorithms, its uniform inputs, and the descriptions for `Trainer(model, algorithm)`."""

import dataclasses
import inspect
import math

import pytest
import torch

import uirl.algorithms as algorithms
from uirl.algorithms import (
    ALGORITHMS,
    GRPO,
    PPO,
    RLOO,
    AdvantageInputs,
    GiGPO,
    PolicyLossOptions,
    ReinforcePlusPlus,
    RejectionSampling,
    TurnLevel,
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    get_algorithm,
)

DESCRIPTIONS = [
    RejectionSampling(),
    PPO(),
    GRPO(),
    RLOO(),
    ReinforcePlusPlus(),
    ReinforcePlusPlus(group_baseline=True),
    TurnLevel(),
    GiGPO(),
]


def inputs(**changes) -> AdvantageInputs:
    g = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
    turns = torch.tensor([[0, 0, -1, 1], [0, -1, 1, -1], [0, 0, 1, 1], [-1, 0, -1, 1]])
    given = {
        "token_level_rewards": torch.randn(4, 4, generator=g) * mask,
        "response_mask": mask,
        "values": torch.randn(4, 4, generator=g),
        "index": ["a", "a", "b", "b"],
        "turn_ids": turns,
        "anchor_ids": turns,
        "gamma": 0.9,
    }
    return AdvantageInputs(**(given | changes))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_entry_keeps_the_contract(name):
    spec, batch = ALGORITHMS[name], inputs()
    advantages, returns = spec.advantage(batch)
    for tensor in (advantages, returns):
        assert tensor.shape == (4, 4)
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
        assert (tensor[batch.response_mask == 0] == 0).all()
        assert not tensor.requires_grad
    assert (advantages != 0).any()
    assert spec.summary


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_an_entry_says_it_needs_is_exactly_what_it_reads(name):
    spec = ALGORITHMS[name]
    needed = {
        "values": spec.needs_critic,
        "index": spec.needs_group,
        "turn_ids": spec.needs_turns,
        "anchor_ids": spec.needs_anchors,
    }
    without = {field: None for field, need in needed.items() if not need}
    called = next(first for first in ALGORITHMS if ALGORITHMS[first] is spec)
    spec.advantage(inputs(**without))
    for field in needed.keys() - without.keys():
        with pytest.raises(ValueError, match=rf"^{called} needs {field}: got None, expected"):
            spec.advantage(inputs(**{field: None}))


def test_hyper_parameters_reach_the_functions():
    batch = inputs(gamma=0.5, lam=0.3, whiten=False, bootstrap_values=torch.ones(4), normalize_by_std=False)
    triple = (batch.token_level_rewards, batch.values, batch.response_mask)
    expected = compute_gae_advantage_return(*triple, 0.5, 0.3, whiten=False, bootstrap_values=torch.ones(4))
    assert torch.equal(ALGORITHMS["gae"].advantage(batch)[0], expected[0])
    mean_only = compute_grpo_advantage(triple[0], triple[2], batch.index, normalize_by_std=False)[0]
    assert torch.equal(ALGORITHMS["grpo"].advantage(batch)[0], mean_only)
    assert torch.equal(ALGORITHMS["dr_grpo"].advantage(inputs())[0], mean_only)
    assert not torch.equal(ALGORITHMS["grpo"].advantage(inputs())[0], mean_only)
    for name, option in (
        ("turn_level", {"gamma": 0.1}),
        ("gigpo", {"gamma": 0.1}),
        ("gigpo", {"step_advantage_weight": 3.0}),
        ("turn_level", {"normalize_by_std": False}),
        ("gigpo", {"normalize_by_std": False}),
        ("reinforce_plus_plus", {"gamma": 0.1}),
        ("reinforce_plus_plus", {"whiten": False}),
        ("rejection_sampling", {"reward_threshold": 1e9}),
    ):
        changed = ALGORITHMS[name].advantage(inputs(**option))[0]
        assert not torch.equal(changed, ALGORITHMS[name].advantage(inputs())[0]), (name, option)


def test_unknown_names_are_answered_with_the_nearest_and_the_list():
    with pytest.raises(ValueError, match=r"got 'grop'; did you mean 'grpo'\? Expected one of gae, ppo, grpo"):
        get_algorithm("grop")
    with pytest.raises(ValueError, match=r"got 'zzz'; Expected one of gae"):
        get_algorithm("zzz")
    assert get_algorithm("ppo") is get_algorithm("gae")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_level_rewards": torch.ones(4, 4)}, "must be 0 where response_mask is 0: got 1.0 in row 0, column 2"),
        ({"token_level_rewards": torch.tensor([[math.nan, 0, 0, 0]] * 4)}, "got nan in row 3, column 0"),
        (
            {"token_level_rewards": torch.tensor([[0.0] * 4] * 2 + [[0, math.inf, 0, 0]] * 2)},
            "must be finite: got inf in row 2, column 1",
        ),
    ],
)
def test_inputs_are_checked_when_made(changes, message):
    with pytest.raises(ValueError, match=message):
        inputs(**changes)


@pytest.mark.parametrize("algorithm", DESCRIPTIONS, ids=lambda a: a.adv_estimator)
def test_descriptions_speak_the_keyword_arguments_of_what_they_describe(algorithm):
    assert algorithm.spec is ALGORITHMS[algorithm.adv_estimator]
    inputs(**algorithm.advantage_options())
    zeros, ones = torch.zeros(2, 3), torch.ones(2, 3)
    if algorithm.spec.loss == "policy":
        options = algorithm.loss_options()
        rollout = {"rollout_log_probs": zeros}
        compute_policy_loss(zeros, zeros, ones, ones, **rollout, **options)
    else:
        compute_rejection_sampling_loss(zeros, ones, ones, **algorithm.loss_options())
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.gamma = 1


def test_the_seeds_spelling():
    assert RejectionSampling(reward_threshold=0.5).advantage_options() == {"reward_threshold": 0.5}
    plus_plus = [ReinforcePlusPlus(group_baseline=own).adv_estimator for own in (False, True)]
    assert plus_plus == ["reinforce_plus_plus", "reinforce_plus_plus_baseline"]
    ppo = PPO(clip_epsilon=0.1, gamma=0.9, gae_lambda=0.8)
    assert ppo.advantage_options() == {"gamma": 0.9, "lam": 0.8, "whiten": True}
    assert ppo.loss_options()["options"] == PolicyLossOptions(eps_low=0.1, eps_high=0.1)
    assert PPO(0.1, 0.9, 0.8) == ppo
    assert hash(ppo) == hash(PPO(0.1, 0.9, 0.8))
    grpo = GRPO(eps_low=0.2, eps_high=0.3, normalize_by_std=False, kl_coef=0.001)
    assert grpo.kl_coef == 0.001
    assert grpo.advantage_options() == {"normalize_by_std": False}
    options = GiGPO(gamma=0.7, step_advantage_weight=0.5).advantage_options()
    assert options == {"gamma": 0.7, "normalize_by_std": True, "step_advantage_weight": 0.5}
    gspo = GRPO(3e-4, 4e-4, ratio_level="sequence", aggregation="seq-mean-token-mean").loss_options()
    assert gspo["options"] == PolicyLossOptions(eps_low=3e-4, eps_high=4e-4, ratio_level="sequence")
    assert gspo["aggregation"] == "seq-mean-token-mean"
    for name, expected in {
        "compute_gae_advantage_return": "token_level_rewards values response_mask gamma lam",
        "compute_grpo_advantage": "token_level_rewards response_mask index",
        "compute_policy_loss": "old_log_probs log_probs advantages response_mask clip_ratio",
        "compute_value_loss": "vpreds returns old_values response_mask cliprange_value",
        "apply_kl_penalty": "token_level_rewards log_probs ref_log_probs response_mask kl_coef",
    }.items():
        names = list(inspect.signature(getattr(algorithms, name)).parameters)
        assert names[: len(expected.split())] == expected.split()


@pytest.mark.parametrize("make", [lambda: PPO(clip_epsilon=0), lambda: GRPO(eps_high=-1), lambda: RLOO(0.0)])
def test_a_clip_range_of_zero_is_refused(make):
    with pytest.raises(ValueError, match="must be positive"):
        make()


def test_everything_public_is_exported_and_documented():
    for name in algorithms.__all__:
        thing = getattr(algorithms, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert inspect.getdoc(thing), name
    functions = {name for name in vars(algorithms) if name.startswith("compute_")}
    assert functions <= set(algorithms.__all__)
