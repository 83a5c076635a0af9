"""How many pictures a training sequence has: the arithmetic against the conversation itself."""

from __future__ import annotations

import pytest

from tests.inference.pictures import picture
from uirl.images import ImageStore
from uirl.inference import ChatRenderer
from uirl.rollout.conversation import ContextWindow, Conversation
from uirl.training.plan.windows import rows_of_episode, rows_within_budget
from uirl.types import Observation


@pytest.mark.parametrize(("most", "kept"), [(None, None), (1, 1), (3, None), (3, 2), (3, 1), (5, 3)])
def test_sequences_hold_as_many_pictures_as_the_window_leaves(
    vlm_chat: ChatRenderer, most: int | None, kept: int | None
) -> None:
    talk = Conversation(vlm_chat, ContextWindow(most, keep_images=kept))
    rows: list[int] = []
    for turn in range(9):
        talk.observe(Observation("look", (ImageStore().put(picture(turn)),)))
        context = talk.context()
        if context.starts_segment:
            rows.append(0)
        rows[-1] += len(context.new_images)
        talk.reply(vlm_chat.demonstration("yes"), "yes", ended=True)
    assert rows_of_episode(9, most, kept) == rows


def test_a_budget_of_tokens_bounds_the_pictures_of_a_sequence() -> None:
    """Replies of up to 50 tokens: two or three pictures of 100 fit into 300, and three of four turns are most."""
    sizes = {"picture_tokens": 100, "reply_tokens": 50}
    assert rows_within_budget(9, None, None, budget=300, **sizes) == [3] * 7
    assert rows_within_budget(4, None, None, budget=300, **sizes) == [2, 2, 2]
    assert rows_within_budget(9, 2, 1, budget=10_000, **sizes) == rows_of_episode(9, 2, 1)
    assert rows_within_budget(3, 2, 2, budget=1, **sizes) == [1, 1, 1]
