"""Conversations of the Berkeley function-calling leaderboard (BFCL v4, multi-turn) over its simulators.

The package evaluates calls with `eval`. Here a call is a tool with arguments of plain data, and ground truth is read as
literals. Simulators compute what they are asked to, so arguments and sizes have bounds.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field

from uirl.config.section import Count, Index
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.errors import ConfigError
from uirl.tools import Tool, ToolDefinition, ToolError, ToolRegistry
from uirl.types import Action, Observation, Task, ToolCall

Category = Literal["base", "miss_func", "miss_param", "long_context"]
CALLS, LARGEST, LONGEST, PATHS = 200, 10**15, 10_000, 2_000
"""Calls of an episode, size of a number, characters of a text, and paths that an episode may add to the file system: a
copy of a folder into itself has no end."""
SMALL = {"exponent": 1000, "precision": 1000}
"""Arguments of the calculator that cost time with their size."""
UNFIT = frozenset(
    ["multi_turn_miss_func_49", *(f"multi_turn_{c}_173" for c in ("base", "miss_func", "miss_param", "long_context"))]
)
"""Conversations whose ground truth calls what the policy is not told of (bfcl-eval 2026.3.23): left out."""
MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class BFCLOptions(EnvironmentOptions):
    """Multi-turn conversations of BFCL v4."""

    key = "bfcl"

    categories: Annotated[tuple[Category, ...], Field(strict=False, min_length=1)] = ("base",)
    """'base'; 'miss_param' and 'miss_func', where the user has to be asked for a value or a function comes later;
    'long_context', where simulators answer at length."""
    first: Index = 0
    """Number of the first conversation of each category, of 200: with `count` a part to train on, and in
    `environment.eval_options` another to evaluate on."""
    count: Count | None = None
    """How many of each category; None: all that follow."""
    max_turns: Count = 60
    """Replies until the conversation is over, and not solved."""
    partial_credit: bool = False
    """Pay for each message of the user that was done right its share; false: 1 for all of them, else nothing."""
    describe: Literal["prompt", "none"] = "prompt"
    """How the policy hears of its tools, which differ by conversation: see `ToolEnvironment`."""
    action_format: str = "qwen"
    """Name of the parser that reads the calls."""
    instructions: str = (
        "Call functions until what the user asked for is done, then say so without a call. Where a function or a value "
        "is missing, say so."
    )
    """The system prompt, before the tools."""


@dataclass
class _Scene:
    """The simulators of one conversation, and what came back from them."""

    instances: dict[str, Any]
    results: list[str] = field(default_factory=list)
    calls: int = 0
    in_turn: int = 0
    """Calls since the last message of the user."""
    paths: int = 0
    """Of the file system at the beginning."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what a function answers, as the benchmark compares it. Raises what it raises."""
        method = next(getattr(one, name) for one in self.instances.values() if hasattr(one, name))
        value = method(**arguments)
        if isinstance(value, dict):
            try:
                return json.dumps(value)
            except (TypeError, ValueError):
                return str(value)
        return value if isinstance(value, str) else str(value)

    def full(self) -> bool:
        """Whether the file system has grown without bounds."""
        limit = self.paths + PATHS
        return _paths_of(self.instances.get("GorillaFileSystem"), limit) >= limit


class _SimulatorTool(Tool):
    """A function of a simulator."""

    runs_inline = True  # quick: what costs time is refused before

    def __init__(self, definition: ToolDefinition, scene: _Scene) -> None:
        self.definition = definition
        self.name, self.description = definition.name, definition.description
        self._scene = scene

    def execute(self, **arguments: Any) -> str:
        """Return the answer. Raises ToolError for what the simulator or its bounds refuse."""
        scene = self._scene
        scene.calls, scene.in_turn = scene.calls + 1, scene.in_turn + 1
        if scene.calls > CALLS:
            raise ToolError(f"more than {CALLS} calls in one conversation")
        for name, value in arguments.items():
            _require_small(name, value)
        if scene.full():
            raise ToolError("the file system is full")
        try:
            answer = scene.call(self.name, arguments)
        except Exception as error:  # simulators raise at arguments that they did not expect
            answer = f"Error during execution: {error}"
            scene.results.append(answer)
            raise ToolError(answer[:LONGEST]) from None
        scene.results.append(answer)
        return answer


