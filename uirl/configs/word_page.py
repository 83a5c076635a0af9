"""A page of buttons with words on them, for a policy that reads.

`words='seen'` draws from two thirds of the list, 'unseen' from the rest, so that training and evaluation share no word.
"""

from __future__ import annotations

import html
import random
import re
from typing import Literal

from pydantic import Field

from uirl.environments import WebEnvironment
from uirl.environments.browser.environment import PageOptions
from uirl.environments.ui.vocabulary import ClickMark
from uirl.types import Action, Task

_LIST = (
    "acorn album anchor apron arrow attic badge bagel balcony bamboo banjo barrel basil beacon beetle biscuit blanket "
    "blossom bonfire bottle bouquet bracket branch bridge bronze bucket buffalo butter cabin cactus camel candle canoe "
    "canyon carpet castle cattle cello cereal cherry chimney cinnamon circus clover coconut comet compass copper coral "
    "cottage cotton coyote crayon cricket crystal cushion cymbal dagger daisy desert diamond dolphin donkey dragon "
    "eagle elbow ember engine falcon feather fiddle flamingo flute forest fossil fountain garlic garnet gazelle ginger "
    "glacier goblet gravel guitar hammock harbor hazel helmet hermit honey iceberg igloo island ivory jacket jaguar "
    "jasmine jungle kayak kettle kitten ladder lantern lavender lemon leopard lily lizard lobster locket magnet mango "
    "maple marble meadow melon meteor mitten monkey mosaic muffin napkin nectar needle nutmeg oasis ocean olive onion "
    "opal orchard otter oyster paddle panther papaya parrot peacock pebble pepper piano pigeon pillow planet plaza "
    "pocket pony poppy puddle puffin pumpkin puppet quartz quill rabbit radish raven ribbon river robin rocket saddle "
    "saffron salmon sandal sapphire satin saucer scarf shadow shovel silver sparrow spinach sponge squirrel stable "
    "statue sugar sunset swallow tapestry teapot temple thimble thunder timber tomato trumpet tulip tunnel turtle "
    "valley vanilla velvet violet violin walnut walrus whistle willow window wizard yogurt zebra"
)
WORDS = _LIST.split()
SEEN = WORDS[0::3] + WORDS[1::3]
UNSEEN = WORDS[2::3]


class WordPageOptions(PageOptions):
    """A page of buttons with words."""

    key = "word_page"

    words: Literal["seen", "unseen"] = "seen"
    """Which part of the list the words are from."""
    buttons: int = Field(5, ge=2, le=9)
    """Buttons on the page."""


class WordPage(WebEnvironment):
    """Press the button whose word is asked for; any other ends the episode."""

    options_class = WordPageOptions
    options: WordPageOptions
    page_size = (320, 240)
    actions = ("click",)
    max_turns = 1
    keeps_page = True  # the page stores nothing
    state = "({pressed: document.title})"

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        words = rng.sample(SEEN if self.options.words == "seen" else UNSEEN, self.options.buttons)
        self.wanted = rng.choice(words)
        self.targets = {word: f"#{word}" for word in words}
        self.goal = f"Press {self.wanted}."
        buttons = [f'<button id="{w}" onclick="document.title = this.id">{html.escape(w)}</button>' for w in words]
        self.html = f"<!doctype html><title>none</title>{' '.join(buttons)}"

    def outcome(self, state):
        return None if state["pressed"] == "none" else state["pressed"] == self.wanted

    def expert_action(self) -> Action | None:
        if self.space.marks:
            return self.act(ClickMark(1 + list(self.targets).index(self.wanted)), target=self.wanted)
        places = {word: place for place, word in re.findall(r'^(\d+,\d+) "(.*)"$', self.accessibility, re.MULTILINE)}
        if self.wanted not in places:  # misread, or not asked for
            return self.click_on(self.wanted)
        x, y = places[self.wanted].split(",")
        return Action.of("click", x=int(x), y=int(y))
