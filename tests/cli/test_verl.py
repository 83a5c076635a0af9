"""`uirl verl` without verl: what is said before anything is started. Runs: tests/integrations/verl/test_command.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from uirl.cli.main import main
from uirl.integrations.verl.settings import LLM_API_KEY, LLM_BASE_URL

CONFIG = str(Path(__file__).parents[2] / "configs" / "verl_config.yaml")
URL = "http://localhost:9/v1"
KEY = "sk-of-mine-4711"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (LLM_BASE_URL, LLM_API_KEY):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "cannot read the config nowhere.yaml"),
        (["--config", CONFIG, "trainer.nnodes"], "expected KEY=VALUE"),
        (["--config", CONFIG, "uirl.training.learning_rat=1"], "learning_rate"),
        (["--config", CONFIG, "actor_rollout_ref.rollout.n=many"], "training.group_size"),
        (["--config", CONFIG, "curriculum.min_attempts=1"], "min_attempts"),
        (["--config", CONFIG, "curriculum.initial_distribution={fronteer: 1}"], "did you mean 'frontier'"),
        (["--config", CONFIG, "curriculum.enabled=often"], "expected true or false"),
        (["--config", CONFIG, "curriculum.class=uirl.types:Ladder"], "curriculum.class"),
        (["--config", CONFIG, "--llm_base_url", "api.openai.com"], "is no address"),
        (["--config", CONFIG, "--llm_base_url", f"https://{KEY}@host/v1"], "give it as --api_key"),
        (["--config", CONFIG, "--api_key", KEY], "--api_key without --llm_base_url"),
        (["--config", CONFIG, "--sft_model_path", "/no/such/model"], "/no/such/model does not exist"),
        (["--export", "runs/x", "trainer.nnodes=2"], "--export takes no other option"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verl", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert KEY not in said


def test_a_config_or_a_checkpoint_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verl"])
    assert "--config" in capsys.readouterr().err


def test_without_verl_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)
    assert main(["verl", "--config", CONFIG, "--dry_run"]) == 2
    assert "pip install 'uirl[verl]'" in capsys.readouterr().err


def test_export_without_verl_says_what_it_wants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["verl", "--export", str(tmp_path)]) == 2
    assert "neither a run directory, nor a checkpoint" in capsys.readouterr().err


def test_a_key_among_the_arguments_is_moved_into_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and trackers write the arguments of a process down."""
    started: dict[str, Any] = {}

    class Replaced(BaseException): ...

    def execve(program: str, command: list[str], env: dict[str, str]) -> None:
        started.update(command=command, env=env)
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(Replaced):
        main(["verl", "--config", CONFIG, "--llm_base_url", URL, "--api_key", KEY, "--dry_run", "a.b=1"])
    assert KEY not in str(started["command"])
    assert started["env"][LLM_API_KEY] == KEY
    again = started["command"][started["command"].index("verl") :]
    assert again == ["verl", "--config", CONFIG, "--llm_base_url", URL, "--dry_run", "a.b=1"]
    with pytest.raises(Replaced):
        main(["verl", "--config", CONFIG, "--llm_base_url", URL, "--api_key", KEY, "--plan", "--gpu_gib=141"])
    again = started["command"][started["command"].index(URL) + 1 :]
    assert again == ["--plan", "--gpu_gib=141.0", "--picture=1280x720"]