class BFCLEnvironment(ToolEnvironment, ConfigurableEnvironment):
    """A user who asks for one thing after the other. A reply without a call says that one is done: then the simulators
    must stand as after the ground truth, and its answers must be among those that were seen. The first that is not
    ends the conversation."""

    fixed_start = True
    options_class = BFCLOptions
    options: BFCLOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Read the conversations. Options: see `BFCLOptions`. Raises ConfigError where there are none, and where the
        package is missing."""
        chosen = BFCLOptions.from_arguments(options, keys)
        super().__init__(
            config,
            describe=chosen.describe,
            action_format=chosen.action_format,
            instructions=chosen.instructions,
            max_turns=chosen.max_turns,
        )
        self.options = chosen
        self._ids = [id for category in chosen.categories for id in _part(category, chosen.first, chosen.count)]
        if not self._ids:
            raise ConfigError(f"bfcl: no conversation from number {chosen.first} on; there are 200 of each category")
        self.ask(random.Random(0), None)

    def tasks(self) -> list[Task]:
        """Return one task for each of the conversations."""
        return [Task(id, checks={"conversation": id}) for id in self._ids]

    def ask(self, rng: random.Random, task: Task | None) -> Observation:
        """Return the first message of the user. Raises ConfigError for a task that names no conversation."""
        self._id = rng.choice(self._ids) if task is None else str(task.checks.get("conversation", task.id))
        self._entry, self._truth = _entry_of(self._id)
        self._turn, self._right = 0, 0
        self._scene, self._expected = _scene_of(self._entry), _scene_of(self._entry)
        self._show_tools()
        return Observation(self._message())

    def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Check what was done since the last message of the user, and return the next one."""
        turns, share = len(self._entry["question"]), 1.0 / len(self._entry["question"])
        if not self._is_right():
            return "", 0.0, True, {"success": False, "right_messages": self._right}
        self._right, self._turn, self._scene.in_turn = self._right + 1, self._turn + 1, 0
        done = self._turn == turns
        reward = share if self.options.partial_credit else float(done)
        if done:
            return "", reward, True, {"success": True, "right_messages": self._right}
        self._show_tools()
        self._running = self.registry
        return self._message(), reward, False, {"success": False}

    def expert_action(self) -> Action:
        """Return the calls of the ground truth, and then that they are done."""
        calls = self._truth[self._turn]
        if self._scene.in_turn or not calls:
            return Action(text="Done." if calls else "I cannot do that yet.")
        read = [_read(call, self._scene) for call in calls]
        return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in read))

    def prompt_prefix_of(self, task: Task) -> str:
        other = copy.copy(self)
        other.ask(random.Random(0), task)
        return other.get_prompt_prefix()

    def _show_tools(self) -> None:
        """Give the policy the functions that it has by now."""
        hidden = set(self._entry.get("excluded_function", ()))
        for turn, names in self._entry.get("missed_function", {}).items():
            hidden |= set(names) if int(turn) > self._turn else set()
        known = [one for kind in self._entry["involved_classes"] for one in _definitions(kind)]
        self.registry = ToolRegistry(_SimulatorTool(one, self._scene) for one in known if one.name not in hidden)

    def _message(self) -> str:
        said = [str(message["content"]) for message in self._entry["question"][self._turn]]
        names = self._entry.get("missed_function", {}).get(str(self._turn), ())
        if names:
            said.append(MORE_TOOLS)
            said += [self.registry[name].definition.describe() for name in names]
        return "\n".join(said)

    def _is_right(self) -> bool:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

        calls = self._truth[self._turn]
        answers = [self._expected.call(*_read(call, self._expected)) for call in calls]
        if not calls:
            return True
        if not self._scene.in_turn or self._scene.full():
            return False
        try:
            stands = state_checker(self._scene.instances, self._expected.instances)["valid"]
            return bool(stands and response_checker(self._scene.results, answers, self._turn)["valid"])
        except RecursionError:  # a folder that holds itself
            return False


