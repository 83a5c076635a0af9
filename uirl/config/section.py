"""The base class of the sections: strict fields with documentation strings, and errors that name the key."""

from __future__ import annotations

import os
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from uirl.config.keys import KeyedModel, Reach
from uirl.config.problems import config_error, unknown_key
from uirl.errors import ConfigError

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
PathText = Annotated[
    str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value), Reach("a file")
]
Words = Annotated[str, Reach("")]
Address = Annotated[str, Reach("an address")]
Variable = Annotated[str, Reach("a variable")]
Options = Annotated[dict[str, JsonValue], Reach("an option")]
"""Who knows what an option does: it may name an address, a variable, a file, a program."""
Pair = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], Field(strict=False)]


class Section(KeyedModel):
    """A group of config keys. Unknown keys and values of another type raise `ConfigError`; nothing is coerced, except
    whole numbers to floats, lists to tuples and paths to text."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self), error, values) from None

    # Pydantic then builds nested sections itself, and one error lists the problems of the whole tree.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).model_fields and name not in type(self).__private_attributes__:
            raise ConfigError(type(self).unknown_key(name))
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise config_error(type(self), error, {name: value}) from None

    def __eq__(self, other: object) -> bool:
        """Whether all keys have the same values: what a process noted beside them is no part of a config."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    @classmethod
    def unknown_key(cls, name: str) -> str:
        """Write the message for a key that this section does not have."""
        return unknown_key(cls, name)

    @classmethod
    def build(cls, values: Any) -> Self:
        """Build the section that a plain mapping describes; keys left out have their defaults.

        Raises `ConfigError` that lists every unknown key and wrong value.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise config_error(cls, error, values) from None

    def to_dict(self) -> dict[str, Any]:
        """Return every key with its value, as plain data; `build` of it gives an equal section."""
        return self.model_dump(mode="json")
