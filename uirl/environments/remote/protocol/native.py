"""The nouns as JSON: the one place that knows how tasks, actions and observations travel.

What is read is checked: a wrong field is a `WireError` that names it. Text goes as ASCII escapes, because half a
surrogate pair, which a policy can well say, has no UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uirl.environments.remote.protocol.pictures import media_type
from uirl.errors import EnvironmentFailure, did_you_mean
from uirl.images import Screenshot
from uirl.runtime.limits import MAX_CALLS, InputError, as_plain, read_json, shown
from uirl.types import Action, Observation, StepResult, Task, ToolCall, ToolResult


class WireError(ValueError):
    """JSON that does not say what it should; the message names the field."""


def dumps(value: Any) -> bytes:
    """Compact JSON in ASCII. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def loads(data: bytes | str) -> Any:
    """The value of a JSON text, within the limits of `uirl.runtime.limits`. Raises WireError for what is none, NaN and
    infinities included, so that whatever was read can be written again."""
    try:
        return read_json(data, where="the text")
    except InputError as error:
        raise WireError(str(error)) from None


def plain(value: Any, where: str) -> Any:
    """`value` as JSON has it: tuples become lists, numbers of NumPy become Python's.

    Raises EnvironmentFailure for what has no such form, with the path to it.
    """
    try:
        return as_plain(value, where)
    except InputError as error:
        raise EnvironmentFailure(str(error)) from None


# -- reading --------------------------------------------------------------------------------------------------------


