"""How the policy is sampled: which engine, and the sampling of one response."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.keys import Reach
from uirl.config.section import (
    Address,
    Count,
    Index,
    NonNegative,
    Options,
    PathText,
    Positive,
    Section,
    Variable,
    Words,
)


class InferenceConfig(Section):
    """Engine and sampling of the rollouts. Evaluation uses the same unless `training.eval_temperature` is set."""

    key: ClassVar[str] = "inference"

    backend: Annotated[
        Literal["transformers", "scripted", "vllm", "sglang", "openai"],
        Reach("an address", unless="transformers|scripted|vllm|sglang"),
    ] = "transformers"
    """Engine: 'transformers' and, without a `server_url`, 'vllm' and 'sglang' run in this process; 'openai' is any
    compatible server; 'scripted' replays given replies (tests)."""
    server_url: Address | None = None
    """Server of the engine, e.g. 'http://host:8000'. None: 'vllm' and 'sglang' start in this process, 'openai' is
    https://api.openai.com/v1."""
    server_model: Words | None = None
    """Name under which the server knows the model; None: the only one it serves, or `model.model_name`."""
    api_key_env: Variable = "OPENAI_API_KEY"
    """Environment variable with the server's key. The key itself is in no config and no log."""
    request_timeout: Positive = 120.0
    """Time limit of a request to a server, in seconds."""
    request_retries: Index = 3
    """How often a request is sent again, with growing pauses, after a lost connection, a 429 or a 5xx."""
    weights_dir: PathText | None = None
    """Folder through which updated weights reach 'vllm', 'sglang' and engine processes; a server must see it under the
    same path. None: a RAM disk where there is one, else the system's temporary folder."""
    sleep: Literal["auto", "off", 1, 2] = "auto"
    """Whether a 'vllm' that starts here gives its memory to the learner during an update. 1: its weights wait in the
    memory of the host; 2: they are dropped, and come back with the next version. 'auto': 2, with adapters 1, where the
    engine is on the learner's GPU and nobody plays during an update. 'off': it keeps its memory."""
    engine_options: Options = Field(default_factory=dict)
    """Further arguments of the engine's own constructor ('vllm': AsyncEngineArgs; 'sglang': ServerArgs)."""
    max_tokens: Count = 64
    """Maximum length of the response of one turn, in tokens."""
    temperature: NonNegative = 1.0
    """Softmax temperature; 0 is greedy. Rollouts for training need more than 0."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: the smallest set of tokens with at least this probability is sampled from; 1: all."""
    top_k: Index = 0
    """Only the `top_k` most probable tokens are sampled from; 0: all."""
    multi_turn: bool = True
    """An episode has several turns; false: one reply ends it."""
    max_turns: Count = 16
    """Maximum number of turns of a conversation or, where `rollout.max_turns` is null, of an episode."""
    max_batch_size: Count = 256
    """Maximum number of sequences that decode together; further requests wait."""
    max_context: Count | None = None
    """Maximum number of tokens of prompt and response together; None: what the model's positions allow."""
    kv_cache: bool = True
    """Keep an episode's attention cache between its turns, so that only new tokens are computed; and compute a prompt
    that several requests have (a group's first turn, pictures included) once."""
    kv_cache_gib: Positive | None = None
    """GiB that the attention cache takes at most. A request waits until there is room for its whole prompt and reply,
    and none can be longer than the cache. None: half of what is free on the device when the engine is made; 'vllm' has
    a default of its own."""
    system_prompt: Words | None = None
    """First message of every conversation; None: the environment's `get_prompt_prefix()`."""
    seed: int | None = None
    """Seed of the sampling; None: `training.seed`."""

    @property
    def filtered(self) -> bool:
        """Whether the engine's log-probs are those of what top-p or top-k left to choose from; the learner's never
        are."""
        return self.top_p < 1 or self.top_k > 0
