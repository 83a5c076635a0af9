"""`uirl serve-model`, as a process of its own. With a key and a record: tests/serving/test_guide.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
import torch

from tests.patience import PATIENCE
from uirl.cli.main import main
from uirl.cli.serve_model import send_weights
from uirl.config import ConfigStore
from uirl.inference import TransformersInferenceEngine, load_model
from uirl.learner import Policy

SMALL = ["model.tiny={hidden_size: 32, num_heads: 2}", "inference.max_tokens=6"]


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of a server that runs while the context lasts; it must end in order."""
    command = [sys.executable, "-m", "uirl.cli.main", "serve-model", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        said = ""
        while line := process.stdout.readline():
            said += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"^serving .* at (http://\S+)/v1$", said, re.MULTILINE)
        if found is None:
            process.kill()
            pytest.fail(f"no address in {said!r}: {process.communicate()[1]}")
        assert "openai.OpenAI(base_url=" in said
        yield found[1]
        process.send_signal(signal.SIGINT)
        complaints = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints
    finally:
        process.kill()
        process.wait()


def test_a_checkpoint_is_served(whole: Path) -> None:
    with serving(str(whole), "--name", "mine", "--any-model") as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            made = client.chat.completions.create(model="x", messages=[{"role": "user", "content": "guess"}])
        assert made.model == "mine"
        assert json.loads(httpx.get(f"{url}/health").text)["model"] == "mine"


async def test_an_engine_with_a_model_of_its_own_is_sent_the_weights() -> None:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", *SMALL])
    policy = Policy.from_config(config, critic=False)
    other = TransformersInferenceEngine(load_model(config.model, seed=9))
    head = other.loaded.model.get_output_embeddings()
    assert not torch.equal(head.weight, policy.loaded.model.get_output_embeddings().weight)
    await send_weights(policy, other)
    assert torch.equal(head.weight, policy.loaded.model.get_output_embeddings().weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["uirl/tiny-ml"], "no built-in model"),
        (["uirl/tiny-lm", "--host", "0.0.0.0"], "no API key is set"),
        (["uirl/tiny-lm", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["uirl/tiny-lm", "--parser", "qwenn"], "did you mean"),
        (["uirl/tiny-lm", "inference.max_tokns=3"], "max_tokens"),
        (["uirl/tiny-lm", "--backend", "vlm"], "inference.backend"),
        ([str(Path(__file__).parent)], "neither a run directory"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-model", *arguments, "--port", "0"]) == 2
    assert message in capsys.readouterr().err
