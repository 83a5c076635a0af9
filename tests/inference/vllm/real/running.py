"""Configs, servers and changed weights for the tests with a real vLLM."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.inference.pictures import picture
from uirl.config import ConfigStore
from uirl.images import Screenshot
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams
from uirl.inference.models.loading import load_model
from uirl.inference.vllm.arguments import vllm_server_command
from uirl.inference.vllm.engine import VLLMInferenceEngine

GAP = 1e-4
"""Largest |engine - learner| log-prob that rounding explains in float32."""
SMALL = tuple(
    f"model.tiny.{size}" for size in ("hidden_size=64", "num_layers=2", "num_heads=2", "intermediate_size=128")
)
"""Sizes of the model that is trained: those of configs/guess_number.yaml, with heads that vLLM knows on a CPU."""
STARTS_WITHIN = 300.0
LONG = "go north , take the key , open the door , look , help , press the red button , not the green one"


def config_of(model: str, *more: str) -> ConfigStore:
    """A config of a tiny model in vLLM, on the CPU."""
    return ConfigStore().override(
        [
            f"model.model_name={model}",
            "model.device=cpu",
            "inference.backend=vllm",
            "inference.max_batch_size=64",
            *more,
        ]
    )


@dataclass
class Server:
    """A vLLM server that runs."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Ends it as a machine does that loses power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def served(config: ConfigStore, folder: Path) -> Iterator[Server]:
    """A context with a server, started by the command that we give to others."""
    load_model(config.model).save(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = vllm_server_command(config, model=str(folder / "model"), port=port)
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_healthy(server, log)
        yield server
    finally:
        if process.poll() is None:
            server.kill()


def _wait_until_healthy(server: Server, log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline:
        assert server.process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(server.url + "/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"the server did not start within {STARTS_WITHIN:g} s:\n{log.read_text()[-4000:]}")


def prompts_of(loaded: LoadedModel) -> list[tuple[Sequence[int], tuple[Screenshot, ...]]]:
    """Prompts of several lengths, with no, one and two pictures where the model sees; long enough to be cached."""
    chat = ChatRenderer(loaded)
    shots: list[tuple[Screenshot, ...]] = [(), (), ()]
    if loaded.vision is not None:
        shots = [(picture(1), picture(3, (84, 56))), (picture(2),), ()]
    return [(chat.whole([Message("user", LONG[: 80 - 30 * i], own)]), own) for i, own in enumerate(shots)]


def requests_of(engine: VLLMInferenceEngine) -> list[GenerationRequest]:
    """Requests for a few tokens after `prompts_of` its model."""
    sampling = SamplingParams(max_tokens=8, seed=3)
    return [GenerationRequest(tuple(ids), shots, sampling) for ids, shots in prompts_of(engine.loaded)]


def change(model: torch.nn.Module, seed: int, *, only: str = "") -> None:
    """Moves the weights whose names contain `only`, far enough to change every log-prob."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
