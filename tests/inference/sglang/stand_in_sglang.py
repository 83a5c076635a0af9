"""Stand-ins for SGLang: what its source (0.5.23, `sglang_surface.json`) says it takes, does and answers.

`SGLangLogic` is the behaviour; `StandInSGLang` is an HTTP server around it, `install` puts a package `sglang` around it
into `sys.modules` whose classes and methods have exactly the recorded names and refuse any other.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.inference.stand_in_brain import Brain, Sampled
from tests.inference.stand_in_http import Answer, Seen, StandIn
from uirl.config import ModelConfig
from uirl.images import Screenshot
from uirl.inference import GenerationRequest, SamplingParams
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.sglang.engine import SGLangInferenceEngine

ASKED = GenerationRequest((30, 31, 32, 33), (), SamplingParams(max_tokens=6, seed=3))
SURFACE = json.loads((Path(__file__).parent / "sglang_surface.json").read_text())
TOP_K_ALL = 1 << 30
MASK_CAP = 4096


@dataclass
class World:
    """An engine and what stands behind it."""

    engine: SGLangInferenceEngine
    logic: SGLangLogic
    server: StandInSGLang | None


class Refused(ValueError):
    """What the server answers with 400, and what the engine in process raises."""


class SGLangLogic:
    """What SGLang does with requests, commands and weights.

    `deterministic`: --enable-deterministic-inference. `original`: SGLANG_RETURN_ORIGINAL_LOGPROB. `retokenizes`: it
    makes other ids of a prompt with pictures than it was given. `preferred`: --preferred-sampling-params.
    """

    def __init__(self, loaded: LoadedModel, *, deterministic: bool = True, lora: bool = False, **options: Any) -> None:
        self.loaded, self.brain = loaded, Brain(loaded, joint=True)
        self.deterministic, self.lora = deterministic, lora
        self.original = options.get("original", False)
        self.retokenizes = options.get("retokenizes", False)
        self.preferred = options.get("preferred", {})
        self.image_processor = options.get("image_processor", "auto")
        self.context = options.get("context", 4096)
        self.weight_version = "default"
        self.cache: list[tuple[str | None, list[int]]] = []
        self.spoil: dict[str, Any] = {}
        """Entries of `meta_info` that come out otherwise; a value of None: the entry is missing."""

    def facts(self) -> dict[str, Any]:
        return {
            "version": SURFACE["version"],
            "enable_deterministic_inference": self.deterministic,
            "weight_version": self.weight_version,
            "served_model_name": self.loaded.name,
            "image_processor_backend": self.image_processor,
        }

    def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(body)
        params = self._params(given.get("sampling_params") or {})
        adapter = given.get("lora_path")
        if adapter is not None and adapter not in self.brain.adapters:
            raise Refused(f"The following requested LoRA adapters are not loaded: {adapter}")
        shots = [_picture(url) for url in given.get("image_data") or []]
        ids = self._expand(given["input_ids"], shots)
        if len(ids) + params["max_new_tokens"] > self.context:
            raise Refused(f"Requested token count exceeds the model's maximum context length of {self.context} tokens.")
        masked = bool(given.get("return_sampling_mask"))
        if masked and params["top_k"] != 1 and not 1 < params["top_k"] <= MASK_CAP:
            raise Refused(f"return_sampling_mask requires top_k=1 or finite 1 < top_k <= {MASK_CAP}")
        greedy = params["top_k"] == 1
        made = self.brain.sample(
            ids,
            shots,
            limit=params["max_new_tokens"],
            temperature=0.0 if greedy else params["temperature"],
            top_p=params["top_p"],
            top_k=0 if params["top_k"] == TOP_K_ALL else params["top_k"],
            bias={int(k): v for k, v in params["logit_bias"].items()},
            stop=[*params["stop_token_ids"], self.loaded.tokenizer.eos_token_id],
            seed=self._seed(params["sampling_seed"]),
            adapter=adapter,
        )
        return self._answer(given, ids, made, self._cached(adapter, ids, made.ids), masked)

    def update_weights_from_disk(self, body: Mapping[str, Any]) -> tuple[bool, str, int]:
        if not list(Path(body["model_path"]).glob("*.safetensors")):
            return False, f"Failed to get weights iterator: Cannot find any model weights with {body['model_path']}.", 0
        self.brain.load(body["model_path"])
        if body.get("flush_cache", True):
            self.cache.clear()
        if body.get("weight_version") is not None:
            self.weight_version = body["weight_version"]
        return True, "Succeeded to update model weights.", 0

    def load_lora_adapter(self, body: Mapping[str, Any]) -> tuple[bool, str]:
        if not self.lora:
            return False, "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        if body["lora_name"] in self.brain.adapters:
            return False, f"LoRA with name {body['lora_name']} already exists."
        self.brain.load_adapter(body["lora_name"], body["lora_path"])
        return True, ""

    def unload_lora_adapter(self, body: Mapping[str, Any]) -> tuple[bool, str]:
        if self.brain.adapters.pop(body["lora_name"], None) is None:
            return False, f"LoRA adapter with name {body['lora_name']} does not exist."
        return True, ""

    def _params(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        unknown = set(asked) - set(SURFACE["bodies"]["SamplingParams"])
        if unknown:
            raise Refused(f"unknown key in sampling_params: {sorted(unknown)}")
        params: dict[str, Any] = {
            "max_new_tokens": 128,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "stop_token_ids": (),
            "logit_bias": {},
            "sampling_seed": None,
        }
        params |= self.preferred
        params |= asked
        penalties = [params[k] for k in ("min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")]
        assert penalties == [0.0, 1.0, 0.0, 0.0], f"penalties would change what is sampled: {penalties}"
        shapes = (
            "regex",
            "json_schema",
            "ebnf",
            "structural_tag",
            "stop",
            "stop_regex",
            "min_new_tokens",
            "ignore_eos",
        )
        assert not any(params.get(name) for name in shapes), f"not what was asked for: {params}"
        if params["temperature"] < 1e-6:
            params |= {"temperature": 1.0, "top_k": 1}
        if params["top_k"] == -1:
            params["top_k"] = TOP_K_ALL
        if params["top_k"] < 1:
            raise Refused(f"top_k must be -1 (disable) or at least 1, got {params['top_k']}.")
        vocabulary = self.loaded.model.get_output_embeddings().weight.shape[0]
        if not all(0 <= int(token) < vocabulary for token in params["logit_bias"]):
            raise Refused(f"logit_bias must has keys in [0, {vocabulary - 1}]")
        return params

    def _seed(self, asked: int | None) -> int | None:
        if not self.deterministic:
            return None
        return 42 if asked is None else asked

    def _expand(self, ids: list[int], shots: list[Screenshot]) -> list[int]:
        if not shots:
            return list(ids)
        vision = self.loaded.vision
        if vision is None or ids.count(vision.image_token_id) != len(shots):
            raise Refused("prompt has another number of image placeholder tokens than images were provided")
        sizes = iter([image.tokens for image in vision.encode(shots)])
        out: list[int] = []
        for token in ids:
            out += [token] * next(sizes) if token == vision.image_token_id else [token]
        if self.retokenizes:  # as many ids, but another one among them
            out[0] += 1
        return out

    def _cached(self, adapter: str | None, ids: list[int], made: list[int]) -> int:
        """Prompt tokens that an earlier sequence of the same adapter began with."""
        best = 0
        for owner, kept in self.cache:
            if owner == adapter:
                same = next((i for i, (a, b) in enumerate(zip(ids, kept, strict=False)) if a != b), len(kept))
                best = max(best, min(same, len(ids) - 1, len(kept)))
        self.cache.append((adapter, [*ids, *made]))
        return best

    def _answer(
        self, given: dict[str, Any], ids: list[int], made: Sampled, cached: int, masked: bool
    ) -> dict[str, Any]:
        reported = made.raw if self.original else made.scaled
        stop = {"type": "stop", "matched": made.ids[-1]}
        meta: dict[str, Any] = {
            "id": "a" * 32,
            "finish_reason": stop if made.stopped else {"type": "length", "length": len(made.ids)},
            "prompt_tokens": len(ids),
            "weight_version": self.weight_version,
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(made.ids),
            "cached_tokens": cached,
            "e2e_latency": 0.1,
        }
        if given.get("return_logprob"):
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[p, t, None] for p, t in zip(reported, made.ids, strict=True)]
            if given.get("top_logprobs_num"):
                at = 0 if self.original else 1
                meta["output_top_logprobs"] = [[[top[at], top[2], None]] for top in made.tops]
        if masked:
            meta["output_token_sampling_mask"] = [[t] for t in made.ids]
            meta["output_token_sampling_logprobs"] = made.kept
            meta["output_token_sampling_mask_length"] = len(made.ids)
        meta = {k: v for k, v in (meta | self.spoil).items() if v is not None}
        text = self.loaded.tokenizer.decode(made.ids)
        answer: dict[str, Any] = {"text": text, "output_ids": made.ids, "meta_info": meta}
        if given.get("return_prompt_token_ids"):
            answer["prompt_token_ids"] = ids
        return answer


class StandInSGLang(StandIn):
    """The HTTP server."""

    def __init__(self, logic: SGLangLogic) -> None:
        super().__init__()
        self.logic = logic

    def answer(self, seen: Seen) -> Answer:
        path = seen.path.partition("?")[0]
        if seen.method not in SURFACE["routes"].get(path, ()):
            return Answer({"detail": "Not Found"}, 404)
        if path in ("/server_info", "/model_info"):
            return Answer(self.logic.facts())
        if path == "/generate":
            unknown = set(seen.body) - set(SURFACE["bodies"]["GenerateRequest"])
            assert not unknown, f"SGLang would ignore {unknown}"
            try:
                return Answer(self.logic.generate(seen.body))
            except Refused as error:
                return Answer({"error": {"message": str(error)}}, 400)
        wanted = SURFACE["requests"][_REQUEST_OF[path[1:]]]
        wrong = (set(seen.body) - set(wanted)) | {n for n, must in wanted.items() if must and n not in seen.body}
        if wrong:
            return Answer({"object": "error", "message": f"wrong or missing: {wrong}", "code": 400}, 400)
        done = getattr(self.logic, path[1:])(seen.body)
        key = "message" if path == "/update_weights_from_disk" else "error_message"
        return Answer({"success": done[0], key: done[1]}, 200 if done[0] else 400)


_REQUEST_OF = {
    "update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "load_lora_adapter": "LoadLoRAAdapterReqInput",
    "unload_lora_adapter": "UnloadLoRAAdapterReqInput",
}


def install(monkeypatch: Any, **options: Any) -> list[Any]:
    """Puts a package `sglang` in place; the list that is returned gets the engines that are made with it."""
    made: list[Any] = []

    class Engine:
        def __init__(self, **kwargs: Any) -> None:
            unknown = set(kwargs) - set(SURFACE["server_args"])
            if unknown:
                raise TypeError(f"ServerArgs got unexpected keyword arguments {sorted(unknown)}")
            if kwargs.get("enable_lora"):
                assert kwargs["max_lora_rank"], "needs both --max-lora-rank and --lora-target-modules"
                assert kwargs["lora_target_modules"], "needs both --max-lora-rank and --lora-target-modules"
            config = ModelConfig(model_name="stand-in", local_path=kwargs["model_path"], device="cpu")
            self.kwargs = kwargs
            self.logic = SGLangLogic(
                load_model(config),
                deterministic=kwargs.get("enable_deterministic_inference", False),
                lora=kwargs.get("enable_lora", False),
                **options,
            )
            self.tokenizer_manager = Manager(self.logic)
            self.ended = 0
            made.append(self)

        def get_model_info(self) -> dict[str, Any]:
            return {k: v for k, v in self.logic.facts().items() if k in ("weight_version", "served_model_name")}

        def shutdown(self) -> None:
            self.ended += 1

    class Manager:
        def __init__(self, logic: SGLangLogic) -> None:
            self.logic = logic
            self.loop: asyncio.AbstractEventLoop | None = None
            self.sampling = 0
            self.seconds = 0.001
            """What an answer takes."""

        async def generate_request(self, *args: Any, **kwargs: Any) -> Any:
            obj = self._bind("generate_request", "GenerateReqInput", args, kwargs)
            self.sampling += 1
            try:
                await asyncio.sleep(self.seconds)
                yield self.logic.generate({k: v for k, v in vars(obj).items() if v is not None})
            finally:
                self.sampling -= 1

        def __getattr__(self, method: str) -> Any:
            async def command(*args: Any, **kwargs: Any) -> Any:
                obj = self._bind(method, _REQUEST_OF[method], args, kwargs)
                done = getattr(self.logic, method)(vars(obj))
                if method == "update_weights_from_disk":
                    return done
                return requests.LoRAUpdateOutput(success=done[0], error_message=done[1])

            return command

        def _bind(self, method: str, request: str, args: Any, kwargs: Any) -> Any:
            names = SURFACE["manager"][method]
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            inspect.Signature([inspect.Parameter(name, kind) for name in names]).bind(*args, **kwargs)
            self.loop = self.loop or asyncio.get_running_loop()
            assert self.loop is asyncio.get_running_loop(), "answers would go to another loop, for ever"
            assert type(args[0]).__name__ == request
            return args[0]

    requests = types.ModuleType("sglang.srt.managers.io_struct")
    for name, fields in SURFACE["requests"].items():
        setattr(requests, name, _request_class(name, fields))
    engine = types.ModuleType("sglang.srt.entrypoints.engine")
    engine.Engine = Engine  # type: ignore[attr-defined]
    managers = types.ModuleType("sglang.srt.managers")
    managers.io_struct = requests  # type: ignore[attr-defined]
    for path in ("sglang", "sglang.srt", "sglang.srt.entrypoints"):
        monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
    for module in (engine, managers, requests):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def _request_class(name: str, fields: Mapping[str, bool]) -> type:
    def __init__(self: Any, **kwargs: Any) -> None:
        unknown = set(kwargs) - set(fields)
        missing = {field for field, must in fields.items() if must} - set(kwargs)
        if unknown or missing:
            raise TypeError(f"{name}: unexpected {sorted(unknown)}, missing {sorted(missing)}")
        self.__dict__.update(dict.fromkeys(fields) | kwargs)

    return type(name, (), {"__init__": __init__})


def _picture(url: str) -> Screenshot:
    head, _, encoded = url.partition(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64"), head
    return Screenshot(base64.b64decode(encoded, validate=True))
