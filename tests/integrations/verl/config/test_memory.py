"""What verl's batches and windows hold, by the sum and by our own code."""

from __future__ import annotations

import torch

from tests.integrations.verl.models import qwen
from uirl.inference.models.picture_cache import pack_pixels
from uirl.integrations.verl.plan import rows_within_budget
from uirl.training.memory import patches_of, rows_of_episode, shape_of_config


def test_a_screenshot_is_as_large_as_verl_and_our_workers_keep_it() -> None:
    vision = shape_of_config(qwen("7B")).vision
    assert vision is not None
    patches = patches_of(vision, 1280, 720)
    assert patches * vision.patch_numbers * 4 == 22_503_936
    # a made-up picture of as many patches: three colours, two equal frames of bytes
    one = torch.randint(0, 256, (patches, 3, 1, 14 * 14), generator=torch.Generator().manual_seed(0)).float() / 255
    pixels = one.expand(-1, -1, 2, -1).reshape(patches, -1)
    assert pixels.nbytes == patches * vision.patch_numbers * 4
    frames = type("Processor", (), {"temporal_patch_size": 2})()
    packed = pack_pixels(pixels, frames)
    assert packed.codes.nbytes == patches * vision.patch_numbers / vision.frames


def test_a_budget_of_tokens_bounds_the_pictures_of_a_sequence() -> None:
    """Replies of up to 50 tokens: two or three pictures of 100 fit into 300, and three of four turns are most."""
    sizes = {"picture_tokens": 100, "reply_tokens": 50}
    assert rows_within_budget(9, None, None, budget=300, **sizes) == [3] * 7
    assert rows_within_budget(4, None, None, budget=300, **sizes) == [2, 2, 2]
    assert rows_within_budget(9, 2, 1, budget=10_000, **sizes) == rows_of_episode(9, 2, 1)
    assert rows_within_budget(3, 2, 2, budget=1, **sizes) == [1, 1, 1]
