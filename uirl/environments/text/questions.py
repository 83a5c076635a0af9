"""Questions of a dataset, answered in one turn, and the reward functions that the field writes for them.

    environment:
      name: questions
      tasks: questions.jsonl          # {"question": "...", "answer": "..."}
      columns: {goal: question}
      options: {reward: my_rewards:correct}

The rows are the run's tasks (`uirl.storage.rows`): `goal` is shown to the policy, `checks` holds the other
columns.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike
from uirl.errors import ConfigError
from uirl.runtime.lazy import load
from uirl.types import Observation, Task

_LOG = logging.getLogger(__name__)
RewardFunction = Callable[[str, str, Mapping[str, Any]], "float | None"]
"""(question, reply, columns of the row) -> its score; None: the function has no say."""
OF_TRL = "completions"
OF_VERL = "solution_str"
"""A parameter by which each kind of function is known."""


class QuestionsOptions(EnvironmentOptions):
    """Questions of a dataset."""

    key = "questions"

    reward: str = ""
    """What scores a reply: 'package.module:function', with TRL's parameters (`prompts, completions, **columns`, a list
    of one each) or verl's (`data_source, solution_str, ground_truth, extra_info`), which may be async. Empty: 1 where
    the reply is the answer, as a number or but for case, else 0."""
    answer: str = "answer"
    """The column of the right answer, which the warm start imitates and verl's functions get as `ground_truth`. A row
    of verl's has it in `reward_model`."""
    solved_at: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """The score from which on a question is solved."""
    instructions: str = ""
    """The system prompt; empty: none."""


class QuestionsEnvironment(ConfigurableEnvironment):
    """A question that the run's dataset asks, answered in one turn."""

    runs_inline = False  # a reward function may take a while
    max_turns = 1
    fixed_start = True

    options_class = QuestionsOptions
    options: QuestionsOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Load the reward function. Options: see `QuestionsOptions`. Raises ConfigError for a function that does not
        exist or takes something else."""
        super().__init__(config, options, **keys)
        self._score = reward_function(self.options.reward, self.options.answer)
        self._task = Task("none")

    def get_prompt_prefix(self) -> str:
        return self.options.instructions

    def reset(self, task: Task | None = None) -> Observation:
        """Return the question of the task. Raises ConfigError where there is none."""
        if task is None or not task.goal:
            raise ConfigError(
                "questions: a task asks nothing; name a dataset and its column: environment.tasks=questions.jsonl "
                "environment.columns={goal: question}"
            )
        self._task = task
        return Observation(task.goal)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the reply and end the episode. What a function raises at a reply, or does not say, is a score of 0: the
        policy may have brought it about. What it raises at every reply is raised."""
        try:
            score = self._score(self._task.goal, action, self._task.checks)
        except Exception as error:
            if self._raises_anyway():
                raise
            _LOG.warning("%s at a reply to %s: %s: %s", self.options.reward, self._task.id, type(error).__name__, error)
            score = None
        known = score is not None and math.isfinite(score)
        paid = float(score) if score is not None and known else 0.0
        return "", paid, True, {"success": known and paid >= self.options.solved_at}

    def _raises_anyway(self) -> bool:
        for reply in ("", "0", self.expert_action() or "1"):
            with contextlib.suppress(Exception):
                self._score(self._task.goal, reply, self._task.checks)
                return False
        return True

    def get_state_description(self) -> str:
        """Return the question."""
        return self._task.goal

    def expert_action(self) -> str | None:
        """Return the right answer; None where the row has none."""
        answer = right_answer(self._task.checks, self.options.answer)
        return None if answer is None else str(answer)


def right_answer(columns: Mapping[str, Any], name: str) -> Any:
    """Return the answer in the column `name`, or where verl's rows have it; None: there is none."""
    if name in columns:
        return columns[name]
    model = columns.get("reward_model")
    return model.get("ground_truth") if isinstance(model, Mapping) else None


def reward_function(target: str, answer: str = "answer") -> RewardFunction:
    """Return the function that 'package.module:function' names, called as its parameters want it; empty: whether the
    reply is the right answer. Raises ConfigError."""
    if not target:
        return lambda question, reply, columns: float(is_same(reply, right_answer(columns, answer)))
    try:
        function = load(target)
        parameters = inspect.signature(function).parameters
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"questions.reward {target!r} cannot be loaded: {error}; expected 'package.module:function'"
        ) from error
    if OF_TRL in parameters:
        return partial(_ask_as_trl, function, _names(parameters))
    if OF_VERL in parameters:
        return partial(_ask_as_verl, function, _names(parameters), answer)
    raise ConfigError(
        f"questions.reward {target!r} takes {', '.join(parameters) or 'nothing'}; expected TRL's (prompts, "
        "completions, **columns) or verl's (data_source, solution_str, ground_truth, extra_info)"
    )


def is_same(reply: str, answer: Any) -> bool:
    """Return whether a reply is the answer: the same number, or the same text but for case and blanks around it. No
    reply is an answer that is not there."""
    if answer is None:
        return False
    given, right = reply.strip(), str(answer).strip()
    try:
        return Decimal(given.replace(",", "")) == Decimal(right.replace(",", ""))
    except InvalidOperation:
        return given.casefold() == right.casefold()


def _names(parameters: Mapping[str, inspect.Parameter]) -> frozenset[str] | None:
    """Return the parameters that may be given by name; None: any."""
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return frozenset(parameters)


def _ask_as_trl(
    function: Callable[..., Any], names: frozenset[str] | None, question: str, reply: str, columns: Mapping[str, Any]
) -> float | None:
    prompt, completion = columns.get("prompt", question), [{"role": "assistant", "content": reply}]
    given: dict[str, Any] = {name: [value] for name, value in columns.items()}
    given |= {"prompts": [prompt], OF_TRL: [completion if isinstance(prompt, list) else reply]}
    (score,) = _call(function, names, given)
    return None if score is None else float(score)


def _ask_as_verl(
    function: Callable[..., Any],
    names: frozenset[str] | None,
    answer: str,
    question: str,
    reply: str,
    columns: Mapping[str, Any],
) -> float | None:
    given = {
        "data_source": columns.get("data_source"),
        OF_VERL: reply,
        "ground_truth": right_answer(columns, answer),
        "extra_info": columns.get("extra_info"),
    }
    score = _call(function, names, given)
    score = score["score"] if isinstance(score, Mapping) else score
    return None if score is None else float(score)


def _call(function: Callable[..., Any], names: frozenset[str] | None, given: Mapping[str, Any]) -> Any:
    result = function(**{name: value for name, value in given.items() if names is None or name in names})
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result
