"""Every picture goes through the processor once, whoever asks, and however little of it is kept."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.inference.pictures import picture
from uirl.images import Screenshot, screenshot
from uirl.inference import LoadedModel
from uirl.inference.models import picture_cache
from uirl.inference.models.picture_cache import PackedPixels, PictureCache
from uirl.inference.models.processors import PictureProcessor
from uirl.inference.models.vision import VisionInputs
from uirl.runtime import bounded_cache


@dataclass(frozen=True)
class Box:
    hash: str
    bytes: int = 10
    bare: bool = False


class Processor:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.waits: threading.Event | None = None
        self.begun = threading.Event()

    def __call__(self, images: list[Screenshot]) -> list[Box]:
        self.calls.append([image.hash for image in images])
        self.begun.set()
        if self.waits is not None:
            assert self.waits.wait(60)
        return [Box(image.hash) for image in images]

    @property
    def count(self) -> int:
        return sum(map(len, self.calls))


def cache_of(processor: Processor, max_bytes: int = 100) -> PictureCache[Box]:
    return PictureCache(processor, pack=lambda box: box, bare=lambda box: replace(box, bare=True), max_bytes=max_bytes)


def shots(count: int, side: int = 16) -> list[Screenshot]:
    return [picture(i, (side + 2, side)) for i in range(count)]


def test_what_a_picture_takes_is_known_after_its_pixels_were_dropped() -> None:
    processor = Processor()
    cache = cache_of(processor, 30)
    many = shots(10)
    for shot in many:
        cache.encode([shot])
    assert (len(cache.kept), processor.count) == (3, 10)
    assert [box.bare for box in cache.describe(many)] == [True] * 10
    assert processor.count == 10
    assert not cache.encode(many[:1])[0].bare
    assert processor.count == 11


def test_what_nobody_asked_for_since_a_moment_goes_and_is_encoded_again_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(bounded_cache.time, "time", lambda: now)
    processor = Processor()
    cache, (first, second, third) = cache_of(processor), shots(3)
    for now, shot in enumerate((first, second, third, first)):  # noqa: B007
        cache.encode([shot])
    cache.kept.forget_before(2.5)
    assert (len(cache.kept), cache.kept.held) == (1, 10)
    cache.encode([first])
    assert processor.count == 3
    cache.encode([second])
    assert processor.count == 4


def test_two_threads_never_encode_one_picture_twice() -> None:
    processor = Processor()
    processor.waits = threading.Event()
    cache, (first, second) = cache_of(processor), shots(2)
    with ThreadPoolExecutor(4) as threads:
        one = threads.submit(cache.encode, [first])
        assert processor.begun.wait(60)
        others = [threads.submit(cache.encode, [first]) for _ in range(3)]
        processor.waits.set()
        results = [future.result(60) for future in (one, *others)]
    assert processor.calls == [[first.hash]]
    assert all(made == results[0] for made in results)
    cache.encode([second, first, second])
    assert processor.calls[1:] == [[second.hash]]


def test_a_picture_that_failed_in_another_thread_fails_here_too() -> None:
    def broken(images: list[Screenshot]) -> list[Box]:
        raise ValueError("cut off")

    cache = PictureCache(broken, pack=lambda box: box, bare=lambda box: box)
    for _ in range(2):
        with pytest.raises(ValueError, match="cut off"):
            cache.encode(shots(1))


async def test_large_pictures_are_encoded_aside_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_cache, "ASIDE", 30 * 32)
    here, where = threading.get_ident(), []
    processor = Processor()

    def process(images: list[Screenshot]) -> list[Box]:
        where.append(threading.get_ident() == here)
        return processor(images)

    cache = PictureCache(process, pack=lambda box: box, bare=lambda box: box)
    small, large = shots(1)[0], shots(1, 32)[0]
    await asyncio.gather(*[cache.prepare([small, large]) for _ in range(16)])
    assert (processor.calls, where) == ([[large.hash]], [False])
    cache.encode([small, large])
    assert (processor.calls[1:], where[1:]) == ([[small.hash]], [True])
    await cache.prepare([Screenshot(b"nothing")])  # said where the picture is needed


def noise(seed: int, width: int, height: int) -> Screenshot:
    pixels = np.frombuffer(random.Random(seed).randbytes(width * height * 3), np.uint8)
    return screenshot(pixels.reshape(height, width, 3))


def test_a_large_picture_is_kept_in_an_eighth_of_its_size_to_the_last_bit(vlm: LoadedModel) -> None:
    processor = type(vlm.vision.processor)(
        size={"shortest_edge": 28**2, "longest_edge": 640 * 640}, patch_size=14, merge_size=2
    )
    vision = VisionInputs(vlm.config, PictureProcessor(vlm.config, processor, vlm.tokenizer))
    shot = noise(1, 540, 601)
    (encoded,) = vision.encode([shot])
    theirs = processor(images=[shot.open()], return_tensors="pt")["pixel_values"]
    assert isinstance(encoded.stored, PackedPixels)
    assert encoded.bytes * 8 < theirs.nbytes * 1.01
    assert torch.equal(encoded.pixels, theirs)
    assert torch.equal(vision.forward_inputs([shot], "cpu", torch.float32)["pixel_values"], theirs)
    assert isinstance(vision.encode([picture(1)])[0].stored, torch.Tensor), "small ones cost more to unpack"
    vision.cache.kept.keep_at_most(1)
    vision.encode([picture(2)])
    assert vision.describe([shot])[0].grid == encoded.grid
