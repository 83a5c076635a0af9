"""What is ours in the answers of servers: bytes as base64, values of environments as plain JSON, whole pictures."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from uirl.errors import EnvironmentFailure
from uirl.images import Screenshot
from uirl.runtime.limits import InputError, as_plain
from uirl.runtime.wire import WireError
from uirl.types import Observation

SMALL, SMALL_PIXELS = 16 * 1024, 512 * 512
"""Bytes and pixels of a picture that is decoded sooner than a thread is woken: few bytes may say very many pixels."""


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


async def whole(data: bytes, where: str) -> Screenshot:
    """Return the screenshot of bytes that decode to the last pixel.

    Raises EnvironmentFailure for others: a picture that is cut off would otherwise be found out by the model, far from
    the server that sent it. Large ones are decoded on a thread, beside the event loop.
    """
    image = Screenshot(data)
    try:
        if len(data) < SMALL and math.prod(image.read_size()) < SMALL_PIXELS:
            image.open()
        else:
            await asyncio.to_thread(image.open)
    except ValueError as error:
        raise EnvironmentFailure(f"{where} sent a picture that cannot be used: {error}") from None
    return image


async def all_whole(observation: Observation, where: str) -> Observation:
    """Return the observation. Raises EnvironmentFailure where one of its pictures is not whole."""
    for image in observation.images:
        await whole(image.data, where)
    return observation
