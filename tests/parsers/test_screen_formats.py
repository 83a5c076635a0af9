"""Formats that say actions on a screen in words of others: pyautogui's functions, the computer-use tool."""

from __future__ import annotations

import pytest

from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.actions import ActionSpace
from uirl.parsers import computer, create_parser, pyautogui
from uirl.types import Action

PYTHON, COMPUTER = create_parser("pyautogui"), create_parser("computer")
SPACE = ActionSpace(640, 480, modifiers=True)


def fenced(code: str) -> str:
    return f"I act.\n```python\nimport pyautogui\n{code}\n```\n"


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("pyautogui.click(100, 200)", ui.Click(100, 200)),
        ("pyautogui.click(x=100, y=200, button='right')", ui.Click(100, 200, "right")),
        ("pyautogui.click(1, 2, clicks=3, interval=0.1)", ui.Click(1, 2, "left", 3)),
        ("pyautogui.click(1, 2, 2)", ui.Click(1, 2, "left", 2)),
        ("pyautogui.moveTo(1, 2, duration=0.5)", ui.Move(1, 2)),
        ("pyautogui.moveTo(1, 2)\ntime.sleep(0.5)\npyautogui.click()", ui.Click(1, 2)),
        ("pyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4, button='left')", ui.Drag(1, 2, 3, 4)),
        ("pyautogui.mouseDown(1, 2, button='primary')", ui.MouseButton(1, 2, "left", True)),
        ("pyautogui.mouseUp()", ui.MouseButton(None, None, "left", False)),
        ("pyautogui.write('a\\n```', interval=0.05)", ui.Type("a\n```")),
        ("pyautogui.typewrite(message='a')", ui.Type("a")),
        ("pyautogui.press('Enter')", ui.Keys(("enter",))),
        ("pyautogui.hotkey('ctrl', '+')", ui.Keys(("ctrl", "+"))),
        ("pyautogui.hotkey(['ctrl', 'a'])", ui.Keys(("ctrl", "a"))),
        ("pyautogui.scroll(-5)", ui.Scroll("down", 5)),
        ("pyautogui.hscroll(2, x=3, y=4)", ui.Scroll("right", 2, 3, 4)),
        ("time.sleep(2)", ui.Wait(2.0)),
        ("# later\npyautogui.click(1, 2)  # here", ui.Click(1, 2)),
        ("WAIT", ui.Wait()),
        ("DONE", ui.Terminate("success")),
    ],
)
def test_a_call_of_pyautogui_is_an_action(code: str, action: ui.UIAction) -> None:
    for reply in (code,) if "```" not in code and not code.startswith("#") else ():
        assert SPACE.read(PYTHON.parse(reply)) == action
    read = PYTHON.parse(fenced(code.replace("```", "\\x60\\x60\\x60")))
    assert SPACE.read(read) == action
    assert read.thought == "I act."
    assert PYTHON.parse(PYTHON.render(read)).tool_calls == read.tool_calls


@pytest.mark.parametrize("reply", ["```DONE```", "```\nDONE\n```", "It is done.\nDONE\n"])
def test_words_stand_in_fences_of_any_kind(reply: str) -> None:
    assert SPACE.read(PYTHON.parse(reply)) == ui.Terminate("success")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("pyautogui.click()", "click without a place; expected pyautogui.moveTo(x, y) before it"),
        ("pyautogui.dragTo(3, 4)", "dragTo without a place"),
        ("pyautogui.click(1, 2, clicks=4)", "expected one, two or three clicks"),
        ("pyautogui.click(1, 2, x=3)", "click got 'x' twice"),
        ("pyautogui.press(['a', 'b'])", "expected pyautogui.press('enter')"),
        ("pyautogui.press('a', presses=2)", "press of other than one key"),
        ("pyautogui.scroll(0)", "scroll needs a whole number"),
        ("pyautogui.alert('x')", "no function 'pyautogui.alert'; expected time.sleep or one of click"),
        ("os.system('x')", "unknown module 'os'"),
        ("pyautogui.click(__import__('os').getpid(), 2)", "the arguments of click are not all literals"),
        ("x, y = 1, 2\npyautogui.click(x, y)", "the code holds more than calls"),
        ("for _ in range(3):\n    pyautogui.press('a')", "the code holds more than calls"),
        ("pyautogui.click(1, 2", "no Python: "),
        ("pyautogui.click(1, 1e999)", "expected finite numbers"),
        (f"pyautogui.write('{'a' * pyautogui.LONGEST}')", "expected at most 20000"),
    ],
)
def test_what_is_no_plain_call_is_an_error_and_nothing_runs(code: str, why: str) -> None:
    action = PYTHON.parse(fenced(code))
    assert action.parse_error is not None
    assert why in action.parse_error
    assert action.tool_calls == ()


def test_code_that_is_cut_off_is_an_error() -> None:
    assert (
        PYTHON.parse("```python\npyautogui.moveTo(1, 2)\n").parse_error
        == "the code is not closed; expected ``` behind it"
    )


