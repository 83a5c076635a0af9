"""SGLang, in this process or behind its own server.

Written against the source of SGLang 0.5.23 (its request classes, routes and sampler) and tested against stand-ins
that hold to it. It never ran against a running SGLang, which has no build for CPUs.

What that source says and this adapter takes care of:
- Log-probs come after temperature and `logit_bias`, but before top-k and top-p. Filtered requests ask for the log-prob
  within the sampling mask instead, which SGLang gives for a finite top-k only: with top-p alone `log_probs` is None. Of
  top-k and top-p together it keeps the tokens that both keep.
- A seed is ignored unless deterministic inference is on; a request without one then gets the seed of all others.
- Pictures make it decode the prompt and tokenize it again, with a way back to the given ids; the ids that it really
  used are compared with those that were sent.
- An update waits for the requests under way, drops the prefix cache, and every answer says which weights made it. One
  that fails may leave anything behind: nothing is sampled until another one succeeds.
- In process, a scheduler that dies ends this process, and closing ends all child processes of this process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.errors import ContractError, EngineFailure, PromptTooLong
from uirl.images import data_url
from uirl.inference.base import (
    Counters,
    Generation,
    GenerationRequest,
    InferenceEngine,
    SamplingParams,
    Weights,
    max_reply_tokens,
)
from uirl.inference.http import says_too_long
from uirl.inference.models.loading import LoadedModel
from uirl.inference.servers import pushed_weights, server_client
from uirl.inference.sglang.backends import SGLangProcess, SGLangServer, engine_arguments, json_object
from uirl.inference.weight_files import WeightFiles
from uirl.runtime.once import Once

if TYPE_CHECKING:
    from uirl.config import EngineSettings

_LOG = logging.getLogger(__name__)
_BAN = -1e9
"""Added to the logit of a token that may not be sampled: JSON has no infinity, and exp(-1e9) is 0."""

_NEUTRAL: Mapping[str, Any] = {
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "ignore_eos": False,
    **dict.fromkeys(("stop", "stop_regex", "regex", "json_schema", "ebnf", "structural_tag")),
}
"""What a server prefers (--preferred-sampling-params) must not change what is sampled from, nor where it ends."""


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A LoRA adapter that SGLang holds."""

    name: str
    version: int
    folder: Path


