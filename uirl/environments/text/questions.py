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
import copy
import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike
from uirl.errors import ConfigError, is_round
from uirl.runtime.lazy import load
from uirl.runtime.limits import in_words, read_score
from uirl.runtime.time_limits import awaited, contained
from uirl.types import Observation, Task

_LOG = logging.getLogger(__name__)
OF_TRL = "completions"
OF_VERL = "solution_str"
"""A parameter by which each kind of function is known."""
OF_VERL_ALL = frozenset({"data_source", OF_VERL, "ground_truth", "extra_info"})
OF_TRL_RUN = frozenset({"completion_ids", "prompt_ids", "trainer_state", "log_extra", "log_metric", "environments"})
"""What TRL's trainer gives beside prompts, completions and columns."""
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+|(?=\.\d))(\.\d+)?([eE][+-]?\d{1,6})?")


Reward = Callable[[str, str, Mapping[str, Any]], Any]
"""(question, reply, columns of the row) -> its score; None: it has no say."""


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
        self._scorer = Scorer(self.options.reward, self.options.answer)
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
        self._scorer.require(task.checks)
        self._task = task
        return Observation(task.goal)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the reply and end the episode."""
        paid, known = self._scorer.score(self._task, action)
        return "", paid, True, {"success": known and paid >= self.options.solved_at}

    def get_state_description(self) -> str:
        """Return the question."""
        return self._task.goal

    def expert_action(self) -> str | None:
        """Return the right answer; None where the row has none."""
        answer = right_answer(self._task.checks, self.options.answer)
        return None if answer is None else str(answer)


class Scorer:
    """A reward function and what it needs: it is one for all instances of a process.

    What it raises at a reply is the policy's doing where it scores another one: then, and where it has no say (None) or
    says no finite number, the reply is worth 0, or the lowest score so far where that is less. What it raises whatever
    the reply is raised.
    """

    def __init__(self, target: str, answer: str) -> None:
        """Load the function that `target` names, see `reward_function`; `answer`: the column of the right answer."""
        self._function, self._columns = reward_function(target, answer)
        self._answer = answer
        self._scored: tuple[Task, str] | None = None
        self._lowest = 0.0
        self._unread = 0

    def __deepcopy__(self, memo: Any) -> Scorer:
        return self

    def require(self, columns: Mapping[str, Any]) -> None:
        """Raise ConfigError where the function takes a column that a row does not have."""
        missing = sorted(self._columns - columns.keys())
        if missing:
            raise ConfigError(
                f"questions.reward takes {', '.join(missing)}; the row has {', '.join(columns) or 'no columns'}"
            )

    def score(self, task: Task, reply: str) -> tuple[float, bool]:
        """Return what a reply is paid, and whether the function said so."""
        try:
            score = self._ask(task, reply)
        except Exception as error:
            if not self._scores_another(task):
                raise
            self._unread += 1
            if is_round(self._unread):
                what = "the reward function cannot read a reply, and reads another: it counts as 0, or less"
                _LOG.warning("%s (time %d in this process): %s", what, self._unread, in_words(error, 300))
            score = None
        if score is None:
            return min(0.0, self._lowest), False
        self._scored = task, reply
        return score, True

    def _ask(self, task: Task, reply: str) -> float | None:
        columns = copy.deepcopy(dict(task.checks))  # the function's to change
        said = contained(lambda: self._function(task.goal, reply, columns))
        if said is None or (isinstance(said, float) and not math.isfinite(said)):
            return None
        score = read_score(said, "it")
        self._lowest = min(self._lowest, score)
        return score

    def _scores_another(self, task: Task) -> bool:
        answer = right_answer(task.checks, self._answer)
        others = [(task, reply) for reply in ("", "0", "1" if answer is None else str(answer))]
        worked = False
        for one, reply in [self._scored, *others] if self._scored is not None else others:
            with contextlib.suppress(Exception):
                self._ask(one, reply)
                worked = True
        return worked


def right_answer(columns: Mapping[str, Any], name: str) -> Any:
    """Return the answer where verl's rows have it, else in the column `name`; None: there is none."""
    model = columns.get("reward_model")
    known = model.get("ground_truth") if isinstance(model, Mapping) else None
    return columns.get(name) if known is None else known


