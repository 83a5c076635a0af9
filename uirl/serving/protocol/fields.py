"""What the models of requests share: strict fields, nulls as absent, and refusals that name the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, LiteralString, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from uirl.errors import UirlError
from uirl.http.guard import Refusal
from uirl.runtime import limits
from uirl.runtime.limits import InputError, LimitError, check_whole, clip, sample
from uirl.runtime.wire import UNKNOWN, WireError, WireModel

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIProblem(UirlError):
    """A request that gets no answer. `retry` tells the client's own retry policy what to do; None: it decides."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry = status, code, param, retry

    @classmethod
    def of(cls, refusal: Refusal, codes: Mapping[str, str]) -> Self:
        """Return what a refusal of the guard is to such clients; `codes`: of its kinds."""
        return cls(refusal.status, str(refusal), code=codes.get(refusal.kind, "refused"))

    @property
    def body(self) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry is None else {"x-should-retry": str(self.retry).lower()}
        return headers | ({"retry-after": "1"} if self.status == 429 else {})


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> APIProblem:
    """Build a 400 that names the field."""
    return APIProblem(400, f"{param}: {message}" if param else message, code=code, param=param)


MAX_NOTED = 20
"""Names of fields that are noted where they are passed over."""
_TYPES = ("string_type", "bool_type", "int_type", "float_type", "list_type", "dict_type")
_CODES = dict.fromkeys(_TYPES, "invalid_type") | {
    "missing": "missing_required_parameter",
    "model_type": "invalid_value",
    UNKNOWN: "unknown_parameter",
}
"""Kind of a problem -> OpenAI's code; validators give the code itself (`refused`)."""
M = TypeVar("M", bound=WireModel)


class NotedModel(WireModel):
    """An object that a client sends back, with notes of its library on it: these are passed over and named."""

    noted: tuple[str, ...] = ()
    """The names of fields that are not known, at most 20, shortened."""

    @model_validator(mode="before")
    @classmethod
    def _note_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields.keys() - {"noted"}
        unknown = islice((name for name, item in value.items() if name not in fields and item is not None), MAX_NOTED)
        noted = tuple(clip(name).encode(errors="replace").decode() for name in unknown)
        return {name: item for name, item in value.items() if name in fields} | {"noted": noted}


def parse(model: type[M], value: Any, where: str = "") -> M:
    """Read the object that `value` holds; `where` is its path in the request. Raises a 400 that names the first field
    that is wrong."""
    try:
        return model.read(value, where)
    except WireError as error:
        raise bad_request(error.problem, error.path or None, _CODES.get(error.kind, error.kind)) from None


def parse_one(models: dict[str, type[M]], tag: str, value: Any, where: str, default: str | None = None) -> M:
    """Read the object that `value` holds, as the one of `models` that its field `tag` names."""
    if not isinstance(value, dict):
        raise bad_request(f"expected an object, got {shown(value)}", where)
    name = value.get(tag) if value.get(tag) is not None else default
    at = f"{where}.{tag}"
    if name is None:
        raise bad_request("is missing", at, "missing_required_parameter")
    if not isinstance(name, str) or name not in models:
        choices = " or ".join(map(repr, models)) if len(models) < 3 else f"one of {', '.join(models)}"
        raise bad_request(f"expected {choices}, got {shown(name)}", at, "unsupported_value")
    return parse(models[name], value, where)


def refused(message: str, code: LiteralString = "invalid_value") -> PydanticCustomError:
    """Build what a validator raises: the message for the client, which names the field itself, and OpenAI's code."""
    return PydanticCustomError(code, "{told}", {"told": message})


def only(*allowed: Any, why: str) -> AfterValidator:
    """Build a validator of a field that says one of `allowed`, which change nothing, or is refused with the reason
    `why`."""

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
    """Write a value for an error message, shortened, as the client wrote it."""
    text = repr(sample(value, 61)) if isinstance(value, str) else json.dumps(sample(value, 61))
    return clip(text)


def read_json(text: bytes | bytearray | str, param: str | None = None) -> Any:
    """Read the JSON of a request body, or of the text of the field `param`, within the limits of `uirl.runtime.limits`.
    Raises a 400 for anything else, NaN and Infinity included."""
    where = param or "the body"
    try:
        return limits.read_json(text, where=where)
    except InputError as error:
        code = "limit_exceeded" if isinstance(error, LimitError) else "invalid_json"
        raise bad_request(str(error).removeprefix(f"{param} "), param, code) from None
