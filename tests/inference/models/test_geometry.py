"""What is recorded of a picture's way to the model makes the picture again that the model was fed, pixel for pixel."""

from __future__ import annotations

import numpy as np
import pytest
import transformers
from PIL import Image

from uirl.images import screenshot
from uirl.inference.models.vision import stacked_transform
from uirl.storage.records import fed_picture
from uirl.types import PictureTransform

SIZES = [(56, 56), (1080, 2400), (1920, 1080), (31, 40), (224, 224), (500, 90)]
STACKED = {
    "CLIP": {},
    "CLIP without a cut": {"do_center_crop": False, "size": {"height": 70, "width": 70}},
    "CLIP of small pictures": {"do_resize": False, "crop_size": {"height": 225, "width": 101}},
    "Siglip": {"size": {"height": 96, "width": 64}, "resample": 2},
    "Llava": {},
    "Llava padded": {"do_pad": True},
}


def noise(size: tuple[int, int]) -> Image.Image:
    values = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values)


def colours(pixels: np.ndarray, processor) -> np.ndarray:
    """Pixels [C, H, W] as the model gets them -> uint8 [H, W, C]."""
    mean, std = (np.asarray(getattr(processor, f"image_{n}"))[:, None, None] for n in ("mean", "std"))
    return np.rint((pixels * std + mean) * 255).astype(np.uint8).transpose(1, 2, 0)


def unpatched(pixels: np.ndarray, grid: tuple[int, int, int], processor) -> np.ndarray:
    """Patches of one picture -> pixels [C, H, W] of its first frame."""
    _, rows, columns = grid
    side, merge, time = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    shape = (rows // merge, columns // merge, merge, merge, 3, time, side, side)
    cells = pixels.reshape(shape)[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6)
    return cells.reshape(3, rows * side, columns * side)


@pytest.mark.parametrize("size", SIZES)
def test_the_picture_of_a_grid_is_made_again(vlm, size) -> None:
    vision, raw = vlm.vision, noise(size)
    (encoded,) = vision.encode([screenshot(raw)])
    assert encoded.transform is not None
    fed = fed_picture(raw, encoded.transform)
    seen = colours(unpatched(encoded.pixels.numpy(), encoded.grid, vision.processor), vision.processor)
    assert np.array_equal(np.asarray(fed), seen)


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize("size", SIZES)
def test_the_picture_of_one_size_is_made_again(name, size) -> None:
    processor = getattr(transformers, f"{name.split()[0]}ImageProcessorPil")(**STACKED[name])
    raw = noise(size)
    pixels = processor(images=[raw], return_tensors="np")["pixel_values"][0]
    transform = stacked_transform(processor, raw.size, (pixels.shape[2], pixels.shape[1]))
    assert transform is not None
    assert np.array_equal(np.asarray(fed_picture(raw, transform)), colours(pixels, processor))


def test_a_processor_that_does_something_else_is_not_guessed_at() -> None:
    processor = transformers.CLIPImageProcessorPil(do_pad=True, pad_size={"height": 300, "width": 300})
    assert stacked_transform(processor, (56, 56), (300, 300)) is None
    assert stacked_transform(transformers.CLIPImageProcessorPil(), (56, 56), (300, 300)) is None


@pytest.mark.parametrize(
    "transform",
    [
        PictureTransform((1080, 2400), (1064, 2408)),
        PictureTransform((1080, 2400), (224, 498), window=(0, 137, 224, 224)),
        PictureTransform((100, 40), (336, 336), source=(0, -30, 100, 100), window=(-1, 3, 330, 400)),
    ],
)
def test_a_click_goes_both_ways(transform) -> None:
    for point in ((0.0, 0.0), (99.5, 39.25), (50.0, -3.0)):
        assert transform.to_raw(*transform.to_fed(*point)) == pytest.approx(point)
    raw = Image.new("RGB", transform.raw_size)
    where = (transform.raw_size[0] // 2, transform.raw_size[1] // 2)
    raw.paste((255, 0, 0), (where[0] - 4, where[1] - 4, where[0] + 4, where[1] + 4))
    red = np.argwhere(np.asarray(fed_picture(raw, transform))[..., 0] > 128)
    assert tuple(red.mean(0)[::-1] + 0.5) == pytest.approx(transform.to_fed(*where), abs=0.6)


def test_a_picture_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="got a picture of 10 x 20 pixels, expected 20 x 10"):
        fed_picture(Image.new("RGB", (10, 20)), PictureTransform((20, 10), (28, 28)))
