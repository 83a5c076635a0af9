"""Type hints and docstring of a function -> JSON Schema of its arguments, and the way back from JSON to the hints."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from uirl.errors import ContractError
from uirl.runtime.limits import shown

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|See Also|Attributes|Warnings?):\s*$", re.M
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class UnfitArguments(ValueError):
    """Arguments that fit the schema and not the hints, in words for the policy."""


class CallSignature:
    """What a function takes: `parameters` (JSON Schema), `description` (its docstring), and `convert`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raise ContractError for a parameter whose hint is missing or has no JSON form, and say which."""
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        target = function if inspect.isroutine(function) else type(function).__call__
        self.description, entries = read_docstring(target.__doc__ or "")
        taken = list(_named_parameters(target, self._name))
        try:
            hints = typing.get_type_hints(target, include_extras=True)
        except (NameError, TypeError) as error:
            raise ContractError(
                f"the type hints of {self._name} cannot be read: {error}; expected names that exist in its module"
            ) from error
        every = inspect.signature(target).parameters
        for name in entries:
            if name not in every:
                raise ContractError(
                    f"the docstring of {self._name} describes {name!r}, which is no parameter; "
                    f"it has {', '.join(p.name for p in taken) or 'none'}"
                )
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        properties = {one.name: self._schema_of(one, hints, entries.get(one.name)) for one in taken}
        self.parameters: dict[str, Any] = {"type": "object", "properties": properties}
        required = [parameter.name for parameter in taken if parameter.default is parameter.empty]
        if required:
            self.parameters["required"] = required
        if any(p.kind is p.VAR_KEYWORD for p in every.values()):
            self.parameters["additionalProperties"] = True

    def __deepcopy__(self, memo: dict[int, Any]) -> CallSignature:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return CallSignature, (self._function,)  # converters do not travel to other processes; they are made again

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the hints say: an Enum for its value, a dataclass for an object, 3 for 3.0.

        Raises `UnfitArguments` where the schema could not tell (a validator of a pydantic model, a date that is none).
        """
        converted = {}
        for name, value in arguments.items():
            adapter = self._adapters.get(name)
            try:
                converted[name] = value if adapter is None else adapter.validate_python(value)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False, include_input=False)[0]
                where = "".join(f".{part}" for part in first["loc"])
                raise UnfitArguments(f"argument '{name}{where}': {first['msg'][:200]}") from None
        return converted

    def _schema_of(self, parameter: inspect.Parameter, hints: Mapping[str, Any], words: str | None) -> dict[str, Any]:
        """Return the schema of one parameter, described by `words`; keep what converts its values."""
        where = f"parameter {parameter.name!r} of {self._name}"
        if parameter.name not in hints:
            raise ContractError(f"{where} has no type hint; expected one, e.g. `{parameter.name}: str`")
        hint = hints[parameter.name]
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            schema = adapter.json_schema()
        except PydanticUserError as error:
            shown_hint = hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else hint
            raise ContractError(
                f"{where} has the type hint {shown_hint}, which has no JSON form; expected str, int, float, bool, "
                "list[...], dict[str, ...], Literal, an Enum, a dataclass, a pydantic model, or a union of them"
            ) from error
        self._adapters[parameter.name] = adapter
        read: dict[str, Any] = _inlined(schema, schema.pop("$defs", {}), (), where)
        if words:
            read["description"] = words
        if parameter.default is not parameter.empty and parameter.default is not None:
            try:
                read["default"] = adapter.dump_python(parameter.default, mode="json", warnings="error")
            except ValueError as error:
                raise ContractError(
                    f"{where} has the default {shown(parameter.default)}, which its type hint does not allow"
                ) from error
        return read


@lru_cache(maxsize=1024)
def signature_of(function: Callable[..., Any]) -> CallSignature:
    """Return the `CallSignature` of a function, made once."""
    return CallSignature(function)


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description (all before the first section) and the entries of `Args:` of a Google docstring."""
    text = inspect.cleandoc(text)
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    body = next((sections[name] for name in ("Args", "Arguments", "Parameters") if name in sections), "")
    return parts[0].strip(), _read_entries(body)


def _read_entries(body: str) -> dict[str, str]:
    lines = [line for line in body.splitlines() if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    entries: dict[str, list[str]] = {}
    current = ""
    for line in lines:
        entry = _ENTRY.match(line[margin:]) if not line[margin].isspace() else None
        if entry:
            current = entry[1]
            entries[current] = [entry[2]]
        elif current:
            entries[current].append(line)
    return {name: " ".join(map(str.strip, words)).strip() for name, words in entries.items()}


def _named_parameters(target: Callable[..., Any], name: str) -> typing.Iterator[inspect.Parameter]:
    for position, parameter in enumerate(inspect.signature(target).parameters.values()):
        if position == 0 and parameter.name in ("self", "cls"):
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ContractError(
                f"{name} takes {parameter} by position; a tool is called by names: expected `{parameter.name}: ...` "
                "as an ordinary parameter"
            )
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter


def _inlined(schema: Any, definitions: Mapping[str, Any], open_names: tuple[str, ...], where: str) -> Any:
    """Return `schema` without references and titles: chat templates show it as it is, and follow no `$ref`."""
    if isinstance(schema, list):
        return [_inlined(item, definitions, open_names, where) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in open_names:
            raise ContractError(f"{where} has a type hint that holds itself ({name}); expected one of finite depth")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined({**definitions[name], **rest}, definitions, (*open_names, name), where)
    read = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            read[key] = {name: _inlined(item, definitions, open_names, where) for name, item in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            read[key] = value
        else:
            read[key] = _inlined(value, definitions, open_names, where)
    return read
