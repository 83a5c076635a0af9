"""What of a run can be told to another process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import tiny_model
from uirl import ConfigStore
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.errors import ConfigError
from uirl.inference.models.chat import ChatRenderer
from uirl.training.actors.job import job_for, name_of, probe_of
from uirl.training.record.processes import PROCESSES, ProcessTable
from uirl.types import Trajectory


def reward(trajectory: Trajectory) -> float:
    return 1.0


class Judge:
    def score(self, trajectory: Trajectory) -> float:
        return 0.0


def test_a_function_of_a_module_is_told_by_its_name() -> None:
    job = job_for(ConfigStore(), reward, {"train": 3})
    assert job.reward == f"{__name__}:reward"
    assert job.places == {"train": 3}
    assert str(Path.cwd()) == job.folder
    assert job.search_path


@pytest.mark.parametrize("function", [lambda trajectory: 0.0, Judge().score, Judge()])
def test_what_another_process_cannot_import_is_refused(function: object) -> None:
    with pytest.raises(ConfigError, match=r"which another process cannot import.*actors.processes=0"):
        name_of(function)  # type: ignore[arg-type]


def test_a_function_of_the_script_is_refused() -> None:
    def inner() -> None: ...

    inner.__module__, inner.__qualname__ = "__main__", "inner"
    with pytest.raises(ConfigError, match="a file beside the config"):
        name_of(inner)


def test_an_environment_that_was_an_object_is_refused() -> None:
    config = ConfigStore()
    config.environment.note_object(GuessNumberEnvironment())
    with pytest.raises(ConfigError, match=r"was handed over as an object.*name it in the config"):
        job_for(config, None, {"train": 1})


def test_other_templates_have_other_probes() -> None:
    plain, other = tiny_model("uirl/tiny-lm"), tiny_model("uirl/tiny-lm")
    other.tokenizer.chat_template = "{% for m in messages %}>{{ m.content }}<|im_end|>{% endfor %}"
    assert probe_of(ChatRenderer(plain)) == probe_of(ChatRenderer(tiny_model("uirl/tiny-lm")))
    assert probe_of(ChatRenderer(plain)) != probe_of(ChatRenderer(other))


def test_the_table_of_processes(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    seat = SimpleNamespace(name="actor-0", state="ready", pid=12, since=1.0, incarnation=2)
    table.set("actor", [seat])
    rows = json.loads((tmp_path / PROCESSES).read_text())["processes"]
    assert [row["role"] for row in rows] == ["learner", "actor"]
    assert rows[1] == {
        "name": "actor-0",
        "role": "actor",
        "state": "ready",
        "pid": 12,
        "since": 1.0,
        "starts": 2,
    }
    written = (tmp_path / PROCESSES).stat().st_mtime_ns
    table.set("actor", [seat])
    assert (tmp_path / PROCESSES).stat().st_mtime_ns == written, "what did not change is not written again"
