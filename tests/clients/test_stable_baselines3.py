"""Environments of ours under stable-baselines3: its own check, and a few updates of its PPO."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.clients

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "texts as bytes, a menu": (
        "uirl/guess_number",
        "MultiInputPolicy",
        {"text": "bytes", "max_text": 16, "actions": [str(n) for n in range(1, 8)]},
    ),
    "pictures and texts, numbers": (
        "uirl/screen",
        "MultiInputPolicy",
        {"text": "bytes", "max_text": 64, "actions": "numbers", "words": list("0123456789")},
    ),
    "pictures alone, numbers": (
        "uirl/screen",
        "CnnPolicy",
        {"options": {"level": 1}, "view": "image", "actions": "numbers", "words": ["1"]},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_its_check_passes_and_its_ppo_learns(kind: str) -> None:
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    import uirl.environments.adapters.gym_env  # noqa: F401  (registers the ids)

    name, policy, options = KINDS[kind]
    env = gymnasium.make(name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, warn=True)
    env.close()
    several = make_vec_env(name, n_envs=2, seed=0, env_kwargs=options)
    model = PPO(policy, several, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(32)
    assert model.num_timesteps == 32
    after = list(model.policy.parameters())
    assert any(not np.array_equal(a.detach(), b) for a, b in zip(after, before, strict=True))
    episodes = list(model.ep_info_buffer or ())
    assert episodes
    assert all(0 <= info["r"] <= 1 for info in episodes)
    assert len(model.ep_success_buffer or ()) == len(episodes)
    rewards, lengths = evaluate_policy(model, several, n_eval_episodes=2, return_episode_rewards=True)
    assert len(rewards) == len(lengths) == 2
    several.close()