class SGLangInferenceEngine(InferenceEngine):
    """Samples with SGLang. `backend`: where it runs; `files`: the folder through which weights reach it.

    `takes_adapters`: LoRA adapters are swapped, instead of whole models with adapters merged in.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        backend: SGLangServer | SGLangProcess,
        files: WeightFiles,
        *,
        max_context: int | None = None,
        takes_adapters: bool = False,
    ) -> None:
        self.loaded = loaded
        self.takes_adapters = takes_adapters
        self._backend, self._files = backend, files
        self._max_context = max_context or loaded.max_positions
        self._ready = Once(self._start)
        self._versions: dict[str, int] = {}
        self._adapters: list[_Adapter] = []
        self._merged = False
        self._broken: str | None = None
        self._bias = {str(token): _BAN for token in loaded.banned_ids}
        # versions of another run, which the same server may have seen, must not look like ours
        self._run = uuid.uuid4().hex[:8]
        self._counters = Counters()
        self._closed = False

    @classmethod
    def from_config(cls, settings: EngineSettings, loaded: LoadedModel, *, shared: bool) -> SGLangInferenceEngine:
        """Build the engine that `settings` describe: behind `server_url`, or in this process where there is
        none."""
        inference = settings.inference
        options = dict(inference.engine_options)
        adapters = settings.model.use_lora and bool(options.get("enable_lora", True))
        files = WeightFiles(inference.weights_dir, size=sum(p.nbytes for p in loaded.model.parameters()))
        backend: SGLangServer | SGLangProcess
        try:
            if inference.server_url is not None:
                backend = SGLangServer(server_client(inference, inference.server_url, key_variable="SGLANG_API_KEY"))
            else:
                backend = SGLangProcess(engine_arguments(settings, loaded, files, adapters) | options)
        except BaseException:
            files.close()
            raise
        return cls(loaded, backend, files, max_context=inference.max_context, takes_adapters=adapters)

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        limit = max_reply_tokens(request.prompt_ids, self._max_context, "the model's positions, inference.max_context")
        await self._ready.get()
        if self._broken is not None:
            raise EngineFailure(f"the last weight update failed ({self._broken}); push the weights again")
        adapter = self._adapters[-1] if self._adapters else None
        body = self._body(request, limit)
        if adapter is not None:
            body["lora_path"] = adapter.name
        started = time.perf_counter()
        answer = await self._backend.generate(body)
        generation = self._read(answer, request, adapter.version if adapter is not None else None)
        self._counters.add("generated_tokens", len(generation.token_ids))
        self._counters.add("prefill_tokens", len(request.prompt_ids) - generation.cached_tokens)
        self._counters.add("reused_tokens", generation.cached_tokens)
        self._counters.add("request_seconds", time.perf_counter() - started)
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        weights = pushed_weights(weights, adapter, takes_adapters=self.takes_adapters, program="SGLang")
        await self._ready.get()
        if adapter is not None:
            if self._merged:
                raise ContractError(
                    "a whole model with its adapters merged in was sent before, so an adapter alone would count twice; "
                    "go on with whole models, or make a new engine"
                )
            await self._load(await asyncio.to_thread(self._files.write_adapter, weights, adapter), version)
            # a request may be on its way with the adapter before
            await self._unload(keep=2)
        else:
            await self._replace(await asyncio.to_thread(self._files.write_weights, weights, self.loaded), version)
            await self._unload(keep=0)
        self.policy_version = version

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._backend.close()
            self._files.close()

    # -- parts of it -------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Check what runs there. Raises ContractError where its log-probs are not those of what it samples."""
        facts = await self._backend.facts()
        self._versions.setdefault(str(facts.get("weight_version")), self.policy_version)
        if not facts.get("enable_deterministic_inference"):
            _LOG.warning(
                "SGLang runs without --enable-deterministic-inference: it ignores seeds, and a run that is repeated "
                "will differ"
            )
        if self.loaded.vision is not None and facts.get("image_processor_backend") != "pil":
            _LOG.warning(
                "SGLang runs without --image-processor-backend pil: its pixels are not quite those of the learner, and "
                "neither are its log-probs"
            )
        plain, flat = [await self._likeliest(temperature) for temperature in (1.0, 2.0)]
        if abs(plain - flat) < 1e-5:
            raise ContractError(
                f"SGLang's log-probs do not change with the temperature (got {plain:.4f} at 1 and {flat:.4f} at 2); "
                "expected those of the distribution sampled from. Start it without SGLANG_RETURN_ORIGINAL_LOGPROB."
            )

    async def _likeliest(self, temperature: float) -> float:
        """Log-prob of the likeliest token after a short prompt."""
        body = {
            "input_ids": [self.loaded.end_ids[0]],
            "sampling_params": self._sampling(SamplingParams(1, temperature, seed=1), 1),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": 1,
        }
        meta = json_object((await self._backend.generate(body)).get("meta_info"), "meta_info")
        try:
            return float(meta["output_top_logprobs"][0][0][0])
        except (LookupError, TypeError, ValueError) as error:
            raise _misshapen("meta_info.output_top_logprobs", meta) from error

    def _body(self, request: GenerationRequest, limit: int) -> dict[str, Any]:
        """Build the body of a call of `/generate`."""
        params = request.sampling
        body: dict[str, Any] = {
            "input_ids": list(request.prompt_ids),
            "sampling_params": self._sampling(params, limit),
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        if _filtered(params) and params.top_k > 0:
            body["return_sampling_mask"] = True
        if request.images:
            vision = self.loaded.vision_for(request.images)
            body["input_ids"] = vision.one_placeholder_each(request.prompt_ids, request.images)
            body["image_data"] = [data_url(image.plain()) for image in request.images]
            body["return_prompt_token_ids"] = True
        return body

    def _sampling(self, params: SamplingParams, limit: int) -> dict[str, Any]:
        seed = random.getrandbits(63) if params.seed is None else params.seed
        sampling: dict[str, Any] = {
            "max_new_tokens": min(params.max_tokens, limit),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            **_NEUTRAL,
            "stop_token_ids": sorted({*self.loaded.end_ids, *params.stop_token_ids}),
            "skip_special_tokens": False,
            "sampling_seed": seed,
        }
        return sampling | ({"logit_bias": self._bias} if self._bias else {})

    async def _replace(self, folder: Path, version: int) -> None:
        """Put whole weights in the place of those that are there."""
        tag = f"{self._run}-{version}"
        # known before they are there: an answer that they made may come before the one to this command
        self._versions[tag] = version
        body = {"model_path": str(folder), "weight_version": tag, "flush_cache": True}
        try:
            await self._backend.command("update_weights_from_disk", body)
        except BaseException as error:
            # SGLang rolls back to the files that it could not read: what it has now nobody knows
            self._broken = str(error) or type(error).__name__
            raise
        finally:
            self._files.remove(folder)
        self._broken, self._merged = None, self.takes_adapters

    async def _load(self, folder: Path, version: int) -> None:
        """Load an adapter under a name of its own, so that nothing cached with another is taken for it."""
        adapter = _Adapter(f"uirl-{self._run}-{version}-{folder.name}", version, folder)
        try:
            await self._backend.command("load_lora_adapter", {"lora_name": adapter.name, "lora_path": str(folder)})
        except BaseException:
            self._files.remove(folder)
            raise
        self._adapters.append(adapter)

    async def _unload(self, *, keep: int) -> None:
        """Unloads all adapters but the newest `keep`."""
        while len(self._adapters) > keep:
            oldest = self._adapters.pop(0)
            await self._backend.command("unload_lora_adapter", {"lora_name": oldest.name})
            self._files.remove(oldest.folder)

    def _read(self, answer: Mapping[str, Any], request: GenerationRequest, adapter: int | None) -> Generation:
        """Read the generation in an answer. Raises EngineFailure for one that is not of the shape it should have."""
        meta = json_object(answer.get("meta_info"), "meta_info")
        reason = _finish_reason(meta)
        self._check_prompt(answer, meta, request)
        try:
            ids = tuple(entry[1] for entry in meta["output_token_logprobs"])
            log_probs = tuple(entry[0] for entry in meta["output_token_logprobs"])
        except (LookupError, TypeError) as error:
            raise _misshapen("meta_info.output_token_logprobs", meta) from error
        if not ids or len(ids) > request.sampling.max_tokens or meta.get("completion_tokens", len(ids)) != len(ids):
            raise _misshapen(f"1 to {request.sampling.max_tokens} tokens", meta)
        version = adapter if adapter is not None else self._version(meta)
        reported = log_probs if not _filtered(request.sampling) else _within_mask(meta, len(ids))
        return Generation(ids, reported, reason, version, meta.get("cached_tokens") or 0)

    def _check_prompt(self, answer: Mapping[str, Any], meta: Mapping[str, Any], request: GenerationRequest) -> None:
        """Raise EngineFailure where SGLang answered another prompt than it was sent."""
        expected, used = list(request.prompt_ids), answer.get("prompt_token_ids")
        if meta.get("prompt_tokens", len(expected)) == len(expected):
            if not request.images or used == expected:
                return
            if used is None:
                raise _misshapen("prompt_token_ids, which tell what it made of the pictures", meta)
        raise EngineFailure(
            f"SGLang answered another prompt than it was sent: got {meta.get('prompt_tokens')} tokens, expected "
            f"{len(expected)}. It must not tokenize again (SGLANG_MM_AVOID_RETOKENIZE=1), not truncate (no "
            "--allow-auto-truncate), and process pictures like the learner (the same preprocessor_config.json)."
        )

    def _version(self, meta: Mapping[str, Any]) -> int:
        """Return the version of the oldest weights that had a part in an answer."""
        spans = meta.get("weight_versions") or [{"version": meta.get("weight_version")}]
        versions = [self._versions.get(str(span.get("version"))) for span in spans]
        if None in versions:
            raise EngineFailure(
                f"SGLang answered with weights {[s.get('version') for s in spans]}, which this run did not send "
                f"(known: {', '.join(self._versions)}); does another run update the same server?"
            )
        return min(version for version in versions if version is not None)


def _filtered(params: SamplingParams) -> bool:
    """Whether tokens were left out of the distribution. A greedy response reports the plain one, as all engines do."""
    return params.temperature > 0 and (params.top_p < 1 or params.top_k > 0)


def _finish_reason(meta: Mapping[str, Any]) -> str:
    finish = meta.get("finish_reason")
    finish = finish if isinstance(finish, Mapping) else {}
    kind = finish.get("type")
    if kind == "abort":
        if says_too_long(str(finish.get("message"))):
            raise PromptTooLong(f"SGLang takes no prompt of this length: {finish}")
        raise EngineFailure(f"SGLang gave the request up: {finish}")
    if kind == "stop" and isinstance(finish.get("matched"), str):
        # a text, where only tokens were given to stop at: this is how it says that the logits were no numbers
        raise EngineFailure(f"SGLang stopped at no token of its vocabulary: {finish}; are the weights finite?")
    if kind not in ("stop", "length"):
        raise _misshapen("meta_info.finish_reason", meta)
    return str(kind)


def _within_mask(meta: Mapping[str, Any], n: int) -> tuple[float, ...] | None:
    """Log-probs after top-k and top-p; None where SGLang does not tell them."""
    values = meta.get("output_token_sampling_logprobs")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != n:
        raise _misshapen(f"{n} entries in meta_info.output_token_sampling_logprobs", meta)
    return tuple(values)


def _misshapen(expected: str, got: Any) -> EngineFailure:
    return EngineFailure(f"SGLang's answer lacks {expected}; got {str(got)[:300]}. Is it version 0.5.23 or newer?")
