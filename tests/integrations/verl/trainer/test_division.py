"""Rows of an update and shards of a checkpoint where the division among GPUs differs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uirl import CheckpointError

pytestmark = pytest.mark.verl


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
    from uirl.integrations.verl.trainer import v1

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


def test_the_actor_takes_no_step_while_the_critic_warms_up() -> None:
    from uirl.integrations.verl.trainer.v1 import EnvironmentPPOTrainer

    trainer: Any = object.__new__(EnvironmentPPOTrainer)
    actor = SimpleNamespace(ppo_epochs=3)
    trainer.config = SimpleNamespace(
        trainer=SimpleNamespace(critic_warmup=2), actor_rollout_ref=SimpleNamespace(actor=actor)
    )
    trainer._minibatches, steps = {"actor": 2}, []
    for trainer.global_steps in (1, 2, 3):
        steps.append(trainer._actor_steps())
    assert steps == [0, 6, 6]


def test_shards_of_another_number_of_gpus_are_refused_by_name(tmp_path: Path) -> None:
    from uirl.integrations.verl.trainer.v1 import EnvironmentPPOTrainer

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