class Fields:
    """The fields of one JSON object, taken one by one; `done` refuses those that nobody took."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise WireError(f"{where} is {shown(value)}; expected an object")
        self._left, self._where = dict(value), where
        self._known: list[str] = []

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """The value of `name`; absent or null: `default`, where there is one."""
        self._known.append(name)
        value = self._left.pop(name, None)
        if value is None:
            if default is ...:
                raise WireError(f"{self._where}.{name} is missing")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # a bool is an int to Python, and nobody means it as one
        if not isinstance(value, kinds) or (isinstance(value, bool) and not {bool, object} & set(kinds)):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise WireError(f"{self._where}.{name} is {shown(value)}; expected {wanted}")
        return value

    def items(self, name: str, read: Callable[[Any, str], Any], most: int | None = None) -> tuple[Any, ...]:
        """What `read` makes of every item of a list, of `most` at most; an absent list is empty."""
        given = self.take(name, list, [])
        if most is not None and len(given) > most:
            raise WireError(f"{self._where}.{name} has {len(given)} items; expected at most {most}")
        return tuple(read(item, f"{self._where}.{name}[{i}]") for i, item in enumerate(given))

    def done(self, *also: str) -> None:
        """Raises WireError for the first field that nobody took; `also`: names it may offer instead."""
        for name in self._left:
            known = [*self._known, *also]
            raise WireError(f"{self._where} has an unknown field {shown(name, 40)}; {did_you_mean(name, known)}")


def read_action(value: Any, where: str = "action", *, also: tuple[str, ...] = ()) -> Action:
    """The action of its JSON form. `also`: fields that the caller took out of it, for the error that names them."""
    fields = Fields(value, where)
    action = Action(
        text=fields.take("text", str, ""),
        tool_calls=fields.items("tool_calls", _read_call, most=MAX_CALLS),
        thought=fields.take("thought", str, ""),
        parse_error=fields.take("parse_error", str, None),
    )
    fields.done(*also)
    return action


def read_task(value: Any, where: str = "task") -> Task:
    """The task of its JSON form."""
    fields = Fields(value, where)
    try:
        task = Task(
            id=fields.take("id", str),
            environment=fields.take("environment", str, ""),
            goal=fields.take("goal", str, ""),
            checks=fields.take("checks", dict, {}),
            tags=fields.items("tags", _read_text),
            seed=fields.take("seed", int, None),
        )
    except WireError:
        raise
    except ValueError as error:
        raise WireError(f"{where}: {error}") from None
    fields.done()
    return task


def read_observation(value: Any, where: str = "observation") -> Observation:
    """The observation of its JSON form, its pictures as they were captured, byte for byte."""
    fields = Fields(value, where)
    observation = Observation(
        text=fields.take("text", str, ""),
        images=fields.items("images", _read_image),
        info=fields.take("info", dict, {}),
        tool_results=fields.items("tool_results", read_result),
        state_key=fields.take("state_key", str, None),
    )
    fields.done()
    return observation


def _read_call(value: Any, where: str) -> ToolCall:
    fields = Fields(value, where)
    call = ToolCall(fields.take("name", str), fields.take("arguments", dict, {}), fields.take("id", str, ""))
    fields.done()
    return call


def read_result(value: Any, where: str) -> ToolResult:
    """The result of a tool of its JSON form."""
    fields = Fields(value, where)
    result = ToolResult(
        name=fields.take("name", str),
        arguments=fields.take("arguments", dict, {}),
        success=fields.take("success", bool, True),
        result=fields.take("result", object, None),
        id=fields.take("id", str, ""),
        seconds=float(fields.take("seconds", (int, float), 0.0)),
    )
    fields.done()
    return result


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{where} is {shown(value)}; expected text")
    return value


def _read_image(value: Any, where: str) -> Screenshot:
    fields = Fields(value, where)
    said = fields.take("hash", str, "")
    fields.take("media_type", str, "")
    shot = Screenshot(from_base64(fields.take("base64", str), f"{where}.base64"))
    fields.done()
    if said and said != shot.hash:
        raise WireError(f"{where} has the hash {shot.hash}; expected {said:.40}: it was damaged on the way")
    return shot


def from_base64(text: str, where: str) -> bytes:
    """The bytes of base64 text, with or without a `data:` prefix. Raises WireError for what is none."""
    body = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError(f"{where} is no base64: {error}") from None


# -- writing --------------------------------------------------------------------------------------------------------


def write_action(action: Action) -> dict[str, Any]:
    """The JSON form of an action."""
    return {
        "text": action.text,
        "tool_calls": [
            {"name": call.name, "arguments": plain(call.arguments, f"{call.name}.arguments"), "id": call.id}
            for call in action.tool_calls
        ],
        "thought": action.thought,
        "parse_error": action.parse_error,
    }


def write_task(task: Task, *, checks: bool = True) -> dict[str, Any]:
    """The JSON form of a task; without its checks for those who must not see them."""
    written = {"id": task.id, "environment": task.environment, "goal": task.goal}
    written |= {"tags": list(task.tags), "seed": task.seed}  # type: ignore[dict-item]
    return written | ({"checks": plain(task.checks, "task.checks")} if checks else {})


def write_observation(observation: Observation, *, info: bool, inline: bool = True) -> dict[str, Any]:
    """The JSON form of an observation. `info`: with what the agent must not see. `inline`: pictures as base64, else by
    their hash alone."""
    written: dict[str, Any] = {
        "text": observation.text,
        "images": [write_image(image, inline=inline) for image in observation.images],
        "tool_results": [write_result(result) for result in observation.tool_results],
    }
    if info and observation.state_key is not None:
        written["state_key"] = observation.state_key
    return written | ({"info": plain(observation.info, "info")} if info else {})


def write_step(result: StepResult, *, graded: bool, inline: bool = True) -> dict[str, Any]:
    """The JSON form of a step; `graded`: with reward and info."""
    return {
        "observation": write_observation(result.observation, info=graded, inline=inline),
        "reward": result.reward if graded else None,
        "terminated": result.terminated,
        "truncated": result.truncated,
    }


def write_image(image: Screenshot, *, inline: bool) -> dict[str, Any]:
    """The JSON form of a picture: its hash, and its bytes as base64 where `inline`."""
    written = {"hash": image.hash, "media_type": media_type(image.data)}
    return written | ({"base64": base64.b64encode(image.data).decode("ascii")} if inline else {})


def write_tasks(tasks: Sequence[Task] | None, *, checks: bool) -> list[dict[str, Any]] | None:
    """The JSON form of an environment's tasks; None stays None."""
    return None if tasks is None else [write_task(task, checks=checks) for task in tasks]


def write_result(result: ToolResult) -> dict[str, Any]:
    """The JSON form of a tool's result."""
    return {
        "name": result.name,
        "arguments": plain(result.arguments, f"{result.name}.arguments"),
        "success": result.success,
        "result": plain(result.result, f"{result.name}.result"),
        "id": result.id,
        "seconds": result.seconds,
    }
