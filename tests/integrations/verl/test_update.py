"""An update of verl's: the local trainer's credit for episodes of several sequences, in the config's mini-batches."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

from uirl import CheckpointError
from uirl.algorithms import get_algorithm
from uirl.errors import AlignmentError, RolloutFailure
from uirl.images import ImageStore
from uirl.integrations.verl.agent_loop import outputs_of
from uirl.integrations.verl.mapping import ESTIMATORS
from uirl.integrations.verl.update import Row, credit_episodes, register_estimators, tell_threshold, turns_of
from uirl.learner.credit import assign_credit
from uirl.learner.view import response_view
from uirl.rollout import samples_of
from uirl.types import Observation, Trajectory, Turn

pytestmark = pytest.mark.verl
register_estimators()


ALGORITHM = {"gamma": 0.9, "lam": 0.8, "norm_adv_by_std_in_grpo": True, "uirl_reward_threshold": 0.5}


def episode(group: str, member: int, shape: str, rewards: list[float]) -> Trajectory:
    """`shape`: one letter per turn, 's' where it starts a sequence; turn k has k % 3 + 1 tokens."""
    turns = []
    for k, (letter, reward) in enumerate(zip(shape, rewards, strict=True)):
        n = k % 3 + 1
        turns.append(
            Turn(Observation("look"), (1, 2), tuple(range(n)), (-0.5,) * n, reward=reward, starts_segment=letter == "s")
        )
    return Trajectory(id=f"{group}_{member}", group_id=group, turns=turns, stop_reason="terminated")


def batch() -> list[Trajectory]:
    """Two groups of three; the members have one, two and three sequences."""
    draw = random.Random(5)
    shapes = ("s....", "s..s", "s.ss..")
    return [
        episode(group, member, shape, [round(draw.uniform(-1, 1), 3) for _ in shape])
        for group in "ab"
        for member, shape in enumerate(shapes)
    ]


def rows_of(trajectory: Trajectory, **numbers: list[Tensor]) -> list[Row]:
    """What verl's queue holds of an episode; `numbers`: one tensor for each of its sequences."""
    outputs = outputs_of(trajectory, ImageStore(), [0], max_tokens=100)
    return [
        Row(
            f"{trajectory.id}_{i}",
            torch.tensor(output.response_mask),
            output.extra_fields["turn_scores"],
            **{name: parts[i] for name, parts in numbers.items()},
        )
        for i, output in enumerate(outputs)
    ]


@pytest.mark.parametrize("ours", ESTIMATORS)
def test_credit_is_that_of_the_local_trainer(ours: str) -> None:
    trajectories, noise = batch(), torch.Generator().manual_seed(0)
    samples = [sample for t in trajectories for sample in samples_of(t)]
    view = response_view(samples)
    values, penalty = (torch.randn(view.tokens, generator=noise) for _ in range(2))
    spec = get_algorithm(ours)
    options = {"gamma": 0.9, "lam": 0.8, "normalize_by_std": True, "reward_threshold": 0.5}
    rewards = view.rewards + view.spread(penalty)
    expected = assign_credit(spec, options, view, rewards, view.spread(values) if spec.needs_critic else None, None)

    rows: list[Row] = []
    for one, v, p in zip(
        [row for t in trajectories for row in rows_of(t)], view.split(values), view.split(penalty), strict=True
    ):
        mask = one.mask > 0
        full = [torch.zeros(mask.shape).masked_scatter(mask, part) for part in (v, p)]
        rows.append(Row(one.key, one.mask, one.turn_rewards, full[1], full[0] if spec.needs_critic else None))
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)  # verl sorts rows by length
    filler = Row("padding_0_0", torch.zeros(1), [0.5])
    found = credit_episodes([rows[i] for i in order] + [filler], {**ALGORITHM, "adv_estimator": ESTIMATORS[ours]})

    for got, whole in zip(found, (expected.advantages, expected.returns), strict=True):
        assert got[-1].tolist() == [0.0]
        for i, part in zip(order, got, strict=False):
            mask = rows[i].mask > 0
            assert torch.equal(part[mask], view.split(view.flatten(whole))[i])
            assert not part[~mask].any()


