"""The weights that come along: theirs alone, loaded like any checkpoint, and as good as their card says."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from scripts.grounding.training import Recipe, accuracy
from uirl.config import ConfigStore
from uirl.config.relations import BUILT_IN, GROUNDED
from uirl.errors import CheckpointError, ConfigError
from uirl.inference.models.loading import BUILT_IN_MODELS, load_model
from uirl.inference.models.unpacked import SHIPPED, card

ROOT = Path(__file__).parents[3]


def config_of(**model: object) -> ConfigStore:
    return ConfigStore.from_dict({"model": {"model_name": GROUNDED, "device": "cpu", **model}})


def test_the_names_of_the_config_are_those_that_can_be_built() -> None:
    assert {*BUILT_IN, GROUNDED} == set(BUILT_IN_MODELS)


def test_the_weights_are_small_and_a_part_of_the_wheel() -> None:
    folder = SHIPPED[GROUNDED]
    assert (folder / "model.safetensors").stat().st_size < 10_000_000
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["uirl"]
    for file in folder.iterdir():
        name = str(file.relative_to(ROOT / "uirl"))
        assert any(fnmatch(name, glob) for glob in globs), name


def test_the_card_says_how_to_make_them_and_the_recipe_is_that_of_the_code() -> None:
    made = card(GROUNDED)
    assert made["command"].startswith("python scripts/train_grounded.py")
    assert made["seconds"] <= 3600
    assert made["recipe"] == asdict(Recipe())


def test_it_answers_about_as_many_held_out_questions_as_its_card_says() -> None:
    loaded = load_model(config_of().model)
    counts = accuracy(loaded, seed=1, batches=1, size=8).values()
    right, of = (sum(pair[i] for pair in counts) for i in (0, 1))
    share = card(GROUNDED)["held_out"]["all"]["share"]
    assert right / of > share - 4 * (share * (1 - share) / of) ** 0.5


def test_it_is_the_same_whatever_the_seed_and_for_processes_that_need_no_weights() -> None:
    first, second = load_model(config_of().model, seed=1), load_model(config_of().model, seed=2, weights=False)
    assert first.name == GROUNDED
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_of_another_card_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(SHIPPED[GROUNDED], folder)
    monkeypatch.setitem(SHIPPED, GROUNDED, folder)
    (folder / "card.json").write_text(json.dumps(card(GROUNDED) | {"sha256": "0" * 64}))
    with pytest.raises(CheckpointError, match=r"has the SHA-256 .* its card.json says 0000"):
        load_model(config_of().model)
    (folder / "card.json").unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load_model(config_of().model)


def test_sizes_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("model.tiny.image_size with model.model_name=uirl/tiny-vlm-g")):
        config_of(tiny={"image_size": 112}).check()
    config_of(tiny={"image_size": 112}, local_path="somewhere").check()
    with pytest.raises(ConfigError, match=r"no built-in model 'uirl/tiny-vlm-large'; expected one of .*grounded"):
        load_model(ConfigStore.from_dict({"model": {"model_name": "uirl/tiny-vlm-large"}}).model)
