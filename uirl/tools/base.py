"""`Tool`: what the policy can call. Write `execute` with type hints; the rest is optional."""

from __future__ import annotations

import copy
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

from uirl.errors import ContractError
from uirl.tools.definition import ToolDefinition
from uirl.tools.signature import CallSignature, UnfitArguments, signature_of


class ToolError(Exception):
    """The policy's to see: its text becomes the result of the call, and the episode goes on."""


class _FromExecute:
    """The definition of a tool that gives none: name and description of the class, arguments of `execute`."""

    def __get__(self, tool: Tool | None, owner: type[Tool]) -> ToolDefinition:
        named = owner if tool is None else tool
        return _derived(owner, named.name, named.description)


@lru_cache(maxsize=1024)
def _derived(owner: type[Tool], name: str, description: str) -> ToolDefinition:
    signature = signature_of(owner.execute)
    words = description or signature.description or inspect.cleandoc(owner.__doc__ or "").split("\n\n")[0]
    return ToolDefinition(name or _snake(owner.__name__), words, signature.parameters)


_FROM_EXECUTE = _FromExecute()


class Tool(ABC):
    """Something the policy can call by name.

    A subclass says what it is in one of two ways: `definition`, and `execute` gets the arguments as JSON holds them; or
    `name` and `description` (empty: the class name as `my_tool`, the docstring of `execute`) and type hints on
    `execute`, which then gets what the hints say (an Enum, a dataclass).

    `execute` returns plain data (what JSON holds). A mistake of the policy is a `ToolError`. Every other exception is
    shown to the policy too, since an argument can bring it about, and the person is warned; where something else is at
    fault raise EnvironmentFailure, or name the exception in `failures`: the episode is then not evidence.
    """

    name: str = ""
    description: str = ""
    definition: ToolDefinition = cast(ToolDefinition, _FROM_EXECUTE)
    timeout: float | None = 30.0
    """Seconds per call, after which it is given up: the policy is told, where the tool `is_well`; None: no limit. Calls
    with `runs_inline` cannot be cut off."""
    failures: tuple[type[BaseException], ...] = (OSError, ImportError)
    """What `execute` raises where not the call is at fault but a server, a disk, the set-up. Of OSErrors those about a
    path or a time limit do not count: arguments bring them about."""
    runs_inline: bool = False
    """True: `execute` is quick and never blocks, and is called on the caller's thread. False: a synchronous `execute`
    runs on a thread of its own for every call."""
    max_result_chars: int | None = 8000
    """Longer results are cut to so many characters and say so; None: never cut."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        definition = cls.__dict__.get("definition")
        if isinstance(definition, ToolDefinition):
            cls.name, cls.description = definition.name, definition.description

    @property
    def never_waits(self) -> bool:
        """Whether a call can be made without an event loop."""
        return self.runs_inline and not inspect.iscoroutinefunction(self.execute)

    @abstractmethod
    def execute(self, *args: Any, **arguments: Any) -> Any:
        """Return the result of the call. May be `async def`."""

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode."""

    async def is_well(self) -> bool:
        """Return, after a call took longer than `timeout`, whether what the tool depends on answers at all. True: the
        call itself was too much, which the policy is told; False: the episode is not evidence."""
        return True

    def spawn(self) -> Tool:
        """Return another, independent instance for a parallel episode. Default: a deep copy."""
        return copy.deepcopy(self)

    def close(self) -> Any:
        """Free what the instance holds; may be `async def`. Calling it twice is fine."""

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return `arguments` as `execute` takes them. Raises `ToolError` for a value that no hint allows."""
        if inspect.getattr_static(self, "definition") is not _FROM_EXECUTE:
            return dict(arguments)
        return _convert(signature_of(type(self).execute), arguments)

    def check_signature(self) -> None:
        """Raise ContractError where `execute` cannot be called with what the definition announces."""
        if inspect.getattr_static(self, "definition") is _FROM_EXECUTE:
            return
        where, definition = f"{type(self).__name__}.execute", self.definition
        taken = inspect.signature(self.execute).parameters.values()
        named = {p.name: p for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        unknown = sorted(set(definition.parameters.get("properties", {})) - set(named))
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in taken):
            raise ContractError(
                f"the definition of {definition.name!r} announces {unknown[0]!r}, which {where} cannot take"
            )
        promised = set(definition.parameters.get("required", ()))
        for parameter in named.values():
            if parameter.default is parameter.empty and parameter.name not in promised:
                raise ContractError(
                    f"{where} needs {parameter.name!r}, which the definition of {definition.name!r} does not require; "
                    "list it in 'required' or give it a default"
                )


class FunctionTool(Tool):
    """A plain function, a method or a callable object as a tool; its type hints and docstring define it.

    `spawn` shares a function; the object of a bound method is copied.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        *,
        runs_inline: bool = False,
        timeout: float | None = 30.0,
        max_result_chars: int | None = 8000,
    ) -> None:
        self.function = function
        self._signature = CallSignature(function)
        self.definition = ToolDefinition.from_function(function, name, description)
        self.name, self.description = self.definition.name, self.definition.description
        # A coroutine function is awaited wherever it is called; it never runs without a loop.
        self.runs_inline = runs_inline and not inspect.iscoroutinefunction(function)
        self.timeout, self.max_result_chars = timeout, max_result_chars

    def execute(self, **arguments: Any) -> Any:
        """Return what the function returns; an awaitable where it is `async def`."""
        return self.function(**arguments)

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return `arguments` as the hints of the function say."""
        return _convert(self._signature, arguments)


def _convert(signature: CallSignature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return signature.convert(arguments)
    except UnfitArguments as error:
        raise ToolError(str(error)) from None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
