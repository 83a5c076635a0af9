"""Questions about synthetic screens, and which replies are right."""

from __future__ import annotations

import json
from random import Random

import pytest

from uirl.environments.ui.actions import ActionSpace
from uirl.environments.ui.vocabulary import Answer, Click
from uirl.inference.grounding.questions import Question, click, questions
from uirl.inference.grounding.screens import screen
from uirl.types import ToolCall


def asked(count: int = 200) -> list[tuple[int, Question]]:
    return [(i, q) for i in range(count) for q in questions(screen(0, i), Random(i), 8)]


def test_every_answer_is_an_action_of_ours_and_is_right() -> None:
    for i, question in asked():
        width, height = screen(0, i).picture.size
        space = ActionSpace(width, height, ("click", "answer"))
        reply = json.loads(question.reply)
        action = space.read_call(ToolCall(reply.pop("action"), reply))
        assert isinstance(action, Click if question.boxes else Answer), action
        assert question.right(question.reply)


def test_questions_are_a_function_of_screen_and_seed() -> None:
    assert asked(30) == asked(30)


def test_every_thing_that_is_called_so_counts() -> None:
    for i, question in asked():
        if '"' in question.text and question.boxes:
            said = question.text.split('"')[1]
            meant = [t for t in screen(0, i).elements if t.label == said]
            assert set(question.boxes) <= {t.box for t in meant}
            if len({t.kind for t in meant}) == 1:
                assert set(question.boxes) == {t.box for t in meant}


def test_no_more_questions_than_wanted_and_all_kinds() -> None:
    assert all(len(questions(screen(0, i), Random(i), 3)) <= 3 for i in range(50))
    assert len({q.kind for _, q in asked(400)}) == 15  # 14 kinds of things, and reading


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ('{"action":"click","x":10,"y":20}', True),
        ('{"action":"click","x":19,"y":29}', True),
        ('{"action":"click","x":20,"y":29}', False),  # right and bottom are outside
        ('{"action":"click","x":9,"y":20}', False),
        ('{"action":"click","x":12}', False),
        ('{"action":"answer","x":12,"y":22}', False),
        ('{"action":"click","x":"12","y":22}', False),
        ("12 22", False),
        ("[12, 22]", False),
        ("", False),
    ],
)
def test_a_click_is_right_inside_a_box(reply: str, right: bool) -> None:
    question = Question("press OK", click((15, 25)), "button", (15, 25), ((10, 20, 20, 30),))
    assert question.right(reply) is right


def test_what_was_read_must_be_the_same_words() -> None:
    question = Question("Read 1,2", '{"action":"answer","text":"Save"}', "read", (1, 2))
    assert question.right('{"action":"answer","text":"Save"}')
    assert not question.right('{"action":"answer","text":"save"}')
    assert not question.right('{"action":"click","x":1,"y":2}')
