"""Pictures from outside: three formats, their size before their pixels, and one kind of error for all that is wrong."""

from __future__ import annotations

import base64
import io
import random
import struct
import subprocess
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from tests.inference.pictures import picture
from tests.rollout.worlds import Countdown, collector, play_with, scripted, specs
from uirl.errors import EnvironmentFailure
from uirl.http.wire import whole
from uirl.images import Screenshot
from uirl.inference import ChatRenderer, LoadedModel, Message
from uirl.results import read_observation
from uirl.runtime.limits import InputError, LimitError
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.protocol.messages import read_messages
from uirl.types import Observation

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def encoded(format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture(3, (24, 20)).open().save(buffer, format, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small PNG whose header says any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    written = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


KNOWN = [
    encoded("PNG"),
    encoded("JPEG"),
    encoded("WEBP"),
    encoded("WEBP", lossless=True),
    encoded("PNG", optimize=True),
]
OTHERS = [encoded(format) for format in ("GIF", "BMP", "TIFF", "PPM", "TGA", "ICO", "PCX", "SGI", "JPEG2000")]


def mutated(count: int) -> Iterator[bytes]:
    """Files cut off, with bytes changed, doubled and moved: always the same."""
    rng = random.Random(0)
    for i in range(count):
        data = bytearray(rng.choice(KNOWN if i % 4 else OTHERS))
        for _ in range(rng.randint(1, 6)):
            at, change = rng.randrange(len(data)), rng.randrange(4)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1 and len(data) > 9:
                del data[at:]
                data = data or bytearray(b"\x00")
            elif change == 2:
                data[at:at] = data[max(0, at - rng.randrange(1, 30)) : at]
            else:
                data[at : at + 4] = struct.pack(">I", rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF]))
        yield bytes(data)


@pytest.mark.parametrize("data", KNOWN, ids=range(len(KNOWN)))
def test_what_browsers_and_phones_send_is_read(data: bytes) -> None:
    shot = Screenshot(data)
    assert shot.read_size() == shot.open().size == (24, 20)
    assert shot.open().mode == "RGB"


REFUSED = [*OTHERS, EPS, b"", b"nothing", KNOWN[0][:-30], KNOWN[1][:200], KNOWN[2][:100]]


@pytest.mark.parametrize("data", REFUSED, ids=range(len(REFUSED)))
def test_all_else_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"a decoder started a program: {args}")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(subprocess, "check_call", started)
    with pytest.raises(InputError, match=r"no PNG, JPEG or WEBP|cannot be decoded"):
        Screenshot(data).open()


@pytest.mark.parametrize(("width", "height"), [(7072, 7072), (50_000_001, 1), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_the_size_is_known_before_the_pixels(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(self: Any) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    for read in (Screenshot.open, Screenshot.read_size):
        with pytest.raises(InputError, match="pixels"):
            read(Screenshot(bomb(width, height)))
    with pytest.raises(EnvironmentFailure):
        read_observation(bomb(width, height), "env.reset")


def test_too_many_pixels_are_beyond_a_limit() -> None:
    with pytest.raises(LimitError, match="expected at most 50000000"):
        Screenshot(bomb(20_000, 20_000)).open()


async def test_mutated_files_raise_nothing_else() -> None:
    read = 0
    for data in mutated(3000):
        try:
            Screenshot(data).open()
            read += 1
        except InputError:
            pass
    assert 100 < read < 2900
    for data in mutated(1000):
        for entry in (read_observation, whole):
            try:
                found = entry(data, "somebody")
                if entry is whole:
                    await found  # type: ignore[misc]
            except EnvironmentFailure:
                pass


def test_mutated_files_are_a_400_of_the_endpoint() -> None:
    problems = []
    for data in mutated(1000):
        url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        try:
            read_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
        except APIProblem as problem:
            problems.append((problem.status, problem.param))
    assert len(problems) > 500
    assert set(problems) <= {(status, "messages[0].content[0].image_url.url") for status in (400, 413)}


class Sending(Countdown):
    """Shows a picture of which half is missing, in every second episode from its second turn."""

    def __init__(self, data: bytes) -> None:
        super().__init__(pictures=True)
        self.data = data

    def _look(self, text: str) -> Observation:
        if self.seed % 2 or "start" in text:
            return super()._look(text)
        return Observation(text, (Screenshot(self.data),))


def long_picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (1, 2000)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [(KNOWN[0][:-30], "cannot be decoded"), (long_picture(), "aspect ratio"), (EPS, "no PNG, JPEG")],
    ids=["cut off", "too long", "EPS"],
)
async def test_a_bad_picture_is_a_failure_of_its_episode(vlm: LoadedModel, data: bytes, why: str) -> None:
    played = await collector(vlm, Sending(data), retries=0).collect(specs(4), play_with(scripted(vlm, "yes")))
    assert [t.failure and t.failure.kind for t in played] == ["environment", None, "environment", None]
    failure = played[0].failure
    assert failure is not None
    assert why in failure.message


def test_a_bad_picture_of_a_client_is_an_environment_failure(vlm: LoadedModel) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be shown"):
        ChatRenderer(vlm).whole([Message("user", "look", (Screenshot(KNOWN[1][:300]),))])
