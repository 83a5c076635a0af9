"""The engine contract: token ids in, token ids and log-probs out, weights with a version. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from uirl.errors import EngineFailure, PromptTooLong
from uirl.images import Screenshot
from uirl.inference.footprint import Footprint
from uirl.inference.messages import Message
from uirl.runtime.limits import is_finite, shown

if TYPE_CHECKING:
    import torch

_INTS = frozenset({int})

Weights: TypeAlias = "Iterable[tuple[str, torch.Tensor]]"
"""(HF parameter name, tensor) pairs."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one response."""

    max_tokens: int = 256
    temperature: float = 1.0
    """0 is greedy; log-probs are then those of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    stop_token_ids: tuple[int, ...] = ()
    """Ends the response and belongs to it. The engine adds the model's own end tokens."""
    seed: int | None = None
    """The same seed, prompt and weights give the same response, whatever else is in the batch; None: not repeatable."""

    def __post_init__(self) -> None:
        for name, low, high in (("temperature", 0.0, 100.0), ("top_p", 1e-6, 1.0)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"SamplingParams.{name} must be in [{low}, {high}], got {value}")
        if self.max_tokens < 1:
            raise ValueError(f"SamplingParams.max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One model call: the whole token sequence so far and the images whose placeholders stand in it."""

    prompt_ids: tuple[int, ...]
    images: tuple[Screenshot, ...] = ()
    """All images of the prompt, in the order of their placeholders."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    session_id: str | None = None
    """Episode (and segment) this call continues: the engine may keep its KV cache until `release`. None: one shot."""
    messages: tuple[Message, ...] = ()
    """The same prompt as messages, for servers that take no token ids; other engines never read it."""
    starts_segment: bool = False
    """A sample begins here: its log-probs stand for the weights of now alone, whatever an earlier prompt began with."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What was really sampled."""

    token_ids: tuple[int, ...]
    """Includes the stop token where `finish_reason` is 'stop'."""
    log_probs: tuple[float, ...] | None
    """Of the distribution sampled from: after temperature, top-k, top-p and the ban on placeholder tokens.
    None: the engine cannot tell, and the response is unfit for training."""
    finish_reason: str
    """'stop': an end token; 'length': `max_tokens` or the context limit; 'abort'."""
    policy_version: int
    cached_tokens: int = 0
    """Prompt tokens that came from the KV cache: of an earlier turn, or of another request with the same prompt."""

    def __post_init__(self) -> None:
        """Raise EngineFailure for what nobody can have sampled: servers are programs of others, and a NaN among the
        log-probs would pass for a token that nobody sampled."""
        if not (_INTS.issuperset(map(type, self.token_ids)) and min(self.token_ids, default=0) >= 0):
            raise EngineFailure(f"the engine answered with the token ids {shown(self.token_ids, 200)}; expected ints")
        values = self.log_probs
        if values is not None and not (
            len(values) == len(self.token_ids) and all(map(is_finite, values)) and max(values, default=0.0) < 1
        ):
            raise EngineFailure(
                f"the engine answered with the log-probs {shown(values, 200)}; expected {len(self.token_ids)} numbers, "
                "one for each token, finite and not positive"
            )
        if type(self.cached_tokens) is not int or not is_finite(self.cached_tokens):
            raise EngineFailure(
                f"the engine took {shown(self.cached_tokens, 60)} tokens from its cache; expected an int"
            )


def max_reply_tokens(prompt_ids: Sequence[int], limit: int, source: str) -> int:
    """Tokens that a reply may take where prompt and reply together may take `limit`, at least 1.

    `source` says where the limit comes from. Raises PromptTooLong where no token is left, EngineFailure for an empty
    prompt.
    """
    if not prompt_ids:
        raise EngineFailure("a prompt of 0 tokens cannot be answered; expected at least 1")
    if len(prompt_ids) >= limit:
        raise PromptTooLong(
            f"a prompt of {len(prompt_ids)} tokens cannot be answered; expected 1 to {limit - 1} ({source}). Shorten "
            "what the policy is shown (rollout.token_budget, rollout.max_images, the environment's observations)."
        )
    return limit - len(prompt_ids)


class InferenceEngine(ABC):
    """What samples from the policy. Calls of many episodes run together; none waits for another."""

    policy_version: int = 0
    shares_weights: bool = False
    """True: the engine samples from the learner's own module, and `update_weights(None, version)` suffices."""
    takes_adapters: bool = False
    """True: a LoRA adapter can be swapped without sending the whole model."""
    keeps_weights: bool = False
    """True: it holds its weights as long as it exists. Others may come back without the newest ones: a server that was
    started again."""
    takes_weights: bool = True
    """False: the engine samples from somebody else's model (an API): it can be evaluated, not trained."""
    sleeps: bool = False
    """True: it has memory of its own on the learner's GPU, and `sleep` gives that to the learner."""
    footprint: Footprint | None = None
    """What it held at the moments of the newest sleep that is over; None: there was none, or it does not tell."""

    @abstractmethod
    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one response. Raises `PromptTooLong` where the prompt leaves no room for one (`max_reply_tokens`),
        `EngineFailure` where the engine cannot answer for another reason."""

    @abstractmethod
    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        """Make `version` the sampled policy and drop every cached state of older weights.

        `weights` are (HF parameter name, tensor) pairs; None: the engine shares the learner's module, which already
        holds them. `adapter`: the weights are those of a LoRA adapter alone, by their peft names, and this is its
        peft configuration (only where `takes_adapters`); None: they are the whole model, adapters merged in.
        """

    async def sleep(self) -> None:
        """Give the memory of the GPU away until the next `update_weights`, which wakes the engine with new weights.

        Waits until what is under way has ended. Meanwhile a request is an EngineFailure. Does nothing where the engine
        does not sleep (`sleeps`), and where it sleeps already.
        """

    async def probe(self) -> None:
        """Raise EngineLost where nobody would answer a request now. Asked before an engine serves again that failed."""

    def release(self, session_id: str) -> None:
        """Forgets what was kept for an episode. Unknown ids are fine."""

    def stats(self) -> dict[str, float]:
        """Counters since the last call: generated tokens, prefilled tokens, seconds."""
        return {}

    async def close(self) -> None:
        """Frees everything. Calling it twice is fine."""


BaseInferenceEngine = InferenceEngine
"""The same contract under its other name."""


class Counters:
    """What an engine counts between two looks at it: numbers by name that add up until they are taken."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Add `value` to the number of that name."""
        self._values[name] = self._values.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        """Return the numbers since the last call, and begin anew."""
        values, self._values = self._values, {}
        return values
