"""What of the history a generation sees: the newest pictures, the opening, the newest exchanges."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.inference.pictures import picture
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import ImageStore, Screenshot
from uirl.inference import ChatRenderer, Message
from uirl.rollout.conversation import DROPPED_PICTURE, Context, ContextWindow, Conversation, style_of
from uirl.types import Observation, ToolResult

SHOTS = [ImageStore().put(picture(i)) for i in range(5)]


def grow(chat: ChatRenderer, window: ContextWindow, shown: list[list[Screenshot]]) -> Context:
    """The context after observations that show `shown`, each but the last answered."""
    talk = Conversation(chat, window)
    for number, shots in enumerate(shown):
        talk.observe(Observation(f"look {number}", tuple(shots)))
        context = talk.context()
        if number + 1 < len(shown):
            talk.reply(chat.demonstration("yes"), "yes", ended=True)
    return context


def test_the_image_window_keeps_the_newest_pictures(vlm_chat: ChatRenderer) -> None:
    context = grow(vlm_chat, ContextWindow(max_images=2), [[shot] for shot in SHOTS[:4]])
    assert context.images == tuple(SHOTS[2:4])
    seen = [message for message in context.messages if message.role == "user"]
    assert [message.images for message in seen] == [(), (), (SHOTS[2],), (SHOTS[3],)]
    assert [message.text for message in seen] == [
        f"look 0\n{DROPPED_PICTURE}",
        f"look 1\n{DROPPED_PICTURE}",
        "look 2",
        "look 3",
    ]


def pictures_of(chat: ChatRenderer, window: ContextWindow, count: int) -> list[list[Screenshot]]:
    """What each of `count` turns shows, one new picture each; a list per stretch of unbroken history."""
    talk = Conversation(chat, window)
    stretches: list[list[Screenshot]] = []
    for number in range(count):
        talk.observe(Observation(f"look {number}", (SHOTS[number],)))
        context = talk.context()
        if context.starts_segment:
            stretches.append([])
        stretches[-1] += context.new_images
        talk.reply(chat.demonstration("yes"), "yes", ended=True)
    return stretches


def test_dropped_in_steps_each_picture_stands_in_one_stretch(vlm_chat: ChatRenderer) -> None:
    one = pictures_of(vlm_chat, ContextWindow(max_images=2), 5)
    assert one == [SHOTS[:2], SHOTS[1:3], SHOTS[2:4], SHOTS[3:5]]
    block = pictures_of(vlm_chat, ContextWindow(max_images=2, keep_images=1), 5)
    assert block == [SHOTS[:2], SHOTS[2:4], SHOTS[4:5]]


def test_a_step_takes_no_picture_of_the_newest_message(vlm_chat: ChatRenderer) -> None:
    context = grow(vlm_chat, ContextWindow(max_images=3, keep_images=1), [SHOTS[:3], SHOTS[3:5]])
    assert context.images == tuple(SHOTS[3:5])


def test_within_one_message_the_first_pictures_go(vlm_chat: ChatRenderer) -> None:
    context = grow(vlm_chat, ContextWindow(max_images=3), [SHOTS[:3], SHOTS[3:5]])
    assert context.images == tuple(SHOTS[2:5])
    assert context.messages[0].images == (SHOTS[2],)
    assert context.messages[0].text == f"look 0\n{DROPPED_PICTURE}\n{DROPPED_PICTURE}"


def test_pictures_within_the_limit_rewrite_nothing(vlm_chat: ChatRenderer) -> None:
    context = grow(vlm_chat, ContextWindow(max_images=3), [[shot] for shot in SHOTS[:3]])
    assert not context.starts_segment
    assert context.images == tuple(SHOTS[:3])
    assert context.new_images == (SHOTS[2],)


def test_the_style_of_mai_ui(vlm_chat: ChatRenderer) -> None:
    """The goal apart, pictures that go without a trace, replies without white space around them."""
    talk = Conversation(vlm_chat, ContextWindow(max_images=1), style_of("mai_ui"))
    talk.add(Message("system", "s"))
    talk.observe(Observation("goal", (SHOTS[0],)))
    assert [(m.role, m.text, len(m.images)) for m in talk.context().messages] == [
        ("system", "s", 0), ("user", "goal", 0), ("user", "", 1),
    ]  # fmt: skip
    for turn, seen in enumerate([Observation("", (SHOTS[1],)), Observation("told"), Observation("")]):
        text = f" reply {turn}\n"
        talk.reply(vlm_chat.demonstration(text), text, ended=True)
        talk.observe(seen)
        context = talk.context()
    assert [(m.role, m.text, len(m.images)) for m in context.messages] == [
        ("system", "s", 0), ("user", "goal", 0), ("assistant", "reply 0", 0), ("user", "", 1),
        ("assistant", "reply 1", 0), ("user", "told", 0), ("assistant", "reply 2", 0), ("user", "", 0),
    ]  # fmt: skip


LARGE, SMALL = "word " * 40, "ok"


def seen(number: int, text: str, tool: bool, images: tuple[Screenshot, ...]) -> Observation:
    words = f"<{number}> {text}"
    results = (ToolResult("look", result=words),) if tool else ()
    return Observation("" if tool else words, images, tool_results=results)


@pytest.mark.parametrize("style", ["plain", "mai_ui"])
@pytest.mark.parametrize("tool", [False, True])
@pytest.mark.parametrize("shots", [0, 1])
@pytest.mark.parametrize("max_images", [None, 1])
@pytest.mark.parametrize(
    "texts",
    [[LARGE] * 6, [SMALL] * 8, [SMALL, LARGE, SMALL, SMALL, SMALL, LARGE], [LARGE, SMALL, SMALL, LARGE, SMALL, SMALL]],
)
def test_a_budget_leaves_the_opening_and_the_newest_at_least(
    vlm_chat: ChatRenderer, style: str, tool: bool, shots: int, max_images: int | None, texts: list[str]
) -> None:
    """Whatever the shapes of the history: what is above the budget is the opening and the newest observation alone, and
    what is shown beside the opening is the newest of what was seen."""
    budget = 120
    talk = Conversation(vlm_chat, ContextWindow(max_images=max_images, token_budget=budget), style_of(style))
    if tool:  # with an opening of two messages, and of one
        talk.add(Message("system", "s"))
    for number, text in enumerate(texts):
        pictures = (SHOTS[number % len(SHOTS)],) * shots
        talk.observe(seen(number, text, tool and number > 0, pictures))
        context = talk.context()
        joined = "\n".join(message.text for message in context.messages)
        shown = [int(n) for n in re.findall(r"<(\d+)>", joined)]
        assert shown == [0, *range(number - len(shown) + 2, number + 1)]
        assert context.images[len(context.images) - shots :] == pictures
        roles = [message.role for message in context.messages]
        assert set(roles) <= {"system", "user", "assistant", "tool"}
        assert ("system" in roles) == tool
        assert style != "plain" or all(one != other for one, other in itertools.pairwise(roles))
        if len(context.prompt_ids) > budget:
            assert shown == [0, number][: number + 1]
            assert "reply" not in joined
            assert len(context.images) == shots
        talk.reply(vlm_chat.demonstration("reply"), "reply", ended=True)


def test_half_a_character_is_a_failure_of_the_environment(vlm_chat: ChatRenderer) -> None:
    talk = Conversation(vlm_chat, ContextWindow())
    with pytest.raises(EnvironmentFailure, match=r"half a character .*bad .* surrogate"):
        talk.observe(Observation("bad \ud83d surrogate"))


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown message_style 'mai'; did you mean 'mai_ui'"):
        style_of("mai")
