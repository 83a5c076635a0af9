"""Environments of ours in TRL's own GRPOTrainer: rewards arrive, the policy moves, a failure is no reward of zero."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.unsteady import UnsteadyGuessing
from uirl.config import TinyConfig
from uirl.environments.adapters.trl import TRLEnvironmentFactory, trl_environment
from uirl.inference.models.tiny import build_tiny

pytestmark = pytest.mark.verl

REPLY = '<tool_call>\n{{"name": "act", "arguments": {{"action": "{}"}}}}\n</tool_call>'
N, GUESSES, GROUP = 3, 2, 4


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    """A tiny model that has learned to call `act` with a digit, nothing more, and its tokenizer."""
    from trl.chat_template_utils import qwen2_5_chat_template

    model, tokenizer, _ = build_tiny("uirl/tiny-lm", TinyConfig(vocab_size=640, hidden_size=64), seed=0)
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.eos_token = "<|im_end|>"
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    with trl_environment("guess_number", {"n": N, "guesses": GUESSES}) as factory:
        tools = [factory().act]
    teach(model, tokenizer, tools)
    return model, tokenizer


def teach(model: Any, tokenizer: Any, tools: list[Any]) -> None:
    """Imitation of replies with digits at random, to the first observation and to the second."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(120):
        first, second, last = (int(torch.randint(1, N + 1, (), generator=rng)) for _ in range(3))
        said = ["lower", "higher"][last % 2]
        messages = [
            {"role": "user", "content": f"guess 1-{N}"},
            {"role": "assistant", "content": REPLY.format(first)},
            {"role": "tool", "content": said},
            {"role": "assistant", "content": REPLY.format(second)},
        ]
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        labels = [-100] * len(ids)
        start = tokenizer("<|im_start|>assistant\n", add_special_tokens=False).input_ids
        for at in range(len(ids)):
            if ids[at : at + len(start)] == start:
                end = ids.index(tokenizer.eos_token_id, at) + 1
                labels[at + len(start) : end] = ids[at + len(start) : end]
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(policy: tuple[Any, Any], factory: TRLEnvironmentFactory, folder: Path, steps: int) -> tuple[Any, list[Any]]:
    """(TRL's trainer after `steps` updates, what it made of each batch of rollouts)."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = policy
    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=2 * GROUP,
        num_generations=GROUP,
        max_steps=steps,
        max_completion_length=160,
        max_tool_calling_iterations=GUESSES + 1,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    dataset = Dataset.from_list(factory.rows(8))
    trainer = GRPOTrainer(
        model, args=args, train_dataset=dataset, processing_class=tokenizer, environment_factory=factory
    )
    made = []
    score = trainer._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        output = score(inputs)
        made.append((output, [env.get_reward() for env in trainer.environments], list(trainer.environments)))
        return output

    trainer._generate_and_score_completions = watched
    trainer.train()
    return trainer, made


def test_trl_trains_on_an_environment(policy: tuple[Any, Any], tmp_path: Path) -> None:
    model, _ = policy
    before = [p.detach().clone() for p in model.parameters()]
    with trl_environment("guess_number", {"n": N, "guesses": GUESSES}) as factory:
        trainer, made = train(policy, factory, tmp_path, steps=2)
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == len(made) == 2
    for entry, (_, rewards, envs) in zip(logged, made, strict=True):
        assert entry["rewards/GuessNumberEnvironment/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert entry["tools/call_frequency"] >= 1.0  # the policy plays by calls
        assert all((env.success is True) == (env.get_reward() == 1.0) for env in envs)
    played = [reward for _, rewards, _ in made for reward in rewards]
    assert 0 < sum(played) < len(played)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_rollout_whose_environment_fails_has_no_reward_and_no_say(policy: tuple[Any, Any], tmp_path: Path) -> None:
    with trl_environment(UnsteadyGuessing(every=GROUP)) as factory:
        _, ((output, rewards, envs), *_) = train(policy, factory, tmp_path, steps=1)
    failed = [reward is None for reward in rewards]
    assert sum(failed) == 2
    assert factory.failures == 2
    assert [env.failure is not None for env in envs] == failed
    advantages = output["advantages"]
    assert advantages[torch.tensor(failed)].tolist() == [0.0, 0.0]
    for group in range(0, len(rewards), GROUP):
        kept = [i for i in range(group, group + GROUP) if rewards[i] is not None]
        mean = sum(rewards[i] for i in kept) / len(kept)
        for i in kept:
            # against the mean of those that were played, not of those and a zero
            assert math.copysign(1, advantages[i].item()) == math.copysign(1, rewards[i] - mean) or rewards[i] == mean
            assert (advantages[i].item() == 0.0) == (rewards[i] == mean)
