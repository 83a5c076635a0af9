"""The side of TRL's contract that needs no TRL: schemas of the methods, observations, rewards, failures, clean-up."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from transformers.utils import get_json_schema

from tests.inference.pictures import picture
from tests.integrations.unsteady import UnsteadyGuessing
from uirl.environments import BaseEnvironment
from uirl.environments.adapters.trl import NOT_THERE, trl_environment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.types import Action, Observation, StepResult, Task


def parameters(method: Any) -> dict[str, Any]:
    """The JSON schema that TRL makes of a method."""
    found: dict[str, Any] = get_json_schema(method)["function"]["parameters"]
    return found


def methods(env: Any) -> set[str]:
    """What TRL takes for tools: it looks at the class for functions without an underscore."""
    found = {name for name, _ in inspect.getmembers(type(env), predicate=inspect.isfunction) if name[0] != "_"}
    return found - {"reset", "get_reward"}


class Painting(BaseEnvironment):
    """Functions of every kind of argument, tasks, and a picture."""

    action_format = "json"
    runs_inline = True

    def __init__(self, config: Any = None, name: str = "paint") -> None:
        super().__init__(config)
        self._name = name
        self.got: list[Any] = []

    def tool_schemas(self) -> Sequence[dict[str, Any]]:
        properties = {
            "width": {"type": "number"},
            "colour": {"type": "string", "enum": ["red", "blue"], "description": "of the\nbrush"},
            "at": {"type": "array", "items": {"type": "integer"}},
            "x": {"type": "integer", "minimum": 0, "maximum": 9},
        }
        schema = {"type": "object", "properties": properties, "required": ["colour", "at"]}
        return [{"type": "function", "function": {"name": self._name, "description": "Paints.", "parameters": schema}}]

    def tasks(self) -> list[Task]:
        return [Task(id="sea"), Task(id="sky")]

    def reset(self, *, task: Task | None = None, seed: int | None = None) -> Observation:
        return Observation(f"{task and task.id} {seed}", (picture(1),))

    def step(self, action: Action) -> StepResult:
        return StepResult(Observation(str(dict(action.call.arguments))), reward=0.25)

    def get_state_description(self) -> str:
        return ""


def test_a_text_environment_has_one_function() -> None:
    with trl_environment("guess_number", {"n": 3, "guesses": 2}) as factory:
        env = factory()
        assert methods(env) == {"act"}
        assert parameters(env.act)["required"] == ["action"]
        assert parameters(env.act)["properties"]["action"]["type"] == "string"
        assert env.reset(seed=1, prompt=[]) == "guess 1-3"
        assert env.get_reward() == 0.0
        assert [env.act(action=guess) for guess in ("3", "1")] == ["lower", "right\nThe episode is over."]
        assert (env.get_reward(), env.success) == (1.0, True)
        with pytest.raises(ValueError, match="The episode is over"):
            env.act(action="3")
        env.reset(seed=1)
        with pytest.raises(ValueError, match="missing argument 'action'"):
            env.act(guess="3")


def test_tools_keep_their_names_and_get_an_answer_beside_them() -> None:
    with trl_environment("calculator") as factory:
        env = factory()
        assert methods(env) == {"calculator", "answer"}
        question = env.reset(seed=1)
        result = env.calculator(expression=question)
        assert env.answer(text=result) == "The episode is over."
        assert env.get_reward() == 1.0


def test_schemas_become_signatures_with_the_same_schema() -> None:
    with trl_environment(Painting()) as factory:
        found = parameters(factory().paint)
    assert found["required"] == ["colour", "at"]
    assert found["properties"]["colour"] == {"type": "string", "enum": ["red", "blue"], "description": "of the brush"}
    assert found["properties"]["at"]["items"] == {"type": "integer"}
    assert found["properties"]["width"] == {"type": "number", "nullable": True, "description": "width."}
    assert found["properties"]["x"]["description"] == "x, 0 to 9."


def test_arguments_that_are_not_given_do_not_arrive() -> None:
    with trl_environment(Painting()) as factory:
        env = factory()
        env.reset(seed=0)
        assert env.paint(colour="red", at=[1], width=None) == "{'colour': 'red', 'at': [1]}"
        assert env.paint("red", [1]) == "{'colour': 'red', 'at': [1]}"


def test_pictures_are_content_blocks() -> None:
    with trl_environment(Painting()) as factory:
        image, text = factory().reset(seed=3, task="sky")
    assert image["type"] == "image"
    assert image["image"].mode == "RGB"
    assert text == {"type": "text", "text": "sky 3"}


def test_rows_give_the_rollouts_of_a_group_one_instance() -> None:
    with trl_environment(Painting()) as factory:
        rows = factory.rows(3, seed=5, instructions="Paint.")
        assert [(row["seed"], row["task"]) for row in rows] == [(5, "sea"), (6, "sky"), (7, "sea")]
        assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
        members = [factory().reset(**rows[1])[-1]["text"] for _ in range(2)]
        assert members == ["sky 6", "sky 6"]
        with pytest.raises(ConfigError, match="no column 'seed'"):
            factory().reset(prompt=[])


@pytest.mark.parametrize("at", ["reset", "step"])
def test_a_failure_has_no_reward_and_the_next_episode_a_fresh_instance(at: str) -> None:
    with trl_environment(UnsteadyGuessing(every=1, at=at)) as factory:
        env = factory()
        opening = env.reset(seed=1)
        if at == "reset":
            assert opening == NOT_THERE
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="the disk is full"):
                env.act(action="1")
        assert env.get_reward() is None
        assert isinstance(env.failure, EnvironmentFailure)
        assert factory.failures == 1
    with trl_environment(UnsteadyGuessing(every=2, at=at)) as factory:
        factory().reset(seed=1)
        env = factory()
        env.reset(seed=1)  # the second instance, which breaks
        if at == "step":
            with pytest.raises(EnvironmentFailure):
                env.act(action="1")
        assert env.get_reward() is None
        assert env.reset(seed=1) == "guess 1-3"
        assert env.act(action="1") in ("right\nThe episode is over.", "higher")
        assert env.get_reward() is not None


def test_many_failures_in_a_row_end_the_run() -> None:
    with trl_environment(UnsteadyGuessing(every=1, at="reset"), give_up_after=3) as factory:
        env = factory()
        assert [env.reset(seed=n) for n in range(2)] == [NOT_THERE] * 2
        with pytest.raises(EnvironmentFailure, match="3 episodes in a row failed"):
            env.reset(seed=2)


def test_many_failures_after_the_first_observation_end_the_run_too() -> None:
    def played(every: int) -> Any:
        factory = trl_environment(UnsteadyGuessing(every=every, at="step"), give_up_after=3)
        envs = [factory() for _ in range(4)]

        def batch() -> None:
            for env in envs:
                env.reset(seed=1)
            for env in envs:
                with contextlib.suppress(EnvironmentFailure):
                    env.act(action="1")

        return factory, batch

    factory, batch = played(every=1)
    with factory:
        batch()
        assert factory.failures == 4
        with pytest.raises(EnvironmentFailure, match="3 episodes in a row failed"):
            batch()
    factory, batch = played(every=2)
    with factory:  # every other one is well: there is something to learn from
        for _ in range(4):
            batch()
        assert factory.failures >= 3


@pytest.mark.parametrize("name", ["reset", "two.words", "class", "_hidden"])
def test_a_name_that_can_be_no_method_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name"):
        trl_environment(Painting(name=name))


def test_an_environment_that_does_not_say_what_can_be_done_needs_schemas() -> None:
    class Silent(Painting):
        def tool_schemas(self) -> Sequence[dict[str, Any]]:
            return []

    with pytest.raises(ConfigError, match="give `schemas`"):
        trl_environment(Silent())
    with trl_environment(Silent(), schemas=[{"name": "paint"}]) as factory:
        env = factory()
        env.reset(seed=0)
        env.paint()
        assert env.get_reward() == 0.25


def test_close_ends_the_thread_and_frees_every_environment() -> None:
    before = threading.active_count()
    factory = trl_environment("guess_number")
    for _ in range(3):
        factory().reset(seed=1)
    assert threading.active_count() > before
    factory.close()
    factory.close()
    assert threading.active_count() == before


def test_one_that_does_not_close_in_order_keeps_no_other_open() -> None:
    closed: list[int] = []

    class Stuck(UnsteadyGuessing):
        def spawn(self) -> UnsteadyGuessing:
            self.instances += 1
            other = Stuck(every=100)
            other.number = self.instances
            return other

        def close(self) -> None:
            closed.append(self.number)
            if self.number == 1:
                raise OSError("the lid is stuck")

    factory = trl_environment(Stuck(every=100))
    for _ in range(3):
        factory().reset(seed=1)
    with pytest.raises(EnvironmentFailure, match="the lid is stuck"):
        factory.close()
    assert closed == [1, 2, 3]
    factory.close()
