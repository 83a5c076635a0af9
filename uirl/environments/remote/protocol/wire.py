"""JSON between clients and servers of environments: bounded, strict, and read into pydantic models.

`loads` bounds size, items and depth before anything is looked at; a `WireModel` checks what is left, field by field.
Text is sent as ASCII escapes, because half a surrogate pair, which a policy may well write, has no UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
    SkipValidation,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from uirl.errors import EnvironmentFailure, did_you_mean
from uirl.runtime.limits import InputError, as_plain, read_json, shown


class WireError(ValueError):
    """JSON that does not say what it should; the message names the field."""


def from_base64(text: str, where: str) -> bytes:
    """Return the bytes of base64 text, with or without a `data:` prefix. Raises WireError for what is none."""
    body = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError(f"{where} is no base64: {error}".strip()) from None


def _data(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("is_instance_of", "expected str", {"class": "str"})
    return from_base64(value, "")


Text = InstanceOf[str]
"""A text as it came: pydantic's own `str` refuses half a surrogate pair."""
Object = InstanceOf[dict[str, Any]]
"""A JSON object whose fields are somebody else's business."""
Plain = Annotated[Any, SkipValidation]
"""Any JSON value."""
Base64 = Annotated[bytes, PlainValidator(_data), PlainSerializer(lambda data: base64.b64encode(data).decode("ascii"))]
"""Bytes as base64 text."""
Count = Annotated[int, Field(ge=0)]
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is read to its first wrong item."""

_EXPECTED = {
    "bool_type": "bool",
    "dict_type": "dict",
    "finite_number": "a finite number",
    "float_type": "int or float",
    "int_type": "int",
    "list_type": "list",
    "model_type": "an object",
}
"""Type of a problem, as pydantic names it -> what was expected."""


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
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        """Refuse the first one: pydantic itself would make an error of each, and there may be very many."""
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            name = next((name for name in value if name not in cls.model_fields), None)
            if name is not None:
                remedy = did_you_mean(str(name), cls.model_fields)
                raise PydanticCustomError(
                    "unknown_field", "{told}", {"told": f"has an unknown field {shown(name, 40)}; {remedy}"}
                )
        return value

    @field_validator("*", mode="wrap")
    @classmethod
    def _read_null_as_absent(cls, value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if value is not None:
            return read(value)
        field = cls.model_fields[str(info.field_name)]
        if field.is_required():
            raise PydanticCustomError("missing", "is missing")
        return field.get_default(call_default_factory=True, validated_data={})

    @classmethod
    def read(cls, value: Any, where: str) -> Self:
        """Read a JSON value. Raises WireError that names the first wrong field; `where` begins its path."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise WireError(_described(error, where)) from None

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


def plain(value: Any, where: str) -> Any:
    """Return `value` as JSON has it: tuples become lists, numbers of NumPy become Python's.

    Raises EnvironmentFailure for what has no such form, with the path to it.
    """
    try:
        return as_plain(value, where)
    except InputError as error:
        raise EnvironmentFailure(str(error)) from None


def _described(error: ValidationError, where: str) -> str:
    """Say the first problem in words: which field, what it got, what is expected."""
    problem = error.errors(include_url=False)[0]
    at = where + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem["loc"])
    context = problem.get("ctx", {})
    match problem["type"]:
        case "missing":
            return f"{at} is missing"
        case "unknown_field":
            return f"{at} {problem['msg']}"
        case "too_long":
            return f"{at} has {context['actual_length']} items; expected at most {context['max_length']}"
        case "value_error":
            return f"{at} {context['error']}"
        case "is_instance_of":
            expected = context["class"]
        case kind:
            expected = _EXPECTED.get(kind) or problem["msg"].removeprefix("Input should be ")
    return f"{at} is {shown(problem['input'])}; expected {expected}"
