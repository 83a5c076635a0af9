"""How the policy is sampled: which engine, and the sampling of one response."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.section import Count, Index, NonNegative, Section


class InferenceConfig(Section):
    """Engine and sampling of the rollouts. Evaluation uses the same unless `training.eval_temperature` is set."""

    key: ClassVar[str] = "inference"

    backend: Literal["transformers", "scripted", "vllm", "sglang", "openai"] = "transformers"
    """Engine: 'transformers' runs in this process, 'scripted' replays given replies (tests)."""
    max_tokens: Count = 64
    """Longest response of one turn, in tokens."""
    temperature: NonNegative = 1.0
    """Softmax temperature; 0 is greedy. Rollouts for training need more than 0."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: the smallest set of tokens with at least this probability is sampled from; 1: all."""
    top_k: Index = 0
    """Only the `top_k` most probable tokens are sampled from; 0: all."""
    multi_turn: bool = True
    """An episode has several turns; false: one reply ends it."""
    max_turns: Count = 16
    """Most turns of a conversation or, where `rollout.max_turns` is null, of an episode."""
    max_batch_size: Count = 256
    """Most sequences that decode together; further requests wait their turn."""
    max_context: Count | None = None
    """Most tokens of prompt and response together; None: what the model's positions allow."""
    kv_cache: bool = True
    """Keep an episode's attention cache between its turns, so that only new tokens are computed."""
    system_prompt: str | None = None
    """First message of every conversation; None: the environment's `get_prompt_prefix()`."""
    seed: int | None = None
    """Seed of the sampling; None: `training.seed`."""
