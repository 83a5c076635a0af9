"""Pictures as bytes: what comes back is what a processor made, digit by digit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from uirl import ConfigStore, load_model
from uirl.inference.models.packing import PackedPixels, pack_pixels
from uirl.integrations.verl.rollout.packing import PIXELS, PackedInputs


@pytest.fixture(scope="module")
def processor() -> Any:
    """The image processor of the built-in Qwen2-VL."""
    vision = load_model(ConfigStore().override(["model.model_name=uirl/tiny-vlm"]).model, weights=False).vision
    assert vision is not None
    return vision.processor


def processed(processor: Any, *sizes: tuple[int, int]) -> dict[str, Any]:
    """What it makes of noise of these sizes, which it has to resize."""
    draw = np.random.default_rng(0)
    shots = [Image.fromarray(draw.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    return dict(processor(images=shots, return_tensors="pt"))


def test_patches_come_back_exactly_from_an_eighth_of_their_size(processor: Any) -> None:
    pixels = processed(processor, (140, 84), (61, 200))[PIXELS]
    packed = pack_pixels(pixels, processor)
    assert packed is not None
    assert torch.equal(packed.unpack(), pixels)
    assert packed.unpack().dtype == pixels.dtype
    assert packed.frames == 2
    assert packed.codes.nbytes * 8 == pixels.nbytes
    assert packed.levels.nbytes == 3 * 256 * 4


def test_planes_of_other_processors_come_back_too() -> None:
    raw = torch.randint(0, 256, (2, 3, 8, 6), generator=torch.Generator().manual_seed(0)).float()
    packed = pack_pixels(raw / 255)
    assert packed is not None
    assert torch.equal(packed.unpack(), raw / 255)
    assert packed.codes.nbytes * 4 == raw.nbytes


def test_frames_that_differ_are_all_kept(processor: Any) -> None:
    pixels = processed(processor, (56, 56))[PIXELS]
    planes = pixels.reshape(len(pixels), 3, 2, -1)
    planes[:, :, 1] = planes[:, :, 1].flip(-1)
    packed = pack_pixels(pixels, processor)
    assert packed is not None
    assert (packed.frames, packed.codes.nbytes * 4) == (1, pixels.nbytes)
    assert torch.equal(packed.unpack(), pixels)


@pytest.mark.parametrize(
    "pixels", [torch.randn(4, 24), torch.zeros(0, 24), torch.zeros(4, 23), torch.ones(4, 24).int()]
)
def test_what_would_not_come_back_exactly_is_left_alone(pixels: torch.Tensor) -> None:
    assert pack_pixels(pixels) is None
    assert torch.equal(PackedInputs({PIXELS: pixels})[PIXELS], pixels)


def test_the_inputs_of_a_sequence_are_read_as_before_and_travel_small(processor: Any) -> None:
    inputs = processed(processor, (140, 84))
    packed = PackedInputs(inputs | {"mm_token_type_ids": torch.ones(3)}, processor)
    assert packed.pop("mm_token_type_ids", None) is not None
    assert set(packed) == set(inputs) == set(packed.keys())
    assert all(torch.equal(value, inputs[name]) for name, value in packed.items())
    assert packed.get("image_grid_thw") is inputs["image_grid_thw"]
    travelled = pickle.dumps(packed)
    assert len(travelled) < inputs[PIXELS].nbytes / 8 + 8000
    again = pickle.loads(travelled)
    assert isinstance(again.data[PIXELS], PackedPixels), "still packed"
    assert torch.equal(again[PIXELS], inputs[PIXELS])
    assert packed != again, "compared by identity: tensors have no truth value"
