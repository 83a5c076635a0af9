"""The programs that users of the founding documents know, with nothing but the import line changed.

Where they name a model that would have to be downloaded, a built-in tiny one stands in. The assignments to a
`ConfigStore` are in `tests/config/test_store.py`.
"""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.environments.remote.running import running
from tests.environments.remote.stand_ins import many_sessions
from tests.inference.pictures import picture
from tests.training.tasks.letters import Letters
from uirl import (
    PPO,
    Action,
    BaseEnvironment,
    BatchInferenceManager,
    ConfigStore,
    FunctionCallingParser,
    JSONActionParser,
    MultiActorRunner,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    RayPPOTrainer,
    ReActActionParser,
    RejectionSampling,
    SimpleGameEnvironment,
    TaskCurriculum,
    Tool,
    ToolRegistry,
    Trainer,
    Trajectory,
    VLMWrapper,
    algorithms,
    create_inference_engine,
)
from uirl.integrations.verl import CustomGRPOTrainer
from uirl.training import CurriculumTasks


class TextGameEnv(BaseEnvironment):
    """No constructor, a tuple of four, and a `_done` that the base class provides."""

    def reset(self) -> str:
        self.score = 0
        self.inventory = []
        return "Welcome to the game! You are in a room."

    def step(self, action: str) -> tuple:
        reward = 0.0
        if "take" in action.lower():
            self.inventory.append("item")
            reward = 1.0
        elif "attack" in action.lower():
            reward = 5.0
            self._done = True
        else:
            reward = -0.1
        self.score += reward
        return self.get_state_description(), reward, self._done, {}

    def get_state_description(self) -> str:
        return f"Score: {self.score}, Inventory: {self.inventory}"


def small(config: ConfigStore, folder: Path) -> ConfigStore:
    """The same program on a test's budget."""
    config.logging.runs_dir = str(folder)
    config.training.batch_size = 8
    config.training.eval_episodes = 4
    config.training.eval_every = None
    config.inference.max_turns = 3
    config.inference.max_tokens = 8
    config.logging.trackers = ()
    return config


def test_the_text_game_trains(tmp_path: Path) -> None:
    config = ConfigStore()
    env = TextGameEnv(config.environment)
    trainer = RayPPOTrainer(small(config, tmp_path), env, reward_fn=lambda t: sum(t.rewards))
    before = [p.clone() for p in trainer.learner.policy.model.parameters()]
    trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    assert [entry["epoch"] for entry in trainer.metrics_history] == [0, 1]
    for metric_dict in trainer.metrics_history:
        print(f"Epoch {metric_dict['epoch']}: {metric_dict['policy_loss']}")
    after = trainer.learner.policy.model.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    trainer.save_checkpoint(tmp_path / "checkpoints" / "epoch_5")
    trainer.load_checkpoint(tmp_path / "checkpoints" / "epoch_5")
    trainer.cleanup()
    trainer.cleanup()


def test_a_reward_function_may_take_the_environment(tmp_path: Path) -> None:
    def compute_reward(trajectory: Trajectory, environment: BaseEnvironment) -> float:
        assert isinstance(environment, TextGameEnv)
        total_reward = sum(trajectory.rewards)
        return total_reward

    config = ConfigStore()
    env = TextGameEnv(config.environment)
    trainer = RayPPOTrainer(config=small(config, tmp_path), environment=env, reward_fn=compute_reward, dataset=None)
    summary = trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    assert summary["episodes"] == 8
    trainer.cleanup()


def test_the_simple_game_takes_the_config() -> None:
    config = ConfigStore()
    config.training.num_epochs = 10
    env = SimpleGameEnvironment(config.environment)
    obs = env.reset()
    obs, _reward, _done, _info = env.step("look")
    assert isinstance(obs, str) or obs.text


