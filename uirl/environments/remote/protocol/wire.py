"""Values of the protocols that JSON has no words for: bytes as base64, and numbers and tuples of the environments."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from uirl.errors import EnvironmentFailure
from uirl.runtime.limits import InputError, as_plain
from uirl.runtime.wire import WireError


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


Base64 = Annotated[bytes, PlainValidator(_data), PlainSerializer(lambda data: base64.b64encode(data).decode("ascii"))]
"""Bytes as base64 text."""


def plain(value: Any, where: str) -> Any:
    """Return `value` as JSON has it: tuples become lists, numbers of NumPy become Python's.

    Raises EnvironmentFailure for what has no such form, with the path to it.
    """
    try:
        return as_plain(value, where)
    except InputError as error:
        raise EnvironmentFailure(str(error)) from None
