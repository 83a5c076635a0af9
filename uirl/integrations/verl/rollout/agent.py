"""The policy behind verl's rollout servers, as an agent of our episodes: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, EngineFailure
from uirl.images import Screenshot
from uirl.inference.base import SamplingParams, max_reply_tokens
from uirl.rollout.conversation import Context
from uirl.rollout.episode import Agent, Response

BAN = -1e9
"""Added to the logit of a token that may not be sampled: JSON has no infinity, and exp(-1e9) is 0."""


class ServerAgent(Agent):
    """Asks verl's server client; every turn of an episode goes to the same server, which keeps its prefix cache."""

    def __init__(
        self,
        client: Any,
        sampling: Mapping[str, Any],
        request_id: str,
        *,
        max_tokens: int,
        end_ids: Sequence[int],
        max_context: int | None = None,
        seeded: bool = False,
        banned: Sequence[int] = (),
        picture_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Set up the agent of one episode. `sampling`: verl's parameters of this episode. `max_tokens`: of one reply.
        `end_ids` end a reply and belong to it. `max_context`: of prompt and reply together; None: what the server
        takes. `seeded`: the draws follow from the episode's seed, where the server takes one (vLLM does). `banned`:
        tokens that the server itself does not keep from being sampled (`left_to_us`). `picture_options`: of the
        server's processor (`min_pixels`, `max_pixels`)."""
        self._client, self._request_id = client, request_id
        self._sampling = {**sampling, "stop_token_ids": list(end_ids)}
        if banned:
            self._sampling["logit_bias"] = {str(token): BAN for token in banned}
        self._max_context = max_context
        self._further = {"mm_processor_kwargs": dict(picture_options)} if picture_options else {}
        self._max_tokens, self._end_ids, self._seeded = max_tokens, frozenset(end_ids), seeded
        self.versions: list[int] = []
        """Global steps of the weights that sampled, one or two per reply."""

    @property
    def sampling(self) -> SamplingParams:
        said = self._sampling
        return SamplingParams(
            max_tokens=self._max_tokens,
            temperature=float(said.get("temperature", 1.0)),
            top_p=float(said.get("top_p", 1.0)),
            top_k=max(0, int(said.get("top_k", 0))),  # -1 is verl's word for no limit
        )

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        if self._max_context is not None:
            source = "data.max_prompt_length + data.max_response_length"
            max_tokens = min(max_tokens, max_reply_tokens(context.prompt_ids, self._max_context, source))
        sampling = {**self._sampling, "max_tokens": min(self._max_tokens, max_tokens)}
        if self._seeded and seed is not None:
            sampling["seed"] = seed
        images = [RemoteImage(screenshot) for screenshot in context.images]
        try:
            answer = await self._client.generate(
                request_id=self._request_id,
                prompt_ids=list(context.prompt_ids),
                sampling_params=sampling,
                image_data=images or None,
                **self._further,
            )
        except (RayError, RuntimeError, OSError) as error:
            raise EngineFailure(f"verl's rollout server did not answer: {_first_line(error)}") from error
        return self._read(answer)

    def _read(self, answer: Any) -> Response:
        if not answer.token_ids:
            raise EngineFailure(f"verl's rollout server answered with no token (stop reason {answer.stop_reason!r})")
        fields = answer.extra_fields
        versions = [fields[key] for key in ("min_global_steps", "max_global_steps") if fields.get(key) is not None]
        self.versions += versions
        ids = tuple(answer.token_ids)
        reason = "stop" if ids[-1] in self._end_ids else "length"
        if answer.stop_reason in ("aborted", "abort"):
            reason = "abort"
        return Response(ids, tuple(answer.log_probs or ()), reason, min(versions, default=0))


class RemoteImage:
    """A picture on its way to a server in another process: it goes as it was captured and arrives as a PIL image. A
    screenshot of 1280 x 720 is 2.8 MB of pixels, every turn, and a few hundred kB encoded."""

    def __init__(self, screenshot: Screenshot) -> None:
        self._screenshot = screenshot

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded, (self._screenshot.data,)


def _decoded(data: bytes) -> Any:
    return Screenshot(data).open()


def left_to_us(rollout: str, banned: Sequence[int]) -> tuple[int, ...]:
    """Return those of the `banned` tokens that verl's servers of the kind `rollout` would sample: vLLM's are told by
    verl to leave placeholders of pictures out, SGLang's are not."""
    return tuple(banned) if rollout == "sglang" else ()


def refuse_seed(rollout: Any) -> None:
    """Raise ConfigError where the rollout of verl's config takes no seed per request."""
    if rollout.name == "sglang":
        raise ConfigError("inference.seed is set, but verl's SGLang server takes no seed per request; leave it null")


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
