"""What all proofs of a model need, and the one, at load, that it reads pictures as HF makes it read them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uirl.errors import AlignmentError, ContractError
from uirl.images import Screenshot, screenshot
from uirl.inference.models.vision import VisionInputs

SIZES = ((64, 48), (36, 80))
"""Width and height of the pictures that are tried: of two shapes, so that one is filled up beside the other."""
RAISED = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)
"""What a model raises that is fed in another way than it was written for."""

Read = Callable[[Sequence[Sequence[int]], Sequence[Screenshot]], Tensor]
"""(sequences with a picture each, pictures) -> hidden states [B, T, H], right-padded."""


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference of hidden states, as a mean over tokens, that rounding explains. Over the
    30 families of transformers 5.10 that have windows or chunks, with random weights, a mask without them made 0.2 to
    0.98."""
    return 0.1 if dtype in (torch.bfloat16, torch.float16) else 1e-3


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return how far hidden states [B, T, H] or [T, H] are from others, in parts of their size, as a mean over
    tokens."""
    distance = (ours - theirs).float().norm(dim=-1)
    return float((distance / theirs.float().norm(dim=-1).clamp(min=1e-30)).mean())


def plain_words(loaded: Any, count: int) -> list[int]:
    """Return so many tokens of a `LoadedModel` that may be sampled and end nothing."""
    banned = {*loaded.banned_ids, *loaded.end_ids}
    plain = [i for i in range(len(loaded.tokenizer)) if i not in banned]
    return list(itertools.islice(itertools.cycle(plain), count))


def probe(size: tuple[int, int]) -> Screenshot:
    """Return a picture of `size` (width, height) in which no two parts are alike."""
    from PIL import Image

    image = Image.linear_gradient("L").resize(size)
    return screenshot(Image.merge("RGB", (image, image.transpose(Image.Transpose.ROTATE_180), image)))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Return a context in which `model` is in evaluation mode: HF's gradient checkpointing keeps no cache in training
    mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def prove_pictures(vision: VisionInputs, model: Any, read: Read, *, name: str) -> None:
    """Raise ContractError where sequences with pictures, read as here (`read`), do not make the hidden states that the
    model itself makes of what its HF processor returns."""
    parameter = next(model.parameters())
    pictures = [probe(size) for size in SIZES]
    try:
        outputs = [vision.front.sequence("one ", picture.open(), " two three") for picture in pictures]
        theirs = [_their_states(model, output, parameter) for output in outputs]
        sequences = [output["input_ids"][0].tolist() for output in outputs]
        ours = read(sequences, pictures)
    except (*RAISED, AlignmentError) as error:
        raise ContractError(
            f"{name} (model type {model.config.model_type!r}) cannot read pictures here: "
            f"{type(error).__name__}: {error}. Expected pictures as placeholders in one sequence, see docs/models.md"
        ) from error
    gap = max(difference(mine[: len(other)], other) for mine, other in zip(ours, theirs, strict=True))
    allowed = tolerance(parameter.dtype)
    if not gap <= allowed:
        raise ContractError(
            f"{name} (model type {model.config.model_type!r}): hidden states of a text with a picture differ from the "
            f"model's own by {gap:.2g} of their size, expected at most {allowed:g}: it attends, or counts positions, "
            "in a way that is not known here, see docs/models.md"
        )


def _their_states(model: Any, output: dict[str, Tensor], parameter: Tensor) -> Tensor:
    """Return hidden states [T, H] of one sequence, with all that HF's processor says of it."""
    inputs = {
        key: value.to(parameter.device, parameter.dtype if value.is_floating_point() else value.dtype)
        for key, value in output.items()
        if isinstance(value, Tensor) and key != "labels"
    }
    made = model(**inputs, use_cache=False, output_hidden_states=True)
    return made.hidden_states[-1][0]
