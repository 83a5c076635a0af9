"""What the models of requests share: strict fields, nulls as absent, and refusals that name the field."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from uirl.errors import did_you_mean
from uirl.runtime import limits
from uirl.runtime.limits import InputError, LimitError, check_whole, clip, sample
from uirl.serving.problems import bad_request

MAX_NOTED = 20
"""Names of fields that are noted where they are passed over."""
_EXPECTED = {
    "string_type": "a string", "bool_type": "true or false", "int_type": "a whole number", "float_type": "a number",
    "list_type": "a list", "dict_type": "an object", "model_type": "an object", "literal_error": "another value",
}  # fmt: skip
_FIELD = "field"
M = TypeVar("M", bound="WireModel")


class WireModel(BaseModel):
    """One JSON object of a request. A null counts as absent; unknown fields and values of another type are refused."""

    model_config = ConfigDict(strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _read_object(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        present = {name: item for name, item in value.items() if item is not None}
        return cls._without_unknown(present, [name for name in present if name not in cls.model_fields])

    @classmethod
    def _without_unknown(cls, present: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
        if unknown:
            message = f"is not known here; {did_you_mean(unknown[0], cls.model_fields)}"
            raise _error("unknown_parameter", message, clip(unknown[0]))
        return present


class NotedModel(WireModel):
    """An object that a client sends back, with notes of its library on it: these are passed over and named."""

    NOTED: ClassVar[str] = "noted"
    noted: tuple[str, ...] = ()
    """The names of fields that are not known, at most 20, shortened."""

    @classmethod
    def _without_unknown(cls, present: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
        unknown += [cls.NOTED] if cls.NOTED in present else []
        noted = tuple(clip(name).encode(errors="replace").decode() for name in unknown[:MAX_NOTED])
        return {name: item for name, item in present.items() if name not in unknown} | {cls.NOTED: noted}


def parse(model: type[M], value: Any, where: str = "") -> M:
    """The object that `value` holds; `where` is its path in the request. Raises a 400 that names the first field that
    is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    # what is there and wrong says more than what is missing beside it
    first = next((one for one in errors if one["type"] != "missing"), errors[0])
    kind, context = first["type"], first.get("ctx", {})
    param = where
    for step in (*first["loc"], *([context[_FIELD]] if _FIELD in context else [])):
        param += f"[{step}]" if isinstance(step, int) else f".{step}" if param else step
    if kind == "missing":
        raise bad_request("is missing", param, "missing_required_parameter")
    if kind in _EXPECTED:
        code = "invalid_value" if kind == "model_type" else "invalid_type"
        raise bad_request(f"expected {_EXPECTED[kind]}, got {shown(first['input'])}", param or None, code)
    raise bad_request(first["msg"], param or None, kind if "message" in context else "invalid_value")


def parse_one(models: dict[str, type[M]], tag: str, value: Any, where: str, default: str | None = None) -> M:
    """The object that `value` holds, as the one of `models` that its field `tag` names."""
    if not isinstance(value, dict):
        raise bad_request(f"expected an object, got {shown(value)}", where)
    name = value.get(tag) if value.get(tag) is not None else default
    at = f"{where}.{tag}"
    if name is None:
        raise bad_request("is missing", at, "missing_required_parameter")
    if not isinstance(name, str) or name not in models:
        known = " or ".join(map(repr, models)) if len(models) < 3 else f"one of {', '.join(models)}"
        raise bad_request(f"expected {known}, got {shown(name)}", at, "unsupported_value")
    return parse(models[name], value, where)


def refused(message: str, code: str = "invalid_value") -> PydanticCustomError:
    """What a validator raises: the message for the client, which names the field itself, and OpenAI's code."""
    return _error(code, message)


def only(*allowed: Any, why: str) -> AfterValidator:
    """A validator of a field that says one of `allowed`, which change nothing, or is refused with the reason `why`."""

    def check(value: Any) -> Any:
        if value is not None and value not in allowed:
            raise refused(f"{shown(value)} is not supported: {why}", "unsupported_value")
        return value

    return AfterValidator(check)


def _whole(text: str) -> str:
    try:
        check_whole(text, "")
    except InputError as error:
        raise refused(str(error).strip()) from None
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise refused("is empty")
    return text


Text = Annotated[str, AfterValidator(_whole)]
"""Without half characters (lone surrogates), which no tokenizer takes."""
Name = Annotated[Text, AfterValidator(_not_empty)]
Ignored: TypeAlias = Any
"""Has no meaning for a model of one's own: who asks, what a provider should keep."""


def whole_text(text: str, where: str) -> str:
    """`text` itself; raises a 400 that names `where` for half characters."""
    try:
        check_whole(text, where)
    except InputError as error:
        raise bad_request(str(error).removeprefix(f"{where} "), where) from None
    return text


def shown(value: Any) -> str:
    """A value for an error message, shortened, as the client wrote it."""
    text = repr(sample(value, 61)) if isinstance(value, str) else json.dumps(sample(value, 61))
    return clip(text)


def read_json(text: bytes | bytearray | str, param: str | None = None) -> Any:
    """The JSON of a request body, or of the text of the field `param`, within the limits of `uirl.runtime.limits`.
    Raises a 400 for anything else, NaN and Infinity included."""
    where = param or "the body"
    try:
        return limits.read_json(text, where=where)
    except InputError as error:
        code = "limit_exceeded" if isinstance(error, LimitError) else "invalid_json"
        raise bad_request(str(error).removeprefix(f"{param} "), param, code) from None


def _error(code: str, message: str, field: str | None = None) -> PydanticCustomError:
    context = {"message": message} | ({} if field is None else {_FIELD: field})
    return PydanticCustomError(code, "{message}", context)