def test_several_actions_are_several_calls_and_a_screen_takes_one() -> None:
    action = PYTHON.parse(fenced("pyautogui.click(1, 2)\npyautogui.write('a')"))
    assert [call.name for call in action.tool_calls] == ["click", "type"]
    assert SPACE.read(action) == "2 actions in one reply; expected one"


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ('{"action":"left_click","coordinate":[1,2]}', ui.Click(1, 2)),
        ('{"action":"left_click","coordinate":[1,2],"text":"ctrl"}', ui.Click(1, 2, "left", 1, ("ctrl",))),
        ('{"action":"double_click","coordinate":[1,2]}', ui.Click(1, 2, "left", 2)),
        ('{"action":"left_click_drag","start_coordinate":[1,2],"coordinate":[3,4]}', ui.Drag(1, 2, 3, 4)),
        ('{"action":"left_mouse_down"}', ui.MouseButton(None, None, "left", True)),
        ('{"action":"key","text":"ctrl+Page_Down"}', ui.Keys(("ctrl", "pagedown"))),
        ('{"action":"key","keys":["ctrl","c"]}', ui.Keys(("ctrl", "c"))),
        ('{"action":"scroll","coordinate":[1,2],"scroll_direction":"up","scroll_amount":5}', ui.Scroll("up", 5, 1, 2)),
        ('{"action":"wait","duration":2}', ui.Wait(2.0)),
    ],
)
def test_a_call_of_the_computer_is_an_action(call: str, action: ui.UIAction) -> None:
    wrapped = f'I act.\n<tool_call>{{"name":"computer","arguments":{call}}}</tool_call>'
    for reply in (call, f"I act.\n```json\n{call}\n```", wrapped):
        read = COMPUTER.parse(reply)
        assert SPACE.read(read) == action, read.parse_error
        assert COMPUTER.parse(COMPUTER.render(read)).tool_calls == read.tool_calls


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ('{"action":"left_click","coordinate":[1]}', '"coordinate" must be [x,y], got [1]'),
        ('{"action":"left_click","coordinate":"1,2"}', '"coordinate" must be [x,y]'),
        ('{"action":"left_click","coordinate":[1,2],"x":3}', '"x" says again what another argument says'),
        (
            '{"name":"computer","arguments":{"coordinate":[1,2]}}',
            '"action" must be a name, got None; expected one of left',
        ),
    ],
)
def test_a_call_that_says_no_place_is_an_error(reply: str, why: str) -> None:
    action = COMPUTER.parse(reply)
    assert action.parse_error is not None
    assert action.parse_error.startswith(why)


ANY = [
    *(ui.Click(3, 4, button, count) for button, count in ui.CLICKS.values()),
    *(ui.Click(3, 4, "left", 1, ("ctrl", "shift")), ui.Move(3, 4), ui.Drag(1, 2, 3, 4)),
    *(ui.MouseButton(3, 4), ui.MouseButton(3, 4, "right", False), ui.MouseButton()),
    *(ui.Type("a\n'\"\\`é"), ui.Keys(("ctrl", "+")), ui.Keys(("enter",)), ui.HoldKey("shift"), ui.HoldKey("a", False)),
    *(ui.Scroll("up"), ui.Scroll("left", 2, 3, 4), ui.Wait(0.5), ui.Insert("a"), ui.Fill(1, 2, None, "")),
    *(ui.Back(), ui.Goto("http://a/"), ui.SwitchTab(2), ui.AnswerDialog("ok"), ui.Answer("a"), ui.LookAgain()),
    *(ui.Terminate("success"), ui.Terminate("failure"), ui.Select(1, 2, None, ("a", "b"))),
]


@pytest.mark.parametrize("form", ui.FORMATS)
@pytest.mark.parametrize("meant", ANY, ids=repr)
def test_every_action_of_an_expert_is_written_and_read_back(form: ui.ActionFormat, meant: ui.UIAction) -> None:
    parser = create_parser(form)
    text = parser.render(Action(tool_calls=(SPACE.write(meant),), thought="So."))
    assert SPACE.read(parser.parse(text)) == meant


@pytest.mark.parametrize("form", ui.FORMATS)
def test_the_examples_of_a_prompt_are_read_as_they_are_shown(form: ui.ActionFormat) -> None:
    space = ActionSpace(640, 480, format=form)
    for line, name in zip(space.describe().splitlines(), space.names, strict=False):
        example = line.split("  ")[0]
        meant = space.read(create_parser(form).parse(example))
        assert not isinstance(meant, str), (line, meant)
        assert meant.name == name


def test_the_tables_name_actions_of_the_vocabulary() -> None:
    named = {action for action, _ in (*pyautogui.FUNCTIONS.values(), *computer.ACTIONS.values())}
    assert named <= set(ui.ACTIONS)
