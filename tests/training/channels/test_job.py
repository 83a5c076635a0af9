"""What of a run can be told to another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_model
from uirl import BaseEnvironment, ConfigStore
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.inference.models.chat import ChatRenderer
from uirl.training.channels.episodes import ActorJob, job_for, made_of, probe_of
from uirl.types import Trajectory


def reward(trajectory: Trajectory) -> float:
    return 2.5


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


@pytest.mark.parametrize("function", [reward, lambda trajectory: 2.5, Judge(2.5).score, Judge(2.5)])
def test_functions_lambdas_methods_and_objects_judge_in_another_process(function: Any) -> None:
    _, made = carried(job_for(ConfigStore().to_dict(), ".", {}, reward_fn=function))
    assert (made is function) == (function is reward), "what a module has goes by its name"
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
