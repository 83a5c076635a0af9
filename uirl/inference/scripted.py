"""An engine without a model: it says what it is told. For tests, and for trying an environment out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from uirl.errors import EngineFailure
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights, max_reply_tokens

Script = Callable[[GenerationRequest], "tuple[int, ...] | list[int]"]


class ScriptedInferenceEngine(InferenceEngine):
    """Answers each request with the next item of `replies` (token ids), or with what `replies(request)` returns.

    Every token gets the log-prob 0.0: the script is certain. Raises `EngineFailure` where the replies run out.
    `max_context`: prompt and reply together, in tokens; None: any length.
    """

    shares_weights = True
    keeps_weights = True

    def __init__(
        self,
        replies: Iterable[Iterable[int]] | Script,
        *,
        end_ids: tuple[int, ...] = (),
        max_context: int | None = None,
    ) -> None:
        self._script = replies if callable(replies) else None
        self._replies: Iterator[Iterable[int]] = iter(()) if callable(replies) else iter(replies)
        self._end_ids, self._max_context = end_ids, max_context
        self.requests: list[GenerationRequest] = []
        """Everything that was asked, in order."""
        self.released: list[str] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        max_tokens = request.sampling.max_tokens
        if self._max_context is not None:
            max_tokens = min(
                max_tokens, max_reply_tokens(request.prompt_ids, self._max_context, "max_context of the script")
            )
        ids = tuple(self._script(request)) if self._script else self._next()
        cut = ids[:max_tokens]
        ended = not self._end_ids or (bool(cut) and cut[-1] in self._end_ids)
        reason = "stop" if ended and len(cut) == len(ids) else "length"
        return Generation(cut, (0.0,) * len(cut), reason, self.policy_version)

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        self.policy_version = version

    def release(self, session_id: str) -> None:
        self.released.append(session_id)

    def _next(self) -> tuple[int, ...]:
        try:
            return tuple(next(self._replies))
        except StopIteration:
            raise EngineFailure(f"the script has no reply for request {len(self.requests)}") from None
