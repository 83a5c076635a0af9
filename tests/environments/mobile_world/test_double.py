"""What the double tells adb, and what it refuses or crashes at as the original does. The rest of it is played in
test_environment.py, test_suites.py and test_faults.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.environments.mobile_world.double import Double, create_app
from tests.environments.remote.running import running
from tests.patience import PATIENCE

DEVICE = "emulator-5554"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[httpx.Client, Double]]:
    double = Double()
    with running(create_app(double)) as url, httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        yield http, double


def step(http: httpx.Client, **action: Any) -> httpx.Response:
    return http.post("/step", json={"device": DEVICE, "action": action})


def about(task: str) -> dict[str, str]:
    return {"task_name": task, "req_device": DEVICE}


def evaluate(http: httpx.Client, task: str) -> httpx.Response:
    return http.request("GET", "/task/eval", json=about(task))


def test_what_reaches_adb(served: tuple[httpx.Client, Double]) -> None:
    http, double = served
    http.post("/task/init", json=about("OpenSettingsTask"))
    for action, command in (
        ({"action_type": "click", "x": 10.6, "y": 3.4}, "input tap 11 3"),
        ({"action_type": "long_press", "x": 5, "y": 6}, "input swipe 5 6 5 6 1000"),
        ({"action_type": "drag", "start_x": 1, "start_y": 2, "end_x": 3.0, "end_y": 4}, "input swipe 1 2 3 4 400"),
        ({"action_type": "swipe"}, "input swipe 540 1200 540 768 400"),
        ({"action_type": "swipe", "direction": "left", "x": 5, "y": 6}, "input swipe 5 6 -211 6 400"),
        ({"action_type": "scroll", "direction": "down", "x": 1, "y": 1}, "input swipe 540 1200 540 768 400"),
        ({"action_type": "scroll", "direction": "left"}, "input swipe 540 1200 540 768 400"),
        ({"action_type": "input_text", "text": "é"}, "type é"),
        ({"action_type": "keyboard_enter"}, "input keyevent KEYCODE_ENTER"),
        ({"action_type": "open_app", "app_name": "SETTINGS"}, "monkey settings"),
    ):
        assert step(http, **action).status_code == 200, action
        assert double.phone.adb[-1] == command
    double.later = True
    step(http, action_type="scroll", direction="left")
    double.later = False
    assert double.phone.adb[-1] == "input swipe 540 1200 324 1200 400"
    step(http, action_type="double_tap", x=1, y=2)
    assert double.phone.adb[-2:] == ["input tap 1 2"] * 2
    for action, result in (
        ({"action_type": "wait"}, "OK"),
        ({"action_type": "answer", "text": 7}, "OK"),
        ({"action_type": "status", "goal_status": "complete"}, "complete"),
        ({"action_type": "unknown"}, "UNKNOWN_ACTION"),
        ({"action_type": "ask_user", "text": "Which colour?"}, "It is teal."),
    ):
        assert step(http, **action).json()["result"] == result
    assert double.phone.answer == "7"


@pytest.mark.parametrize(
    "action",
    [
        {"action_type": "drag", "start_x": 1.5, "start_y": 2, "end_x": 3, "end_y": 4},
        {"action_type": "scroll", "direction": "sideways"},
        {"action_type": "click", "index": 1, "x": 2, "y": 3},
        {"action_type": "click", "keycode": "HOME"},
        {"action_type": "jump"},
        None,
    ],
)
def test_what_it_does_not_take(served: tuple[httpx.Client, Double], action: Any) -> None:
    answer = served[0].post("/step", json={"device": DEVICE, "action": action} if action else None)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], list)
    assert served[0].post("/step", json={"action": {}}).status_code == 422


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"action_type": "click"}, "int() argument must be"),
        ({"action_type": "input_text", "text": ""}, "cannot access local variable 'ret'"),
        ({"action_type": "input_text"}, "unsupported operand"),
        ({"action_type": "open_app", "app_name": "Tetris"}, "validation error"),
        ({"action_type": "finished"}, "400: unknown action: finished"),
        ({"action_type": "mcp"}, "400: unknown action: mcp"),
        ({}, "400: unknown action: None"),
    ],
)
def test_what_crashes_it(served: tuple[httpx.Client, Double], action: dict[str, Any], words: str) -> None:
    answer = step(served[0], **action)
    assert answer.status_code == 500
    assert words in answer.json()["detail"]


def test_tasks_that_are_not_there_or_not_begun(served: tuple[httpx.Client, Double]) -> None:
    http, _ = served
    http.post("/task/tear_down", json=about("OpenSettingsTask"))
    assert "user_sys_prompt is not configured" in step(http, action_type="ask_user", text="?").json()["detail"]
    assert evaluate(http, "OpenSettingsTask").text == "Internal Server Error"
    torn_down = http.post("/task/tear_down", json=about("X"))
    for answer in (http.get("/task/goal", params={"task_name": "X"}), evaluate(http, "X"), torn_down):
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    said = http.post("/task/init", json=about("X"))
    assert said.json() == {"detail": "Error initializing task: \"Task 'X' not found in registry\""}
    assert http.get("/task/complexity", params={"task_name": "AddTask"}).status_code == 500


def test_an_input_that_fails_says_nothing(served: tuple[httpx.Client, Double]) -> None:
    http, double = served
    http.post("/task/init", json=about("OpenSettingsTask"))
    double.spoil["adb"] = True
    for action in (
        {"action_type": "click", "x": 1, "y": 2},
        {"action_type": "double_tap", "x": 1, "y": 2},
        {"action_type": "scroll", "direction": "up"},
        {"action_type": "input_text", "text": "a"},
        {"action_type": "open_app", "app_name": "SMS"},
        {"action_type": "drag", "start_x": 1, "start_y": 2, "end_x": 3, "end_y": 4},
        {"action_type": "navigate_home"},
    ):
        answer = step(http, **action)
        assert (answer.status_code, answer.json()["result"]) == (200, "")
    assert (double.phone.adb, double.phone.screen) == ([], "home")
    assert step(http, action_type="wait").json()["result"] == "OK"
    double.spoil.clear()