def _require_small(name: str, value: Any) -> None:
    """Raise ToolError for an argument that would cost time or memory."""
    if isinstance(value, str) and len(value) > LONGEST:
        raise ToolError(f"{name} has more than {LONGEST} characters")
    if isinstance(value, int | float) and not isinstance(value, bool):
        limit = SMALL.get(name, LARGEST)
        if not math.isfinite(value) or abs(value) > limit:
            raise ToolError(f"{name} is larger than {limit}")
    if isinstance(value, list | dict):
        for inner in [*value, *(value.values() if isinstance(value, dict) else ())]:
            _require_small(name, inner)


def _paths_of(file_system: Any, limit: int) -> int:
    """Return how many paths there are, at most `limit`: of a folder within itself there are endless ones."""
    count, open_ = 0, [] if file_system is None else [file_system.root]
    while open_ and count < limit:
        count += 1
        open_ += getattr(open_.pop(), "contents", {}).values()
    return count


def _part(category: str, first: int, count: int | None) -> list[str]:
    rows = list(_rows(category))[first:]
    return [id for id in (rows if count is None else rows[:count]) if id not in UNFIT]


@cache
def _rows(category: str) -> dict[str, tuple[dict[str, Any], list[list[str]]]]:
    """Return id -> (conversation, ground truth) of a category. Raises ConfigError where the package is missing."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    try:
        data = resources.files("bfcl_eval") / "data"
        importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    except ImportError as error:
        raise ConfigError(
            f"bfcl: cannot import it ({error}); pip install --no-deps bfcl-eval, and mpmath: what else it requires is "
            "for the models that it evaluates"
        ) from error
    truths = {row["id"]: row["ground_truth"] for row in _lines(data / "possible_answer" / name)}
    return {row["id"]: (row, truths[row["id"]]) for row in _lines(data / name)}


def _lines(file: Any) -> Iterator[dict[str, Any]]:
    return map(json.loads, filter(str.strip, file.read_text(encoding="utf-8").splitlines()))


def _entry_of(id: str) -> tuple[dict[str, Any], list[list[str]]]:
    category = id.removeprefix("multi_turn_").rpartition("_")[0]
    rows = _rows(category) if category in ("base", "miss_func", "miss_param", "long_context") else {}
    if id not in rows:
        raise ConfigError(f"bfcl: no conversation {id!r}; expected a task with checks such as 'multi_turn_base_0'")
    return rows[id]


@cache
def _definitions(kind: str) -> tuple[ToolDefinition, ...]:
    """Return what the policy is told of the functions of a simulator."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    file = resources.files("bfcl_eval") / "data" / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[kind]
    return tuple(
        ToolDefinition(row["name"], row["description"].partition("Tool description: ")[2], _schema(row["parameters"]))
        for row in _lines(file)
    )


def _schema(value: Any) -> Any:
    """Return JSON Schema of what BFCL writes with Python's types."""
    if isinstance(value, list):
        return [_schema(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    named = {"type": _TYPES.get(kind, kind)} if isinstance(kind, str) else {}
    return {name: _schema(inner) for name, inner in value.items()} | named


def _scene_of(entry: Mapping[str, Any]) -> _Scene:
    """Return fresh simulators of a conversation."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

    scene, long = _Scene({}), "long_context" in entry["id"]
    for kind in entry["involved_classes"]:
        instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[kind]), kind)()
        if kind not in STATELESS_CLASSES:
            instance._load_scenario(copy.deepcopy(entry["initial_config"].get(kind, {})), long_context=long)
        scene.instances[kind] = instance
    scene.paths = _paths_of(scene.instances.get("GorillaFileSystem"), 10**6)
    return scene


def _read(call: str, scene: _Scene) -> tuple[str, dict[str, Any]]:
    """Return (function, its arguments by name) of a call of the ground truth."""
    tree = ast.parse(call.strip(), mode="eval").body
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    name = tree.func.id
    method = next(getattr(one, name) for one in scene.instances.values() if hasattr(one, name))
    names = list(inspect.signature(method).parameters)
    given = dict(zip(names, map(ast.literal_eval, tree.args), strict=False))
    return name, given | {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}