def test_trajectory_from_lists() -> None:
    trajectory = Trajectory()
    trajectory.states = ["state1", "state2"]
    trajectory.actions = ["action1", "action2"]
    trajectory.rewards = [1.0, 0.5]
    trajectory.dones = [False, True]
    assert sum(trajectory.rewards) == trajectory.total_reward()


def test_algorithms() -> None:
    torch.manual_seed(0)
    rewards, values, old_lp, new_lp, ref_lp, old_values = torch.randn(6, 4, 5).unbind(0)
    mask = torch.ones(4, 5)
    advantages, returns = algorithms.compute_gae_advantage_return(
        token_level_rewards=rewards, values=values, response_mask=mask, gamma=0.99, lam=0.95
    )
    advantages, _ = algorithms.compute_grpo_advantage(
        token_level_rewards=rewards, response_mask=mask, index=torch.tensor([0, 0, 1, 1])
    )
    policy_loss, _ = algorithms.compute_policy_loss(
        old_log_probs=old_lp, log_probs=new_lp, advantages=advantages, response_mask=mask, clip_ratio=0.2
    )
    value_loss, _ = algorithms.compute_value_loss(
        vpreds=values, returns=returns, old_values=old_values, response_mask=mask, cliprange_value=0.2
    )
    penalized_rewards, kl_value = algorithms.apply_kl_penalty(
        token_level_rewards=rewards, log_probs=new_lp, ref_log_probs=ref_lp, response_mask=mask, kl_coef=0.01
    )
    kl_ctrl = algorithms.KLController(init_kl_coef=0.01, target_kl=0.01, adaptive=True)
    kl_ctrl.update(current_kl=0.015, n_steps=1024)
    for value in (policy_loss, value_loss, kl_value):
        assert torch.isfinite(torch.as_tensor(value))
    assert penalized_rewards.shape == rewards.shape


def test_inference() -> None:
    engine = create_inference_engine(
        model_path="uirl/tiny-lm",
        backend="transformers",
        config={"dtype": "bfloat16", "tensor_parallel_size": 1, "max_model_len": 2048},
    )
    output = engine.generate(prompts=["Hello, how are you?"], max_tokens=16, temperature=0.7, top_p=0.9)
    assert isinstance(output.sequences[0], str)
    assert isinstance(output.tokens, np.ndarray)
    manager = BatchInferenceManager(engine, batch_size=32)
    output = manager.generate_batch(prompts=["a", "b", "c"], max_tokens=4)
    assert len(output.sequences) == 3


@pytest.mark.parametrize(
    "algorithm", [RejectionSampling(reward_threshold=0.0), PPO(clip_epsilon=0.2, gamma=0.99, gae_lambda=0.95)]
)
def test_trainer_and_wrapper(algorithm: Any) -> None:
    vlm = VLMWrapper(model_name="uirl/tiny-vlm", use_lora=True, lora_config={"r": 4, "lora_alpha": 8})
    screenshot = picture(1).open()
    action_text = vlm.predict_action(screenshot, prompt="Click login", max_tokens=8)
    assert isinstance(action_text, str)
    loss = vlm.forward([screenshot], ["Click login"], labels=["ok"])["loss"]
    assert loss.item() > 0
    trajectories = []
    for reward in (1.0, 0.0, 1.0):
        trajectory = Trajectory()
        trajectory.states = ["press red", "ok"]
        trajectory.actions = ['{"action":"click"}', "done"]
        trajectory.rewards = [0.0, reward]
        trajectory.dones = [False, True]
        trajectories.append(trajectory)
    trainer = Trainer(model=vlm, algorithm=algorithm, batch_size=32, learning_rate=1e-2)
    first = trainer.train_step(trajectories)
    second = trainer.train_step(trajectories)
    assert first["skipped"] == 0
    if isinstance(algorithm, RejectionSampling):
        assert second["policy_loss"] < first["policy_loss"]


