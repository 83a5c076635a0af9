"""Our request as vLLM takes it, and its answer as ours: the same in this process and over HTTP. Imports no vllm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.errors import AlignmentError, ContractError, EngineFailure, SamplingRefused
from uirl.images import Screenshot
from uirl.inference.base import Generation, GenerationRequest, SamplingParams, max_reply_tokens
from uirl.inference.footprint import Held
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.vision import VisionInputs

if TYPE_CHECKING:
    from PIL.Image import Image

BAN = -1e9
"""Logit bias of what must never be sampled: no temperature that vLLM takes (at most 2) brings it back."""
COLDEST, HOTTEST = 0.01, 2.0
"""Temperatures above 0 that vLLM samples at. It silently warms up colder ones, and the log-probs would be another
policy's."""

_SLEEPLESS = "a vLLM server has a GPU of its own and does not sleep; let vLLM start here (no inference.server_url)"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as the model sees it."""

    key: str
    image: Image


@dataclass(frozen=True, slots=True)
class VLLMRequest:
    """One request in vLLM's terms."""

    prompt_ids: list[int]
    """One placeholder per picture: vLLM puts in as many as the picture takes."""
    pictures: list[Picture]
    sampling: dict[str, Any]
    """Fields of vLLM's `SamplingParams`."""


@dataclass(frozen=True, slots=True)
class VLLMResponse:
    """What vLLM says."""

    prompt_ids: Sequence[int]
    """As they were fed."""
    token_ids: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: str | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter in a peft folder, under a name that no other adapter of this server ever had: vLLM keeps cached
    states by the name."""

    name: str
    number: int
    folder: Path


class VLLMBackend(ABC):
    """A vLLM, wherever it runs. Every failure is an `EngineFailure`, every wrong setting a `ConfigError`."""

    @abstractmethod
    async def start(self) -> int:
        """Tokens of prompt and response together that it takes, once it is ready."""

    @abstractmethod
    async def generate(self, call: VLLMRequest, adapter: Adapter | None) -> VLLMResponse:
        """One response. Cancelling it stops vLLM's work on it."""

    @abstractmethod
    async def load(self, folder: Path) -> None:
        """Make the weights in `folder` those of the model and drop what was computed with older ones."""

    @abstractmethod
    async def swap(self, old: Adapter | None, new: Adapter | None) -> None:
        """Make `new` ready, forget `old`, and drop what was computed with it."""

    async def sleep(self, level: int) -> None:
        """Free weights and cache, which are dropped. Level 1: the weights are copied to the memory of the host first.
        Nothing may be under way."""
        raise ContractError(_SLEEPLESS)

    async def wake(self, part: str) -> None:
        """Take the memory of `part` again (`WEIGHTS` or `CACHE`); what was dropped has no content."""
        raise ContractError(_SLEEPLESS)

    async def held(self) -> Held | None:
        """Return what it holds of its GPU; None: it cannot tell."""
        return None

    @abstractmethod
    async def close(self, adapter: Adapter | None) -> None:
        """Frees everything; `adapter` is the one in use."""


def to_vllm_request(request: GenerationRequest, loaded: LoadedModel, max_context: int) -> VLLMRequest:
    """Build the request for a vLLM of `max_context` tokens. Raises PromptTooLong where no token is left for a reply,
    and AlignmentError where placeholders and images do not match."""
    limit = max_reply_tokens(request.prompt_ids, max_context, "the server's max_model_len, inference.max_context")
    sampling = sampling_fields(request.sampling, loaded, limit)
    if loaded.vision is None and not request.images:
        return VLLMRequest(list(request.prompt_ids), [], sampling)
    vision = loaded.vision_for(request.images)
    pictures = [Picture(image.hash, resized_as_learner(image, vision)) for image in request.images]
    return VLLMRequest(vision.one_placeholder_each(request.prompt_ids, request.images), pictures, sampling)


def sampling_fields(params: SamplingParams, loaded: LoadedModel, limit: int) -> dict[str, Any]:
    """Fields of vLLM's `SamplingParams`. Everything is said: a server's own defaults must not reach into a rollout."""
    if params.temperature != 0 and not COLDEST <= params.temperature <= HOTTEST:
        raise SamplingRefused(
            f"vLLM samples at temperature 0 or {COLDEST:g} to {HOTTEST:g}, got {params.temperature:g}; set "
            "inference.temperature"
        )
    greedy = params.temperature == 0
    return {
        "max_tokens": min(params.max_tokens, limit),
        "temperature": params.temperature,
        # a greedy response reports the plain distribution; vLLM would filter it where others in its batch sample
        "top_p": 1.0 if greedy else params.top_p,
        "top_k": 0 if greedy else params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "seed": params.seed,
        # all ends are named here, so that none comes from a generation_config.json
        "ignore_eos": True,
        "stop_token_ids": sorted({*loaded.end_ids, *params.stop_token_ids}),
        "logit_bias": dict.fromkeys(loaded.banned_ids, BAN) or None,
        "logprobs": 0,
        "detokenize": False,
    }


def to_generation(answer: VLLMResponse, request: GenerationRequest, loaded: LoadedModel, version: int) -> Generation:
    """Return the answer, where it is one to `request`. Raises AlignmentError where vLLM fed other tokens than asked
    for, and EngineFailure where it did not finish."""
    if tuple(answer.prompt_ids) != request.prompt_ids:
        raise AlignmentError(_other_prompt(answer.prompt_ids, request, loaded))
    if answer.finish_reason not in ("stop", "length") or not answer.token_ids:
        raise EngineFailure(f"vLLM did not finish the response: it says {answer.finish_reason!r}")
    if len(answer.log_probs) != len(answer.token_ids):
        raise AlignmentError(f"vLLM gave {len(answer.log_probs)} log-probs for {len(answer.token_ids)} tokens")
    return Generation(
        token_ids=tuple(answer.token_ids),
        log_probs=tuple(answer.log_probs),
        finish_reason=answer.finish_reason,
        policy_version=version,
        cached_tokens=answer.cached_tokens,
    )


def resized_as_learner(shot: Screenshot, vision: VisionInputs) -> Image:
    """Return the picture at the size at which the learner sees it.

    vLLM's processor then has nothing to resize: its interpolation differs from the learner's, and so would log-probs.
    """
    image = shot.open()
    if not vision.has_grid:
        return vision.front.fit(image.size).shown(image)
    _, rows, columns = vision.describe([shot])[0].grid  # type: ignore[misc]
    side = vision.processor.patch_size
    size = (columns * side, rows * side)
    return image if image.size == size else image.resize(size, resample=vision.processor.resample)


def _other_prompt(fed: Sequence[int], request: GenerationRequest, loaded: LoadedModel) -> str:
    if loaded.vision is None or len(fed) == len(request.prompt_ids):
        return f"vLLM fed {len(fed)} other prompt tokens than the {len(request.prompt_ids)} it was asked to feed"
    token = loaded.vision.image_token_id
    theirs, ours = sum(i == token for i in fed), sum(i == token for i in request.prompt_ids)
    return (
        f"vLLM gave the {len(request.images)} image(s) of a prompt {theirs} placeholder tokens, expected {ours}; its "
        "picture settings (preprocessor_config.json, mm_processor_kwargs) are not those of the learner's model"
    )
