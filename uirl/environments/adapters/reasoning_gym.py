"""Questions of reasoning-gym (2505.24760): a hundred generators, each with its own grader.

Graders of some generators hand the reply to `eval`. A reply reaches one of those as plain arithmetic or a list of
constants, or not at all: a policy would learn to run code in the learner's process.
"""

from __future__ import annotations

import ast
import random
from typing import Annotated, Any

from pydantic import Field

from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, MistakeReward, OptionsLike
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Observation, Task

EVALUATED = frozenset(
    [
        *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication"),
        *("puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
    ]
)
"""Generators whose graders evaluate the reply (reasoning-gym 0.1.25)."""
REFUSED = frozenset({"codeio"})
"""Generators that execute code which they draw."""
LONGEST = 4000
"""Characters of a reply that a grader is asked about: some compare in quadratic time."""
_PLAIN = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.Name, ast.UnaryOp, ast.UAdd, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow),
)
_LARGEST_POWER = 20


class ReasoningGymOptions(EnvironmentOptions):
    """Questions of reasoning-gym."""

    key = "reasoning_gym"

    problems: Annotated[tuple[dict[str, Any], ...], Field(strict=False, min_length=1)] = ({"dataset": "chain_sum"},)
    """One task each: `dataset`, the name of a generator, and its own options (`min_terms: 2`). A curriculum chooses
    between them by how often each is solved."""
    partial_credit: bool = False
    """Pay what the grader gives an answer that is not quite right; false: 1 for a right one, else nothing. An answer is
    right where the grader gives it 1."""
    mistake_reward: MistakeReward = 0.0
    """What a reply without an answer pays."""
    instructions: str = "Answer with the result alone."
    """The system prompt; empty: none."""


class ReasoningGymEnvironment(ConfigurableEnvironment):
    """A question of one generator, answered in one turn."""

    runs_inline = False  # a grader may take a while
    max_turns = 1

    options_class = ReasoningGymOptions
    options: ReasoningGymOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create the generators. Options: see `ReasoningGymOptions`. Raises ConfigError for a generator or an option of
        one that does not exist, and where the package is missing."""
        super().__init__(config, options, **keys)
        self._problems = {_name_of(problem): problem for problem in self.options.problems}
        for problem in self._problems.values():
            _create(problem, seed=0)
        self._begin(next(iter(self._problems.values())), 0)

    def tasks(self) -> list[Task]:
        """Return one task for each of the problems."""
        return [Task(name, checks=dict(problem)) for name, problem in self._problems.items()]

    def get_prompt_prefix(self) -> str:
        return self.options.instructions

    def reset(self, task: Task | None = None, *, seed: int | None = None) -> Observation:
        """Return a question of the task; None: of any of the problems. Raises ConfigError for a task that names no
        generator."""
        seed = random.getrandbits(31) if seed is None else seed % 2**31
        problem = random.Random(seed).choice(list(self._problems.values())) if task is None else dict(task.checks)
        self._begin(problem, seed)
        return Observation(self._entry["question"])

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Grade the answer and end the episode."""
        answer = action.strip()
        if not answer:
            return "", self.options.mistake_reward, True, {"success": False}
        score = self._score(answer)
        paid = score if self.options.partial_credit or score == 1.0 else 0.0
        return "", paid, True, {"success": score == 1.0, "answer": str(self._entry["answer"])}

    def get_state_description(self) -> str:
        """Return the question."""
        return str(self._entry["question"])

    def expert_action(self) -> str | None:
        """Return the generator's own answer; None where it has none."""
        answer = self._entry["answer"]
        return None if answer is None else str(answer)

    def _begin(self, problem: dict[str, Any], seed: int) -> None:
        self._dataset, self._of = _create(problem, seed), problem["dataset"]
        self._entry = self._dataset[0]

    def _score(self, answer: str) -> float:
        """Return what the grader gives an answer, in [0, 1]; 0 for one that it cannot read, whatever it raises then."""
        if answer == self._entry["answer"]:
            return 1.0
        if len(answer) > LONGEST or (self._of in EVALUATED and not is_plain(answer)):
            return 0.0
        try:
            score = float(self._dataset.score_answer(answer, self._entry))
        except Exception:  # what a grader raises at a reply is the reply's doing
            return 0.0
        return score if 0.0 <= score <= 1.0 else 0.0


def is_plain(answer: str) -> bool:
    """Return whether `answer` can be evaluated: numbers, texts, names of one letter, lists, + - * / and small
    powers."""
    try:
        tree = ast.parse(answer, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, _PLAIN) or (isinstance(node, ast.Name) and len(node.id) > 1):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = node.right
            if not isinstance(power, ast.Constant) or not isinstance(power.value, int) or power.value > _LARGEST_POWER:
                return False
    return True


def _name_of(problem: dict[str, Any]) -> str:
    """Return the name of a task: 'chain_sum min_terms=2'."""
    return " ".join([str(problem.get("dataset")), *(f"{k}={v}" for k, v in problem.items() if k != "dataset")])


def _create(problem: dict[str, Any], seed: int) -> Any:
    """Return a dataset of one question. Raises ConfigError."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(f"reasoning_gym: cannot import it ({error}); pip install 'uirl[reasoning]'") from error
    options = {key: value for key, value in problem.items() if key != "dataset"}
    name = problem.get("dataset")
    if name not in DATASETS:
        raise ConfigError(f"reasoning_gym: no generator {name!r}; {did_you_mean(str(name), sorted(DATASETS))}")
    if name in REFUSED:
        raise ConfigError(f"reasoning_gym: {name} executes code that it draws; choose another generator")
    if {"size", "seed"} & options.keys():
        raise ConfigError(f"reasoning_gym: {name} got size or seed; these are the run's own, leave them out")
    try:
        return reasoning_gym.create_dataset(name, size=1, seed=seed, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"reasoning_gym: {name} does not take {options}: {error}") from error
