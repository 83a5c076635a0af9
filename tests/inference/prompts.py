"""What every engine is asked, and how far its answers are from what the learner says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.inference.pictures import picture
from uirl.images import Screenshot
from uirl.inference import (
    ChatRenderer,
    EngineReport,
    Generation,
    GenerationRequest,
    InferenceEngine,
    LoadedModel,
    Message,
    check_engine,
    recompute_with,
)


def prompts_for(loaded: LoadedModel, chat: ChatRenderer):
    """Prompts of different lengths, with pictures where the model sees."""
    if loaded.vision is None:
        texts = ["guess 1-7", "a longer prompt about a door and a key", "x"]
        return [(chat.whole([Message("user", text)]), ()) for text in texts]
    shots = [(picture(1),), (picture(2), picture(3, (84, 56))), ()]
    return [(chat.whole([Message("user", f"press {i}", s)]), s) for i, s in enumerate(shots)]


async def contract(
    engine: InferenceEngine,
    loaded: LoadedModel,
    prompts: Sequence[tuple[Sequence[int], Sequence[Screenshot]]] | None = None,
    **options: Any,
) -> EngineReport:
    """What `check_engine` says of an engine that serves `loaded`."""
    chat = ChatRenderer(loaded)
    usual: Mapping[str, Any] = {
        "recompute": recompute_with(loaded),
        "banned_ids": loaded.banned_ids,
        "continuation": chat.following([Message("user", "next")], after_end=False),
    }
    return await check_engine(engine, prompts or prompts_for(loaded, chat), **{**usual, **options})


def gap_of(loaded: LoadedModel, request: GenerationRequest, made: Generation) -> float:
    """How far the log-probs of a reply are from those of the learner as it is now, in nats."""
    assert made.log_probs is not None
    ids = [*request.prompt_ids, *made.token_ids]
    learned = recompute_with(loaded)(ids, request.images, len(made.token_ids), request.sampling)
    return max(abs(a - b) for a, b in zip(made.log_probs, learned, strict=True))
