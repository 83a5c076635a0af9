"""JSON objects of protocols as pydantic models: bounded, strict, with errors that name the first wrong field.

`loads` bounds size, items and depth before anything is looked at; a `WireModel` checks what is left, field by field.
Text is sent as ASCII escapes, because half a surrogate pair, which a policy may well write, has no UTF-8.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, SkipValidation, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from uirl.errors import did_you_mean
from uirl.runtime.limits import InputError, clip, read_json, shown, whole_characters

Text = InstanceOf[str]
"""A text as it came, with or without half a surrogate pair."""
Object = InstanceOf[dict[str, Any]]
"""A JSON object whose fields are somebody else's business."""
Plain = Annotated[Any, SkipValidation]
"""Any JSON value."""
Count = Annotated[int, Field(ge=0)]
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is read to its first wrong item."""

UNKNOWN = "unknown_field"
"""The kind of problem of a field that the model does not have."""
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
    "str": "a string",
    "dict": "an object",
}
"""Kind of a problem with a type, as pydantic names it, or name of the type -> what was expected."""


class WireError(ValueError):
    """JSON that does not say what it should; the message names the field.

    Args:
        problem: what is wrong with the field, e.g. 'is missing'.
        path: the field, e.g. 'body.tasks[0].id'; empty: `problem` says it.
        kind: what pydantic or a validator calls the problem.
    """

    def __init__(self, problem: str, path: str = "", kind: str = "") -> None:
        super().__init__(f"{path} {problem}".strip())
        self.problem, self.path, self.kind = problem, path, kind


class WireModel(BaseModel):
    """One JSON object of a protocol. Unknown fields and values of another type are refused; a null is an absent field.

    Fields that were never set are not written: an older reader knows no such field, and an agent must not see it.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        revalidate_instances="never",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_object(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        present = {name: item for name, item in value.items() if item is not None}
        if cls.model_config.get("extra") == "forbid":
            # pydantic itself would make an error of each, and there may be very many
            unknown = next((whole_characters(name) for name in present if name not in cls.model_fields), None)
            if unknown is not None:
                told = f"is not known here; {did_you_mean(unknown, cls.model_fields)}"
                raise PydanticCustomError(UNKNOWN, "{told}", {"told": told, "field": clip(unknown)})
        return present

    @classmethod
    def read(cls, value: Any, where: str = "") -> Self:
        """Read a JSON value. Raises WireError that names the first wrong field; `where` begins its path."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise _first_problem(error, where) from None

    def write(self) -> dict[str, Any]:
        """Return the JSON form, with the fields that were set."""
        return self.model_dump(exclude_unset=True)


class WireAnswer(WireModel):
    """An answer, which may hold more than is read: a newer server says more."""

    model_config = ConfigDict(extra="ignore")


def dumps(value: Any) -> bytes:
    """Return compact JSON in ASCII. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def loads(data: bytes | str) -> Any:
    """Return the value of a JSON text, within the limits of `uirl.runtime.limits`. Raises WireError for what is none,
    NaN and infinities included, so that whatever was read can be written again."""
    try:
        return read_json(data, where="the text")
    except InputError as error:
        raise WireError(str(error)) from None


def _first_problem(error: ValidationError, where: str) -> WireError:
    problems = error.errors(include_url=False)
    # what is there and wrong says more than what is missing beside it
    first = next((one for one in problems if one["type"] != "missing"), problems[0])
    path = where
    for step in (*first["loc"], *([first["ctx"]["field"]] if first["type"] == UNKNOWN else [])):
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return WireError(_described(first), path, first["type"])


def _described(problem: ErrorDetails) -> str:
    """Say what a field got and what is expected."""
    context = problem.get("ctx", {})
    match problem["type"]:
        case "missing":
            return "is missing"
        case "too_long":
            return f"has {context['actual_length']} items; expected at most {context['max_length']}"
        case "too_short":
            return f"has {context['actual_length']} items; expected at least {context['min_length']}"
        case "value_error":
            return str(context["error"])
        case "is_instance_of":
            expected = _EXPECTED.get(context["class"], context["class"])
        case _ if "told" in context:
            return problem["msg"]
        case kind:
            expected = _EXPECTED.get(kind) or problem["msg"].removeprefix("Input should be ")
    return f"is {shown(problem['input'])}; expected {expected}"
