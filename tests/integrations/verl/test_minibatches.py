"""Rows of an update in a fixed number of mini-batches; no verl needed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from uirl.integrations.verl.update import Sized, divide, minibatches, rows_at_once


def rewritten(episodes: int, most: int, seed: int) -> list[int]:
    """The episode of each row; an episode is one to `most` rows."""
    draw = random.Random(seed)
    rows = [episode for episode in range(episodes) for _ in range(draw.randint(1, most))]
    draw.shuffle(rows)
    return rows


@pytest.mark.parametrize(("blocks", "multiple"), [(1, 1), (2, 8), (4, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_an_episode_are_together_and_blocks_are_equal(blocks: int, multiple: int, seed: int) -> None:
    rows = rewritten(64, 9, seed)
    made = divide(rows, [100 + i for i in range(len(rows))], blocks=blocks, multiple=multiple)
    assert len(made.blocks) == blocks
    assert len({len(block) for block in made.blocks}) == 1
    assert len(made.blocks[0]) % multiple == 0
    assert sorted(i for block in made.blocks for i in block) == list(range(made.padded)), "every row once"
    for episode in set(rows):
        where = {k for k, block in enumerate(made.blocks) for i in block if i < made.rows and rows[i] == episode}
        assert len(where) == 1, "rows of one episode in two mini-batches"
    real = [sum(i < made.rows for i in block) for block in made.blocks]
    assert max(real) - min(real) <= 9
    assert made.padded - made.rows < blocks * (multiple + 9), "no more padding than the rounding takes"


def test_without_rewriting_it_is_what_verl_cuts() -> None:
    made = divide(range(32), [7] * 32, blocks=2, multiple=8)
    assert (made.padded, made.rows) == (32, 32)
    assert made.sizes(2) == {"mini_batch_size": 16, "global_batch_size": 16}
    assert made.sizes(1) == {"mini_batch_size": 32, "global_batch_size": 32}


def test_long_episodes_do_not_gather_in_one_mini_batch() -> None:
    made = divide(range(8), [1000, 10, 1000, 10, 1000, 10, 1000, 10], blocks=2, multiple=1)
    assert [sum(1000 if i % 2 == 0 else 10 for i in block) for block in made.blocks] == [2020, 2020]


def test_means_of_sequences_are_over_real_rows() -> None:
    made = divide([0, 0, 0, 1, 1], [5] * 5, blocks=2, multiple=4)
    assert made.padded == 8
    assert made.sizes(2) == {"mini_batch_size": 4, "global_batch_size": 2.5}


def settings(**critic: Any) -> Any:
    fixed = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 6, "ppo_mini_batch_size": 8}
    moving = {"log_prob_use_dynamic_bsz": True, "log_prob_micro_batch_size_per_gpu": 7}
    return SimpleNamespace(
        data=SimpleNamespace(train_batch_size=16),
        actor_rollout_ref=SimpleNamespace(
            actor=SimpleNamespace(**fixed), rollout=SimpleNamespace(**moving), ref=SimpleNamespace(**moving)
        ),
        critic=SimpleNamespace(**(fixed | {"forward_micro_batch_size_per_gpu": 4} | critic)),
    )


def test_the_config_says_how_many_in_prompts() -> None:
    config = settings(ppo_mini_batch_size=4)
    assert minibatches(config, 16, critic=True) == {"actor": 2, "critic": 4}
    assert minibatches(config, 16, critic=False) == {"actor": 2}


def test_no_mini_batch_is_padding_alone() -> None:
    assert minibatches(settings(ppo_mini_batch_size=4), 3, critic=True) == {"actor": 2, "critic": 2}
    assert minibatches(settings(ppo_mini_batch_size=6), 5, critic=True) == {"actor": 2, "critic": 2}
    assert minibatches(settings(ppo_mini_batch_size=4), 1, critic=True) == {"actor": 1, "critic": 1}


def test_rows_fill_micro_batches_of_a_fixed_size() -> None:
    assert rows_at_once(settings(), ranks=2, critic=False, reference=True) == 12
    assert rows_at_once(settings(), ranks=2, critic=True, reference=False) == 24


def test_a_worker_group_is_told_the_sizes_and_else_left_alone() -> None:
    asked = []
    group = SimpleNamespace(
        update_actor=lambda batch: asked.append(dict(batch.extra_info)), train_mini_batch=None, other=5
    )
    sized = Sized(group, {"mini_batch_size": 3})
    sized.update_actor(SimpleNamespace(extra_info={"mini_batch_size": 8, "epochs": 1}))
    assert asked == [{"mini_batch_size": 3, "epochs": 1}]
    assert sized.other == 5
