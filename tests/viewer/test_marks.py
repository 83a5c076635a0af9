"""Where the calls of all action vocabularies point, in pixels."""

from __future__ import annotations

import pytest

from uirl.viewer.marks import Mark, marks_of


@pytest.mark.parametrize(
    ("name", "arguments", "mark"),
    [
        ("click", {"x": 5, "y": 6}, Mark("click", ((5, 6),), None)),
        ("click", {"x": 5.5, "y": 6, "target": "ok"}, Mark("click", ((5.5, 6),), None)),
        ("double_click", {"x": 5, "y": 6}, Mark("click", ((5, 6),), "double_click")),
        ("click", {"mark": 3}, Mark("click", (), "mark 3")),
        ("drag", {"x": 1, "y": 2, "to_x": 3, "to_y": 4}, Mark("drag", ((1, 2), (3, 4)), None)),
        ("drag", {"start_coordinate": [1, 2], "end_coordinate": [3, 4]}, Mark("drag", ((1, 2), (3, 4)), None)),
        ("long_press", {"coordinate": [7, 8]}, Mark("click", ((7, 8),), "long_press")),
        ("click", {"coordinate": [10, 20, 30, 40]}, Mark("click", ((20, 30),), None)),
        ("type", {"text": "hello"}, Mark("type", (), "hello")),
        ("fill", {"x": 1, "y": 2, "value": "v"}, Mark("type", ((1, 2),), "v")),
        ("keys", {"keys": "ctrl+a"}, Mark("key", (), "ctrl+a")),
        ("system_button", {"button": "back"}, Mark("key", (), "back")),
        ("scroll", {"direction": "down", "amount": 3, "x": 9, "y": 9}, Mark("scroll", ((9, 9),), "down 3")),
        ("swipe", {"direction": "up"}, Mark("scroll", (), "up")),
        ("swipe", {"x": 1, "y": 2, "to_x": 3, "to_y": 4}, Mark("drag", ((1, 2), (3, 4)), "swipe")),
        ("somewhere_else", {"x": 1, "y": 2}, Mark("click", ((1, 2),), "somewhere_else")),
    ],
)
def test_a_call_is_a_mark(name, arguments, mark):
    assert marks_of([(name, arguments)], (100, 100)) == [mark]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("wait", {}), ("click", {}), ("click", {"x": "5", "y": None}), ("click", {"x": True, "y": 1}),
     ("click", {"x": float("nan"), "y": 1}), ("click", {"coordinate": [1]}), ("calculate", {"text": "1 + 1"})],
)  # fmt: skip
def test_what_points_nowhere_is_none(name, arguments):
    assert marks_of([(name, arguments)], (100, 100)) == []


@pytest.mark.parametrize("far", [10**400, 1e308, -1e308, 2e9], ids=["whole", "high", "low", "near"])
@pytest.mark.parametrize("grid", [None, 999])
def test_a_number_that_no_picture_has_is_no_place(far, grid):
    assert marks_of([("click", {"x": far, "y": 1})], (1080, 2400), grid) == []
    assert marks_of([("drag", {"coordinate": [5, far], "text": "a"})], (1080, 2400), grid) == [Mark("drag", (), None)]


def test_a_grid_is_that_of_the_action_space():
    from uirl.environments.ui.actions import ActionSpace
    from uirl.types import ToolCall

    space = ActionSpace(1080, 2400, coordinates="grid_999")
    for x, y in [(0, 0), (1, 998), (500, 500), (999, 999)]:
        click = space.read_call(ToolCall("click", {"x": x, "y": y}))
        (mark,) = marks_of([("click", {"x": x, "y": y})], (1080, 2400), 999)
        assert mark.places == ((click.x, click.y),)


def test_a_grid_needs_the_size_of_the_picture():
    assert marks_of([("click", {"x": 5, "y": 6})], None, 999) == [Mark("click", (), None)]
