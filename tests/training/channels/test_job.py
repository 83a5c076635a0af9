"""What of a run can be told to another process."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import tiny_model
from uirl import BaseEnvironment, ConfigStore
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.inference.models.chat import ChatRenderer
from uirl.training.channels.episodes import ActorJob, job_for, made_of, probe_of
from uirl.training.record.processes import PROCESSES, ProcessTable
from uirl.types import Trajectory


def reward(trajectory: Trajectory) -> float:
    return 1.0


class Judge:
    def __init__(self, says: Any) -> None:
        self.says = says

    def score(self, trajectory: Trajectory) -> Any:
        return self.says

    __call__ = score


def carried(job_and_made: tuple[ActorJob, bytes | None]) -> tuple[BaseEnvironment | None, Any]:
    return made_of(job_and_made[1])


def test_a_job_says_where_modules_and_files_are() -> None:
    job, made = job_for(ConfigStore().to_dict(), ".", {"train": 3})
    assert made is None
    assert made_of(made) == (None, None)
    assert job.places == {"train": 3}
    assert str(Path.cwd()) == job.folder
    assert job.search_path


def test_a_function_of_a_module_goes_by_its_name() -> None:
    assert carried(job_for(ConfigStore().to_dict(), ".", {}, reward_fn=reward)) == (None, reward)


@pytest.mark.parametrize("function", [lambda trajectory: 2.5, Judge(2.5).score, Judge(2.5)])
def test_lambdas_methods_and_objects_judge_in_another_process(function: Any) -> None:
    _, made = carried(job_for(ConfigStore().to_dict(), ".", {}, reward_fn=function))
    assert made is not function
    assert made(Trajectory()) == 2.5


def test_an_environment_goes_with_what_it_holds_and_what_it_shares_with_the_reward_function() -> None:
    class Local(GuessNumberEnvironment):
        """Not importable: a class inside a function."""

    environment = Local(n=5)
    made, judge = carried(
        job_for(ConfigStore().to_dict(), ".", {}, environment=environment, reward_fn=Judge(environment).score)
    )
    assert type(made).__name__ == "Local"
    assert made is not environment
    assert made.n == 5
    assert judge(Trajectory()) is made


def test_other_templates_have_other_probes() -> None:
    plain, other = tiny_model("uirl/tiny-lm"), tiny_model("uirl/tiny-lm")
    other.tokenizer.chat_template = (
        "{% for m in messages %}>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert probe_of(ChatRenderer(plain)) == probe_of(ChatRenderer(tiny_model("uirl/tiny-lm")))
    assert probe_of(ChatRenderer(plain)) != probe_of(ChatRenderer(other))


def test_the_table_of_processes(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    seat = SimpleNamespace(name="actor-0", state="ready", pid=12, since=1.0, incarnation=2, host=None, node=None)
    table.set("actor", [seat])
    rows = json.loads((tmp_path / PROCESSES).read_text())["processes"]
    assert [row["role"] for row in rows] == ["learner", "actor"]
    assert rows[1] == {
        "name": "actor-0",
        "role": "actor",
        "state": "ready",
        "pid": 12,
        "host": socket.gethostname(),
        "node": None,
        "since": 1.0,
        "starts": 2,
    }
    written = (tmp_path / PROCESSES).stat().st_mtime_ns
    table.set("actor", [seat])
    assert (tmp_path / PROCESSES).stat().st_mtime_ns == written, "what did not change is not written again"
    seat.node = "10.0.0.7 (1f3a)"
    table.set("actor", [seat])
    assert json.loads((tmp_path / PROCESSES).read_text())["processes"][1]["node"] == "10.0.0.7 (1f3a)"
    seat.host, seat.state = "another-machine", "lost"
    table.set("actor", [seat])
    table.end()
    rows = json.loads((tmp_path / PROCESSES).read_text())["processes"]
    assert [(row["state"], row["pid"], row["host"]) for row in rows] == [
        ("stopped", None, socket.gethostname()),
        ("lost", None, "another-machine"),
    ]
