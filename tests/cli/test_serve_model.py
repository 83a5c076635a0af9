"""`uirl serve-model`, as a process of its own."""

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
from uirl.storage import TrajectoryStore

SMALL = ["model.tiny={hidden_size: 32, num_heads: 2}", "inference.max_tokens=6"]


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[str]:
    """The address of a server that runs while the context lasts; it must end in order."""
    command = [sys.executable, "-m", "uirl.cli.main", "serve-model", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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


def test_a_model_is_served_and_its_sessions_are_kept(tmp_path: Path) -> None:
    record = tmp_path / "kept"
    with serving(
        "uirl/tiny-lm", *SMALL, "--record", str(record), "--api-key-env", "KEY_OF_MINE", KEY_OF_MINE="k"
    ) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
            assert [model.id for model in client.models.list()] == ["uirl/tiny-lm"]
            ask = {"model": "uirl/tiny-lm", "messages": [{"role": "user", "content": "hi"}], "seed": 1}
            whole = client.chat.completions.create(**ask)
            assert whole.usage.completion_tokens <= 6
            pieces = client.chat.completions.create(**ask, stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in pieces) == whole.choices[0].message.content
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="guess").models.list()
        key = {"authorization": "Bearer k"}
        opened = httpx.post(f"{url}/sessions", json={"task": "greet", "seed": 3}, headers=key).json()
        with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as agent:
            reply = agent.chat.completions.create(model="gpt-4o", messages=ask["messages"]).choices[0].message
            agent.chat.completions.create(model="gpt-4o", messages=[*ask["messages"], reply, *ask["messages"]])
        grader = {"authorization": f"Bearer {opened['grader_key']}"}
        assert httpx.post(opened["finish_url"], json={"reward": 1.0}, headers=grader).json()["turns"] == 2
    with TrajectoryStore(record / "trajectories.sqlite", read_only=True) as store:
        (stored,) = store
    assert (stored.id, stored.task.id, stored.rewards) == (opened["id"], "greet", [0.0, 1.0])
    assert [turn.starts_segment for turn in stored.turns] == [True, False]
    assert all(turn.rollout_log_probs for turn in stored.turns)


def test_a_checkpoint_is_served(tmp_path: Path) -> None:
    settings = [
        "model.model_name=uirl/tiny-lm",
        *SMALL,
        "environment.name=guess_number",
        "training.warm_start.enabled=false",
        "training.num_epochs=1",
        "training.num_iters_per_epoch=1",
        "training.batch_size=8",
        "training.eval_episodes=2",
        "training.warmup_steps=0",
        "logging.trackers=[]",
        "logging.run_name=run",
        f"logging.runs_dir={tmp_path}",
    ]
    assert main(["train", *settings]) == 0
    with serving(str(tmp_path / "run"), "--name", "mine", "--any-model") as url:
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
