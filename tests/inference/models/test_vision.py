"""Positions and placeholder counts are those of the HF models."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.pictures import picture
from uirl.errors import AlignmentError
from uirl.inference.models.vision import VisionInputs


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_equal_the_models_own(architecture: str) -> None:
    loaded = tiny_model(architecture=architecture)
    vision = loaded.vision
    shots = (picture(1), picture(2, (84, 56)), picture(3, (28, 56)))
    counts = [image.tokens for image in vision.encode(shots)]
    token = vision.image_token_id
    images = [[token] * n for n in counts]
    ids = [10, *images[0], 11, *images[1], 12, 12, *images[2]]
    ours, following = loaded.positions(ids, shots)
    tensor = torch.tensor([ids])
    grids = vision.forward_inputs(shots, "cpu", torch.float32)["image_grid_thw"]
    theirs, delta = loaded.model.model.get_rope_index(tensor, (tensor == token).int(), image_grid_thw=grids)
    assert ours.tolist() == theirs[:, 0].tolist()
    assert following == len(ids) + int(delta)


@pytest.mark.parametrize("size", [(56, 56), (28, 56), (56, 28), (40, 33), (200, 120), (12, 12)])
def test_patches_are_the_processors_to_the_last_bit(vlm, size: tuple[int, int]) -> None:
    shot = picture(3, size) if min(size) > 12 else picture(3, (16, 16))
    processor = vlm.vision.processor
    theirs = processor(images=[shot.open()], return_tensors="pt")
    ours = VisionInputs(vlm.config, vlm.vision.front).encode([shot])[0]
    assert torch.equal(ours.pixels, theirs["pixel_values"])
    assert list(ours.grid) == theirs["image_grid_thw"][0].tolist()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 5, 5, 9], "got 3 in the sequence, expected 4"),
        ([9, 5, 5, 5, 5, 9, 5], "got 5"),
        ([9, 9], "got 0"),
        ([5, 5, 9, 5, 5], "interrupted by text"),
    ],
)
def test_placeholders_that_do_not_match_are_named(vlm, ids: list[int], message: str) -> None:
    assert (vlm.vision.image_token_id, vlm.vision.encode([picture(1)])[0].tokens) == (5, 4)
    for ask in (vlm.vision.one_placeholder_each, vlm.positions):
        with pytest.raises(AlignmentError, match=message):
            ask(ids, [picture(1)])
    with pytest.raises(AlignmentError, match="expected 0"):
        vlm.positions([10, 5], ())


def test_a_processor_without_settings_of_its_own_has_no_file_of_its_own(vlm, tmp_path) -> None:
    """HF's auto class would take the class that is named there, and no other that is registered for the model."""
    vlm.save(tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()
    assert not (tmp_path / "processor_config.json").exists()