def test_an_episode_of_two_sequences_votes_once() -> None:
    """Scores 1, 0 and 0.5: leave-one-out baselines 0.25, 0.75 and 0.5. With a vote per sequence the others of the
    second would be 1, 1 and 0.5."""
    members = [episode("a", 0, "ss", [0.25, 0.75]), episode("a", 1, "s", [0.0]), episode("a", 2, "s", [0.5])]
    rows = [row for member in members for row in rows_of(member)]
    advantages, returns = credit_episodes(rows, {**ALGORITHM, "adv_estimator": "rloo"})
    # the second sequence of the first episode holds its turn 1, which has two tokens
    assert [part.tolist() for part in advantages] == [[0.75], [0.75, 0.75], [-0.75], [0.0]]
    assert [part.tolist() for part in returns] == [[1.0], [1.0, 1.0], [0.0], [0.5]]


def test_what_a_later_sequence_earns_reaches_the_earlier_one() -> None:
    """Reward 1 at the end of the second sequence, gamma 0.5: tokens of one and two turns see 1/4, 1/2, 1."""
    rows = rows_of(episode("a", 0, "ss", [0.0, 1.0]))
    algorithm: dict[str, Any] = {**ALGORITHM, "gamma": 0.5, "adv_estimator": "reinforce_plus_plus"}
    _, returns = credit_episodes(rows, algorithm)
    assert [part.tolist() for part in returns] == [[0.25], [0.5, 1.0]]


def test_a_sequence_that_is_missing_is_told() -> None:
    first, _ = rows_of(episode("a", 0, "ss", [0.0, 1.0]))
    with pytest.raises(AlignmentError, match="a_0 hold 1 replies, but 2 turns were rewarded"):
        credit_episodes([first], {**ALGORITHM, "adv_estimator": "rloo"})


def test_turns_are_read_off_the_mask() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    expected = [[0, 0, -1, 1, -1, -1], [-1, 0, -1, -1, 1, 1], [-1, -1, -1, -1, -1, -1]]
    assert turns_of(mask).tolist() == expected


def test_each_turn_is_compared_with_the_same_turn_of_its_group() -> None:
    # rewards per turn: (1, 0), (0, 0) and (0, 3), (0, 1)
    mask = torch.tensor([[1, 0, 1, 1]] * 4)
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3.0], [0, 0, 0, 1.0]])
    config = OmegaConf.create({"gamma": 0.5, "norm_adv_by_std_in_grpo": False})
    index = np.array(["a", "a", "b", "b"], dtype=object)
    estimate = get_adv_estimator_fn("uirl_turn_level")
    advantages, returns = estimate(token_level_rewards=rewards, response_mask=mask, config=config, index=index)
    # reward to go of (turn 0, turn 1): (1, 0), (0, 0); (1.5, 3), (0.5, 1); minus the mean over the two of a group
    assert returns[:, [0, 2]].tolist() == [[1.0, 0.0], [0.0, 0.0], [1.5, 3.0], [0.5, 1.0]]
    assert advantages[:, [0, 2]].tolist() == [[0.5, 0.0], [-0.5, 0.0], [0.5, 1.0], [-0.5, -1.0]]
    assert advantages[:, 1].tolist() == [0.0] * 4
    assert torch.equal(advantages[:, 2], advantages[:, 3])


def test_imitation_keeps_what_is_above_the_threshold() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    rewards = torch.tensor([[0.25, 0, 0.25], [0, 0.75, 0]])
    config = OmegaConf.create({"algorithm": {"gamma": 1.0}})
    OmegaConf.set_struct(config, True)
    tell_threshold(config, 0.5)
    estimate = get_adv_estimator_fn("uirl_rejection_sampling")
    advantages, returns = estimate(
        token_level_rewards=rewards, response_mask=mask, config=config.algorithm, index=np.array(["a", "a"])
    )
    # scores 0.5 (not above 0.5) and 0.75
    assert advantages.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert returns.tolist() == [[0.5, 0, 0.5], [0.75, 0.75, 0]]


def test_the_loss_of_imitation_is_the_likelihood_of_what_is_kept() -> None:
    loss = get_policy_loss_fn("gpg")
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -5.0]])
    advantages, mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)
    config = SimpleNamespace(global_batch_info={})
    made, _ = loss(log_probs + 9, log_probs, advantages, mask, "token-mean", config)
    assert made.item() == pytest.approx((1 + 2) / 4)


class Rows:
    """A batch of verl's queue, as far as it is ordered."""

    def __init__(self, keys: list[str]) -> None:
        self.keys, self.extra_info = keys, {}
        self.tags = [{"seq_len": 10 + i} for i in range(len(keys))]

    def reorder(self, order: list[int]) -> None:
        self.keys = [self.keys[i] for i in order]
        self.tags = [self.tags[i] for i in order]


