"""A rollout for verl on the CPU: our embedded engine in a Ray actor, and the courier that brings it new weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from uirl.config import ModelConfig
from uirl.images import screenshot
from uirl.inference import GenerationRequest, LoadedModel, SamplingParams, TransformersInferenceEngine, load_model
from uirl.inference.embedded.sampling import BatchSampling

_STOPS = {"stop": "completed", "length": "completed", "abort": "aborted"}


def server_name(replica_rank: int) -> str:
    """Name of the actor that serves a replica."""
    return f"uirl-cpu-server-{replica_rank}"


class PlainEngine(TransformersInferenceEngine):
    """Never samples a banned token, and reports log-probs of the distribution without the ban: verl's actor knows of no
    ban and computes them so."""

    def __init__(self, loaded: LoadedModel, **options: Any) -> None:
        super().__init__(loaded, **options)
        self._never = torch.tensor(loaded.banned_ids, dtype=torch.long)
        loaded.banned_ids = ()

    def _take(self, sequences: Any, sampling: Any, logits: torch.Tensor) -> None:
        allowed = logits.index_fill(-1, self._never, float("-inf"))
        super()._take(sequences, _PlainLogProbs(sampling, logits), allowed)  # type: ignore[arg-type]


class _PlainLogProbs:
    """A sampling whose log-probs are read off other logits than those it draws from."""

    def __init__(self, sampling: BatchSampling, logits: torch.Tensor) -> None:
        scale = torch.where(sampling.greedy, torch.ones_like(sampling.temperature), sampling.temperature)
        self._sampling, self._log_probs = sampling, torch.log_softmax(logits.float() / scale[:, None], -1)

    def sample(self, logits: torch.Tensor, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
        tokens, _ = self._sampling.sample(logits, uniforms)
        return tokens, self._log_probs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()


class CPUServer:
    """The control surface that verl expects of a rollout server, as a Ray actor."""

    def __init__(self, config: Any, model_config: Any) -> None:
        torch.set_num_threads(1)
        self._config: RolloutConfig = omega_conf_to_dataclass(config)
        model: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        loaded = load_model(ModelConfig(local_path=model.local_path, device="cpu"))
        self._engine = PlainEngine(loaded)
        self._updates: list[tuple[int | None, int]] = []

    async def ready(self) -> int:
        """The process id, once the model is loaded."""
        return os.getpid()

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: Any = None,
    ) -> TokenOutput:
        """One response, in verl's terms."""
        room = self._config.prompt_length + self._config.response_length - len(prompt_ids)
        sampling = SamplingParams(
            max_tokens=max(1, min(sampling_params.get("max_tokens", self._config.response_length), room)),
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=max(0, sampling_params["top_k"]),
            stop_token_ids=tuple(sampling_params.get("stop_token_ids") or ()),
            seed=sampling_params.get("seed"),
        )
        shots = tuple(screenshot(picture) for picture in image_data or ())
        made = await self._engine.generate(GenerationRequest(tuple(prompt_ids), shots, sampling))
        return TokenOutput(
            token_ids=list(made.token_ids),
            log_probs=list(made.log_probs) if sampling_params.get("logprobs") and made.log_probs else None,
            stop_reason=_STOPS[made.finish_reason],
            extra_fields={"global_steps": made.policy_version},
        )

    async def load_weights(self, weights: list[tuple[str, torch.Tensor]], global_steps: int | None) -> None:
        """Makes these what is sampled from."""
        await self._engine.update_weights(weights, global_steps or 0)
        self._updates.append((global_steps, len(weights)))

    async def updates(self) -> list[tuple[int | None, int]]:
        """(global step, number of tensors) of every update so far."""
        return self._updates

    async def die(self) -> None:
        """Ends the process at once, as a crash would."""
        os._exit(1)

    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...

    async def resume_generation(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


class CPUReplica(RolloutReplica):
    """Starts one server per replica."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(CPUServer)
            .options(name=server_name(self.replica_rank), num_cpus=0.1, max_concurrency=self.max_concurrency)
            .remote(self.config, self.model_config)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)


class WeightCourier(BaseRollout):
    """Lives in a training worker; the first rank of a replica hands whole tensors to its server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank, ranks = int(os.environ["RANK"]), self.config.tensor_model_parallel_size
        self._server = server_name(rank // ranks if replica_rank == -1 else replica_rank)
        self._leads = rank % ranks == 0

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **options: Any) -> None:
        """Sends everything in one message, which is what tiny models need."""
        if wire_format != "named_tensors" or options.get("peft_config") is not None:
            raise NotImplementedError(f"the CPU courier carries whole named tensors, got {wire_format} {options}")
        whole = []
        async for name, tensor in ensure_async_iterator(weights):  # every rank: gathering a tensor takes all of them
            if self._leads:
                whole.append((name, tensor.detach().float().cpu().clone()))
        if self._leads:
            await ray.get_actor(self._server).load_weights.remote(whole, options.get("global_steps"))
