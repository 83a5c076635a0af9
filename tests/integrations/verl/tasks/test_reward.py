"""The environment as verl's reward function."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto

from tests.conftest import tiny_model
from tests.integrations.verl.worlds import Fragile, TwoLooks
from uirl.environments import GuessNumberEnvironment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.integrations.verl.tasks.reward import EnvironmentRewardWrapper, environment_reward
from uirl.types import Trajectory

pytestmark = pytest.mark.verl


def row(seed: int) -> dict[str, Any]:
    return {"environment": "guess_number", "task": "number", "seed": seed}


def secret(seed: int) -> int:
    """What the environment hides in the instance of this seed."""
    world = GuessNumberEnvironment()
    world.reset(seed=seed)
    return next(n for n in range(1, 8) if _hits(seed, n))


def _hits(seed: int, guess: int) -> bool:
    world = GuessNumberEnvironment()
    world.reset(seed=seed)
    return bool(world.step(str(guess))[1])


def test_a_response_is_one_action_in_the_instance_of_its_row() -> None:
    wrapper = EnvironmentRewardWrapper(GuessNumberEnvironment())
    for seed in (1, 2, 3):
        right = str(secret(seed))
        call = {"data_source": "guess_number", "ground_truth": None, "extra_info": row(seed)}
        assert wrapper(solution_str=right, **call) == {"score": 1.0, "success": True, "turns": 1}
        assert wrapper(solution_str="nine", **call)["score"] == 0.0


def test_the_reward_function_has_the_last_word() -> None:
    def per_turn(trajectory: Trajectory) -> float:
        return 0.5 + trajectory.total_reward() / len(trajectory)

    wrapper = EnvironmentRewardWrapper(GuessNumberEnvironment(), per_turn)
    assert wrapper("x", str(secret(1)), None, row(1))["score"] == 1.5


def test_a_broken_environment_is_no_zero() -> None:
    class Broken(TwoLooks):
        def step(self, action: str) -> Any:
            raise OSError("the cable was pulled")

    with pytest.raises(EnvironmentFailure, match="the cable was pulled"):
        EnvironmentRewardWrapper(Broken())("x", "abc", None, {"task": "t", "seed": 1})
    assert EnvironmentRewardWrapper(Fragile())("x", "abc", None, {"task": "t", "seed": 4})["score"] == 0.5


def test_by_name_it_serves_verls_reward_workers() -> None:
    made = asyncio.run(environment_reward("guess_number", str(secret(5)), None, row(5)))
    assert made["score"] == 1.0
    wide = asyncio.run(environment_reward("x", "8", None, row(5), options={"n": 8}))
    assert wide["turns"] == 1
    with pytest.raises(ConfigError, match="names no environment"):
        asyncio.run(environment_reward("x", "1", None, {"seed": 1}))


def test_a_batch_of_token_ids_gets_a_tensor_of_scores() -> None:
    tokenizer = tiny_model("uirl/tiny-lm").tokenizer
    replies = [str(secret(1)), "zzz"]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in replies]
    width = max(map(len, ids)) + 1
    responses = torch.zeros((2, width), dtype=torch.long)
    mask = torch.zeros((2, width + 1), dtype=torch.long)
    mask[:, 0] = 1
    for i, own in enumerate(ids):
        responses[i, : len(own)] = torch.tensor(own)
        mask[i, 1 : 1 + len(own)] = 1
    batch = TensorDict(
        {"prompts": torch.ones((2, 1), dtype=torch.long), "responses": responses, "attention_mask": mask}, batch_size=2
    )
    data = DataProto(
        batch=batch,
        non_tensor_batch={"extra_info": np.array([row(1), row(1)], dtype=object)},
        meta_info={"tokenizer": tokenizer},
    )
    assert EnvironmentRewardWrapper(GuessNumberEnvironment())(data).tolist() == [1.0, 0.0]
    del data.meta_info["tokenizer"]
    with pytest.raises(ConfigError, match="holds token ids alone"):
        EnvironmentRewardWrapper(GuessNumberEnvironment())(data)
