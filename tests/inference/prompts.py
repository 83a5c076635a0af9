"""Prompts of different lengths, for suites that every engine must pass."""

from __future__ import annotations

from tests.inference.pictures import picture
from uirl.inference import ChatRenderer, LoadedModel, Message


def prompts_for(loaded: LoadedModel, chat: ChatRenderer):
    if loaded.vision is None:
        texts = ["guess 1-7", "a longer prompt about a door and a key", "x"]
        return [(chat.whole([Message("user", text)]), ()) for text in texts]
    shots = [(picture(1),), (picture(2), picture(3, (84, 56))), ()]
    return [(chat.whole([Message("user", f"press {i}", s)]), s) for i, s in enumerate(shots)]