def mini_batches(keys: list[str], ranks: int, number: int) -> list[set[str]]:
    """Which rows verl takes a step on together: ranks get stretches, and cut them."""
    stretch = len(keys) // ranks
    size = stretch // number
    starts = [[rank * stretch + k * size for rank in range(ranks)] for k in range(number)]
    return [{key for start in own for key in keys[start : start + size]} for own in starts]


def test_each_network_gets_the_same_mini_batches_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from uirl.integrations.verl import v1

    trainer: Any = object.__new__(v1.EnvironmentPPOTrainer)
    moving = {"use_dynamic_bsz": True, "ppo_micro_batch_size_per_gpu": None, "ppo_mini_batch_size": 4}
    scoring = {"log_prob_use_dynamic_bsz": True, "log_prob_micro_batch_size_per_gpu": None}
    trainer.config = SimpleNamespace(
        data=SimpleNamespace(train_batch_size=8),
        actor_rollout_ref=SimpleNamespace(actor=SimpleNamespace(**moving), rollout=SimpleNamespace(**scoring)),
        critic=SimpleNamespace(**moving, forward_micro_batch_size_per_gpu=1),
    )
    trainer.use_critic, trainer.use_reference_policy, trainer._dead_servers = True, False, {}
    asked: list[list[str]] = []
    trainer.critic_wg = SimpleNamespace(
        _dispatch_info={},
        _query_dispatch_info=lambda mesh: [0, 1, 2, 3],
        train_mini_batch=lambda batch: asked.append(list(batch.keys)),
    )
    # nine episodes of one to three sequences: 18 rows, for a policy on 2 ranks and a critic on 4
    keys = [f"group_{episode}_{row}" for episode in range(9) for row in range(1 + episode % 3)]
    trainer._batch = Rows(keys)
    padded = trainer._get_required_batch_multiple(2)
    assert padded % (2 * 4) == 0, "verl's critic refuses a mini-batch that its ranks cannot share"
    batch = Rows([*keys, *(f"pad_{i}_0" for i in range(padded - len(keys)))])
    trainer._blocks = [[batch.keys[i] for i in block] for block in trainer._division.blocks]
    trainer._place(batch, "actor", {}, "global_seqlen")
    for_actor = list(batch.keys)

    def update(self: Any, batch: Any, metrics: Any) -> Any:
        self.critic_wg.train_mini_batch(batch)
        return batch

    monkeypatch.setattr(v1.PPOTrainerSync, "_update_critic", update)
    batch = trainer._update_critic(batch, {})
    blocks = [set(block) for block in trainer._blocks]
    assert mini_batches(for_actor, 2, 2) == blocks
    assert mini_batches(asked[0], 4, 2) == blocks
    assert mini_batches(batch.keys, 2, 2) == blocks, "the policy's update comes after the critic's"


def test_shards_of_another_number_of_gpus_are_refused_by_name(tmp_path: Path) -> None:
    from uirl.integrations.verl.v1 import EnvironmentPPOTrainer

    (tmp_path / "global_step_3" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_3" / "actor" / "fsdp_config.json").write_text(json.dumps({"world_size": 1}))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    trainer: Any = object.__new__(EnvironmentPPOTrainer)
    for mode, path in (("auto", None), ("resume_path", str(tmp_path / "global_step_3"))):
        section = SimpleNamespace(
            default_local_dir=str(tmp_path), resume_mode=mode, resume_from_path=path, nnodes=1, n_gpus_per_node=2
        )
        trainer.config = SimpleNamespace(trainer=section)
        with pytest.raises(CheckpointError, match=r"global_step_3 was written by 1 GPUs, .* has 2"):
            trainer._load_checkpoint()


def test_a_step_without_evidence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from uirl.integrations.verl import v1

    def none(*_: Any) -> None:
        raise RuntimeError("no materializable trajectories")

    monkeypatch.setattr(v1.PPOTrainerSync, "_step_once", none)
    monkeypatch.setattr(v1.ray, "get", lambda answer: answer)
    trainer: Any = object.__new__(v1.EnvironmentPPOTrainer)
    trainer.global_steps = 3
    reasons = ["engine: verl's rollout server did not answer"] * 16
    trainer._coordinator = SimpleNamespace(failures=SimpleNamespace(remote=lambda: reasons))
    with pytest.raises(RolloutFailure, match=r"step 3: none of its groups .* 16 episodes failed.*did not answer"):
        trainer._step_once({}, {}, 4)
    with pytest.raises(RolloutFailure, match="none of its groups can be learned from"):
        trainer._without_lone_members(Rows(["a_0_0", "b_0_0"]), {})
