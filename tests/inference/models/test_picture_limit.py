"""`model.max_image_pixels` bounds what a model reads of a picture, in every family, and moves no click."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.inference.models.picture_families import saved
from tests.inference.pictures import picture
from tests.inference.prompts import gap_of
from uirl.config import ModelConfig
from uirl.errors import ConfigError
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams, load_model
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.models.processors import pixels_read

PHONE, BROWSER, ICON = (picture(i, size) for i, size in enumerate(((1080, 2400), (1280, 720), (40, 40))))
LEAST = {"qwen3_vl": 784, "glm4v": 784, "llava_onevision": 2352, "smolvlm": 784, "internvl": 784, "mistral3": 1568}
"""A family of each kind of rule -> pixels of the smallest picture that it makes, which it may pad or enlarge."""


def limited(folder: Path, name: str, limit: int) -> LoadedModel:
    saved(name, folder)
    return load_model(ModelConfig(local_path=str(folder), device="cpu", max_image_pixels=limit))


@pytest.mark.parametrize("name", LEAST)
def test_no_picture_is_read_with_more_pixels(name: str, tmp_path: Path) -> None:
    vision = saved(name, tmp_path).vision
    assert vision is not None
    (free,) = vision.front(PHONE.open())[1:]
    vision.front.limit_pixels(LEAST[name])
    expansion, tensors = vision.front(PHONE.open())
    assert pixels_read(vision.processor, tensors) <= LEAST[name] < pixels_read(vision.processor, free)
    assert vision.tokens_of((1080, 2400)) == len(expansion.ids) == vision.encode([PHONE])[0].tokens
    assert pixels_read(vision.processor, vision.encode([ICON])[0].tensors) <= LEAST[name]


def test_a_limit_that_no_picture_keeps_is_refused_with_the_least_that_one_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_image_pixels=3000: .* at least 3136 .* a limit of at least 3136"):
        limited(tmp_path, "gemma3", 3000)


@pytest.mark.parametrize("name", ["qwen3_vl", "llava_onevision", "gemma3", "smolvlm"])
async def test_engine_and_learner_agree_on_phones_with_the_limit(name: str, tmp_path: Path) -> None:
    loaded = limited(tmp_path, name, LEAST.get(name, 3136))
    shots = (PHONE, BROWSER)
    ids = tuple(ChatRenderer(loaded).whole([Message("user", "press ok", shots)]))
    asked = GenerationRequest(ids, shots, SamplingParams(max_tokens=4, seed=1))
    assert gap_of(loaded, asked, await TransformersInferenceEngine(loaded).generate(asked)) < 1e-4


def test_the_recorded_transform_leads_from_the_whole_screenshot_to_what_was_fed(tmp_path: Path) -> None:
    saved("qwen3_vl", tmp_path)
    loaded = load_model(ModelConfig(local_path=str(tmp_path), device="cpu", max_image_pixels=784))
    vision = loaded.vision
    assert vision is not None
    transform = vision.describe([PHONE])[0].transform
    assert transform is not None
    # one cell of 28 x 28
    assert (transform.raw_size, transform.fed_size) == ((1080, 2400), (28, 28))
    assert transform.to_fed(540, 1200) == (14, 14)
    assert transform.to_raw(14, 14) == (540, 1200)


def test_a_picture_that_is_made_smaller_first_is_recorded_from_its_whole_size(tmp_path: Path) -> None:
    loaded = limited(tmp_path, "llava", 784)
    vision = loaded.vision
    assert vision is not None
    # a processor of one size that is shown a smaller picture
    for size, shown in (((90, 60), (90, 60)), ((90, 60), (45, 30))):
        pixels = torch.zeros(1, 3, 28, 28)
        transform = vision._transform(size, shown, {"pixel_values": pixels})
        assert transform is not None
        assert transform.raw_size == size
        assert transform.to_fed(45, 30) == (14, 14)


def test_a_text_model_refuses_the_key() -> None:
    with pytest.raises(ConfigError, match=r"max_image_pixels=1000: uirl/tiny-lm is a text model"):
        load_model(ModelConfig(model_name="uirl/tiny-lm", device="cpu", max_image_pixels=1000))
