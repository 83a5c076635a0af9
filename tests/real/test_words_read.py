"""What rapidocr reads on a page is what stands there, where it stands; and what a policy does with it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui.words_read import words_read

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("word_page", ROOT / "configs" / "word_page.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["word_page"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("seen", [{"ocr": 300}, {"tree": 300, "marks": True}])
async def test_the_demonstrator_presses_what_was_read(module: ModuleType, seen: dict) -> None:
    env: WebEnvironment = module.WordPage(picture=False, **seen)
    for seed in range(4):
        first = await env.reset(seed=seed)
        assert first.images == ()
        lines = first.text.splitlines()[1:]
        assert sum(f'"{word}"' in line for line in lines for word in env.targets) == len(env.targets)
        action = env.expert_action()
        assert action is not None
        assert (await env.step(action)).reward == 1.0
    blank = env.controls()["blank_page"]
    assert isinstance(blank, WebEnvironment)
    assert (await blank.reset(seed=1)).text.count("\n") == 0
    await blank.close()
    await env.close()


def test_training_and_evaluation_share_no_word(module: ModuleType) -> None:
    assert not set(module.SEEN) & set(module.UNSEEN)
    assert len(set(module.SEEN) | set(module.UNSEEN)) == len(module.WORDS) > 200


def test_an_empty_picture_has_no_words_and_a_long_list_is_cut() -> None:
    assert words_read(Image.new("RGB", (320, 240), "white"), 300) == ""
