"""docs/mobile_world.md: its programs run, its configs load, its table of actions is the phone's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.environments.mobile_world.playing import SOLUTIONS, phones, reply
from tests.inference.openai.stand_in_openai import StandInOpenAI
from uirl.config import load_config
from uirl.environments import create_environment
from uirl.environments.mobile_world.actions import ACTIONS
from uirl.inference import LoadedModel

PAGE = Path(__file__).parents[3] / "docs" / "mobile_world.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [body for language, body in BLOCKS if language == kind]


def test_programs_run(vlm: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    with phones() as (phone,), StandInOpenAI(vlm, "chat", models=["Tongyi-MAI/MAI-UI-2B"]) as model:
        for action in SOLUTIONS["OpenSettingsTask"]:
            model.scripted.append(({"role": "assistant", "content": reply(action)}, "stop"))
        names: dict[str, object] = {}
        for program in blocks("python"):
            program = program.replace("http://127.0.0.1:6800", phone.url).replace("http://127.0.0.1:8000", model.url)
            exec(compile(program, str(PAGE), "exec"), names)
        said = capsys.readouterr().out
        assert "OpenSettingsTask ('lang-en', 'app:Settings')" in said
        assert "True 1.0 2 None" in said
        assert "so it goes -> ToolCall(name='terminate'" in said
        assert phone.idle


def test_configs_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "any")
    for text in blocks("yaml"):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        section = load_config(str(path)).environment
        create_environment(section.name, section.options, section)
    assert len(blocks("yaml")) == 3


def test_every_action_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == ACTIONS