def test_multi_actor_training() -> None:
    vlm = VLMWrapper(model_name="uirl/tiny-vlm")
    trajectory_queue: queue.Queue[Trajectory] = queue.Queue()
    apps = [many_sessions(), many_sessions()]
    with running(apps[0]) as vm1, running(apps[1]) as vm2:
        runner = MultiActorRunner(num_actors=4, env_urls=[vm1, vm2], model=vlm, trajectory_queue=trajectory_queue)
        runner.start()
        while not all(app.state.running() for app in apps):
            assert runner.playing
        runner.stop()
        assert not any(app.state.running() for app in apps), "sessions were left behind"


class MyTool(Tool):
    name, description = "my_tool", "Returns what it is given."

    def execute(self, param: str) -> str:
        return f"got {param}"


def test_tools_and_the_manager() -> None:
    registry = ToolRegistry()
    registry.register(MyTool())
    success, result = registry.execute_tool("my_tool", param="value")
    assert (success, result) == (True, "got value")

    parser = FunctionCallingParser()
    env = TextGameEnv(ConfigStore().environment)
    manager = MultiTurnManager(registry, parser, env)
    turn = manager.step(parser.render(Action.of("my_tool", param="value")), env.reset())
    assert turn.tool_call.result == "got value"
    manager.close()


def test_a_multi_turn_engine_with_tools_plays_an_episode() -> None:
    engine = create_inference_engine("uirl/tiny-lm")
    env = TextGameEnv(ConfigStore().environment)
    registry = ToolRegistry()
    registry.register(MyTool())
    for parser in (JSONActionParser(), ReActActionParser(), FunctionCallingParser()):
        manager = MultiTurnManager(registry, parser, env)
        multi_turn = MultiTurnInferenceEngine(engine, tool_manager=manager, enable_tools=True)
        summary = multi_turn.run_episode(env, "Start playing the game.", max_turns=2)
        assert summary.failure is None
        assert 1 <= len(summary) <= 2
        manager.close()
    engine.close()


def test_a_multi_turn_chat_and_an_episode() -> None:
    engine = create_inference_engine(
        model_path="uirl/tiny-lm", config={"dtype": "bfloat16", "tensor_parallel_size": 1, "max_model_len": 2048}
    )
    my_env = TextGameEnv(ConfigStore().environment)

    multi_turn = MultiTurnInferenceEngine(engine=engine, max_turns=5, system_prompt="You are a helpful assistant.")
    multi_turn.start_conversation("Initial prompt")
    response = multi_turn.step(max_tokens=16)
    assert isinstance(response, str)
    assert [message["role"] for message in multi_turn.conversation] == ["system", "user", "assistant"]

    responses = multi_turn.run_episode(environment=my_env, initial_prompt="Start playing the game.", max_turns=2)
    assert all(isinstance(reply, str) for reply in responses)
    engine.close()


def test_a_curriculum_and_grpo_with_two_clips(tmp_path: Path) -> None:
    curriculum = TaskCurriculum(
        min_attempts_per_task=5,
        initial_distribution={"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2},
    )
    task_list = [task.id for task in Letters().tasks()]
    curriculum.register_tasks(task_list)
    task_name = curriculum.sample_task(difficulty_level="exploration")
    curriculum.update_success_rate(task_name, success=True, step=100)
    assert curriculum.success_rate(task_name) == 1.0

    grpo_trainer = CustomGRPOTrainer(eps_low=0.2, eps_high=0.3, normalize_by_std=True, kl_coef=0.001)
    config = small(ConfigStore(), tmp_path)
    config.training.group_size = 4
    config = grpo_trainer.update_config_for_verl(config)
    assert (config.training.clip_range, config.algorithm.kl_loss_coef) == ((0.2, 0.3), 0.001)
    tasks = CurriculumTasks(Letters().tasks(), curriculum, seed=0)
    trainer = RayPPOTrainer(config, Letters(), tasks=tasks)
    summary = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    trainer.cleanup()
    assert summary["algorithm"] == "grpo"
    assert summary["curriculum"]["draws"] == 1 + 2 * 2, "one by hand, two groups in each update"
