"""What rapidocr reads on a page is what stands there, where it stands; and what a policy does with it."""

from __future__ import annotations

import pytest
from PIL import Image

from configs import word_page
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui.words_read import words_read

pytestmark = pytest.mark.real


@pytest.mark.parametrize("seen", [{"ocr": 300}, {"tree": 300, "marks": True, "say_target": True}])
async def test_the_demonstrator_presses_what_was_read(seen: dict) -> None:
    env = word_page.WordPage(picture=False, **seen)
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


def test_training_and_evaluation_share_no_word() -> None:
    assert not set(word_page.SEEN) & set(word_page.UNSEEN)
    assert len(set(word_page.SEEN) | set(word_page.UNSEEN)) == len(word_page.WORDS) > 200


def test_an_empty_picture_has_no_words_and_a_long_list_is_cut() -> None:
    assert words_read(Image.new("RGB", (320, 240), "white"), 300) == ""