def reward_function(target: str, answer: str) -> tuple[Reward, set[str]]:
    """Return the function that 'package.module:function' names, called as its parameters want it, and the columns that
    it cannot do without; empty: whether the reply is the right answer. Raises ConfigError."""
    if not target:
        return lambda question, reply, columns: float(is_same(reply, right_answer(columns, answer))), set()
    try:
        function = load(target)
        parameters = inspect.signature(function).parameters
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"questions.reward {target!r} cannot be loaded: {error}; expected 'package.module:function'"
        ) from error
    kinds = {one.kind for one in parameters.values()}
    names = None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(parameters)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = {name for name, one in parameters.items() if one.kind in by_name and one.default is one.empty}
    if OF_VERL in parameters:
        called: Any = partial(_ask_as_verl, function, names, answer)
        needed, columns = required - OF_VERL_ALL, set[str]()
    elif OF_TRL in parameters or names is None:
        called = partial(_ask_as_trl, function, names)
        needed, columns = required & OF_TRL_RUN, required - OF_TRL_RUN - {"prompts", OF_TRL}
    else:
        needed, columns, called = required, set[str](), None
    if called is None or needed or inspect.Parameter.POSITIONAL_ONLY in kinds:
        raise ConfigError(
            f"questions.reward {target!r} takes {', '.join(parameters) or 'nothing'}; expected TRL's (prompts, "
            "completions, **columns), without what only a trainer of TRL has, or verl's (data_source, solution_str, "
            "ground_truth, extra_info)"
        )
    return called, columns


def is_same(reply: str, answer: Any) -> bool:
    """Return whether a reply is the answer: the same text but for case and blanks around it, or the same number. No
    reply is an answer that is not there."""
    given, right = reply.strip(), "" if answer is None else str(answer).strip()
    if not right:
        return False
    numbers = [Decimal(text.replace(",", "")) for text in (given, right) if _NUMBER.fullmatch(text)]
    return given.casefold() == right.casefold() or (len(numbers) == 2 and numbers[0] == numbers[1])


def _ask_as_trl(
    function: Callable[..., Any], names: frozenset[str] | None, question: str, reply: str, columns: Mapping[str, Any]
) -> Any:
    prompt, completion = columns.get("prompt", question), [{"role": "assistant", "content": reply}]
    given: dict[str, Any] = {name: [value] for name, value in columns.items()}
    given |= {"prompts": [prompt], OF_TRL: [completion if isinstance(prompt, list) else reply]}
    scores = _call(function, names, given)
    scores = scores.tolist() if hasattr(scores, "tolist") else scores
    if not isinstance(scores, (list, tuple)) or len(scores) != 1:
        raise ValueError(f"got {scores!r:.80} for one reply, expected a list of one number")
    return scores[0]


def _ask_as_verl(
    function: Callable[..., Any],
    names: frozenset[str] | None,
    answer: str,
    question: str,
    reply: str,
    columns: Mapping[str, Any],
) -> Any:
    given = {
        "data_source": columns.get("data_source"),
        OF_VERL: reply,
        "ground_truth": right_answer(columns, answer),
        "extra_info": columns.get("extra_info"),
    }
    score = _call(function, names, given)
    return score["score"] if isinstance(score, Mapping) else score


def _call(function: Callable[..., Any], names: frozenset[str] | None, given: Mapping[str, Any]) -> Any:
    result = function(**{name: value for name, value in given.items() if names is None or name in names})
    return asyncio.run(awaited(result)) if inspect.isawaitable(result) else result
