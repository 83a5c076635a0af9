"""The published protocol where no recording reaches: servers of the first version, and replies that are no action."""

from __future__ import annotations

import pytest

from tests.environments.mobile_world.playing import TOOLS, act, environment, phones, play_alone
from uirl.environments.mobile_world.mai_ui import system_prompt, tool_words
from uirl.tools import ToolDefinition
from uirl.types import Action, ToolCall, ToolResult


@pytest.mark.parametrize("later", [False, True])
def test_an_app_that_is_not_there_shows_the_screen_again(later: bool) -> None:
    with phones(later=later) as (phone,):
        played = play_alone(
            environment(phone, prompt="mai_ui"),
            [
                act("open", text="Tetris"),
                act("open", text=""),
                act("type", text=""),
                act("terminate", status="success"),
            ],
            "OpenSettingsTask",
        )
        assert [len(result.observation.images) for result in played.results] == [1, 1, 1, 0]
        assert {result.observation.text for result in played.results} == {""}
        sent = [what["app_name"] for path, what in phone.double.told if path == "/step"]
        assert (sent, phone.idle) == (["Tetris"], True)


@pytest.mark.parametrize(
    "action",
    [
        Action("hm", parse_error="no call"),
        Action("", (ToolCall("wait"), ToolCall("wait"))),
        act("fly"),
        act("click"),
        act("system_button", button="menu"),
        act("swipe", direction="in"),
    ],
)
def test_a_reply_that_is_no_action_ends_the_episode_with_its_score(action: Action) -> None:
    with phones() as (phone,):
        played = play_alone(
            environment(phone, prompt="mai_ui"), [act("open", text="Settings"), action], "OpenSettingsTask"
        )
        last = played.results[-1]
        assert (len(played.results), last.terminated, last.reward, phone.idle) == (2, True, 1.0, True)
        assert last.observation.info["unknown"]
        own = play_alone(environment(phone), [act("open", text="Settings"), action], "OpenSettingsTask")
        assert (own.results[-1].done, bool(own.results[-1].observation.text)) == (False, True)


def test_replies_of_the_owner_and_of_tools_are_as_published() -> None:
    with phones() as (phone,):
        env = environment(phone, prompt="mai_ui", mcp=TOOLS, ask_user=False)
        asked = play_alone(env, [act("ask_user", text="Which colour is it?")], "AskColourTask")
        assert asked.results[0].observation.text == "It is teal."
        used = play_alone(env, [act("add", a=19, b=23), act("add", a="x", b=1)], "AddTask")
        told = [result.observation.text for result in used.results]
        assert told[0] == "Tool call result: [{'type': 'text', 'text': '42', 'annotations': None}]"
        assert told[1].startswith("Tool call result: {'result': ")


def test_the_words_of_the_prompt() -> None:
    tool = ToolDefinition("maps", "Karte – 地图", {"type": "object", "properties": {}})
    told = system_prompt([tool], ["Tetris"])
    listed = '{"name": "maps", "description": "Karte – 地图", "inputSchema": {"type": "object", "properties": {}}, '
    assert listed + '"annotations": null}\n\nIf you want' in told
    assert '"SMS","Camera","Tetris"]`.' in told
    assert "MCP" not in system_prompt([])
    assert tool_words(ToolResult("maps", {}, False, "lost")) == (
        "Tool call result: {'result': 'Failed to call tool maps after 5 attempts: lost'}"
    )


def test_a_swipe_to_a_side_begins_in_the_middle() -> None:
    swipes = [act("swipe", direction="left", coordinate=[900, 100]), act("swipe", direction="left", coordinate=[1, 1])]
    with phones() as (phone,):
        play_alone(environment(phone, prompt="mai_ui"), swipes, "OpenSettingsTask")
        sent = [what for path, what in phone.double.told if path == "/step"]
    assert sent == [{"action_type": "swipe", "direction": "left"}] * 2
