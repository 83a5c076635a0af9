"""Which replies are flagged as repeated or garbled, and which ordinary ones are not."""

from __future__ import annotations

import time

import pytest

from uirl.viewer.flags import flags_of, flags_of_reply

ORDINARY = [
    "",
    "ok",
    '{"action":"click","target":"green","x":41,"y":15}',
    "I see a login form. I will type the name into the first field, then press the button below it.",
    "使用click按钮打开设置，然后选择Wi-Fi。",
    "Нажму кнопку OK, затем введу пароль.",
    "- [ ] milk\n- [ ] bread\n- [ ] eggs\n- [ ] butter",
    "😀 done ✓",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_replies_have_no_flag(text):
    assert flags_of_reply(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "I will click. " * 12,
        "Then: " + "the button, " * 20 + "the bu",  # cut in the middle of a piece
        "a" * 60,
        "press the button. " * 20 + '\n{"action":"click","x":41,"y":15}',  # it came out of it
        "ha" * 40,
        "x = 1\n" * 9 + "x",
        ("first the row, then the column " * 30) + "and so it ends with other words",
        "A long thought of some eighty characters, which is said in full again and again. " * 5,
    ],
)
def test_loops_are_repeated(text):
    assert flags_of_reply(text) == ("repeated",)


@pytest.mark.parametrize(
    "text",
    [
        "\ufffd\ufffd click",
        "click\x00\x01\x02 there",
        "аcтiоn сliсk tаrgеt bυttοn",
        "\ue000\ue001 the",
        "half \ud800 of it",
    ],
)
def test_what_is_no_text_is_garbled(text):
    assert flags_of_reply(text) == ("garbled",)


def test_an_episode_has_the_flags_of_its_replies():
    assert flags_of(["fine", "a" * 60, "\ufffd\ufffd"]) == ("repeated", "garbled")


def test_the_same_reply_three_times_is_repeated():
    assert flags_of(["click", "click", "other", "click"]) == ()
    assert flags_of(["other", "click", "click", "click"]) == ("repeated",)
    assert flags_of(["", "", ""]) == ()  # nothing was said, which is another problem


def test_a_very_long_reply_takes_no_longer_than_its_end():
    texts = ["ab" * 5_000_000, "".join(map(str, range(1_000_000)))]
    clock = time.process_time()
    found = [flags_of_reply(text) for text in texts]
    assert found == [("repeated",), ()]
    assert time.process_time() - clock < 5
