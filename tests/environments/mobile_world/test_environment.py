"""Episodes on phones: what is sent, what is seen, what is paid, and that every task is torn down."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest
from PIL import Image

from tests.environments.mobile_world.playing import (
    DONE,
    SOLUTIONS,
    TOOLS,
    act,
    environment,
    phones,
    play,
    play_alone,
    tap,
)
from tests.tools.test_mcp import SCRIPT
from uirl.environments import check_environment, create_environment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.parsers import create_parser
from uirl.tools import MCPServer
from uirl.types import Action, Task


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_every_task_can_be_solved(name: str) -> None:
    with phones() as (phone,):
        played = play_alone(environment(phone, mcp=TOOLS), SOLUTIONS[name], name)
        assert [result.reward for result in played.results] == [0.0] * (len(played.results) - 1) + [1.0]
        assert played.success is True
        assert played.done
        assert phone.double.begun == 1
        assert phone.idle


def test_what_an_episode_asks_of_the_server() -> None:
    with phones() as (phone,):
        env = environment(phone)
        for _ in range(2):
            play_alone(env, SOLUTIONS["OpenSettingsTask"], "OpenSettingsTask")
        task = "OpenSettingsTask"
        episode = [
            ("/task/init", task),
            ("/step", {"action_type": "click", "x": 270, "y": 900}),
            ("/task/eval", task),
            ("/task/tear_down", task),
        ]
        # the suite and the device once, whoever plays
        assert phone.double.told == [
            ("/suite_family/switch", "mobile_world"), ("/init", "emulator-5554"), *episode, *episode
        ]  # fmt: skip


def test_what_the_policy_sees() -> None:
    with phones() as (phone,):
        env = environment(phone, mcp=TOOLS)
        played = play_alone(env, SOLUTIONS["SendMessageTask"], "SendMessageTask")
        assert played.first.text == "Send Anna the message: on my way"
        pictures = [observation.images for observation in played.observations]
        assert [len(images) for images in pictures] == [1, 1, 1, 1, 1, 0]
        assert pictures[0][0].open().size == (1080, 2400)
        assert len({images[0].hash for images in pictures[:-1]}) == 5
        assert all(observation.text == "" for observation in played.observations[1:])
        # a reply of the user or of a tool stands in place of a picture
        asked = play_alone(env, SOLUTIONS["AskColourTask"], "AskColourTask").observations[1]
        assert (asked.text, asked.images) == ("The owner replied:\nIt is teal.", ())
        added = play_alone(env, SOLUTIONS["AddTask"], "AddTask").observations[1]
        assert (added.text, added.images) == ("add answered:\n42", ())
        refused = play_alone(env, [act("add", a="x")], "AddTask").observations[1]
        assert refused.text.startswith("add refused:\n")


def test_small_pictures_of_the_same_places() -> None:
    with phones() as (phone,):
        played = play_alone(environment(phone, image_size=[90, 200]), SOLUTIONS["FindZoeTask"], "FindZoeTask")
        assert played.first.images[0].open().size == (90, 200)
        assert played.success is True


def test_a_mistake_is_told_and_nothing_is_sent() -> None:
    mistakes = [
        Action("hm", parse_error="no call was found"),
        act("click", coordinate=[12000, 3]),
        act("type", text=""),
        act("open", text="Tetris"),
        act("add", a=1, b=2),
        act("system_button", button="menu"),
    ]
    with phones() as (phone,):
        played = play_alone(environment(phone), [*mistakes, DONE], "OpenSettingsTask")
        told = [observation.text for observation in played.observations[1:-1]]
        assert told[0] == "no call was found"
        assert all(told)
        assert all(observation.images == () for observation in played.observations[1:-1])
        assert [path for path, _ in phone.double.told if path == "/step"] == []
        assert played.results[-1].reward == 0.0
        assert played.success is False


@pytest.mark.parametrize(
    ("actions", "reward", "info"),
    [
        ([act("terminate", status="fail")], 0.0, {"claimed": "failure"}),
        ([act("answer", text="none")], 0.0, {}),
        ([tap(270, 900), tap(1, 1)], 1.0, {"out_of_turns": True}),
        ([tap(270, 900), Action(parse_error="?")], 1.0, {"out_of_turns": True}),
    ],
)
def test_the_score_is_paid_at_the_end_however_it_comes(actions: list[Action], reward: float, info: Any) -> None:
    with phones() as (phone,):
        played = play_alone(environment(phone, max_turns=2), actions, "OpenSettingsTask")
        last = played.results[-1]
        assert (last.terminated, last.truncated, last.reward) == (True, False, reward)
        assert last.observation.text == ""
        where = "Settings" if reward else "home"
        assert last.observation.info == {"success": reward == 1.0, "score": reward, "reason": where, **info}
        assert phone.idle


def test_part_of_a_score_is_no_success() -> None:
    actions = [act("open", text="SMS"), tap(400, 2200), act("type", text="hi"), act("system_button", button="enter")]
    with phones() as (phone,):
        played = play_alone(environment(phone), [*actions, DONE], "SendMessageTask")
        assert played.total_reward == 0.5
        assert played.success is False


def test_tasks_are_chosen_by_names_tags_and_apps() -> None:
    with phones() as (phone,):

        def names(**options: Any) -> set[str]:
            return {task.id for task in environment(phone, **options).tasks()}

        plain = {"OpenSettingsTask", "SendMessageTask", "ReadClockTask", "FindZoeTask", "AskColourTask"}
        assert names() == plain
        assert names(mcp=TOOLS) == plain | {"AddTask"}
        assert names(ask_user=False) == plain - {"AskColourTask"}
        assert names(apps=["Settings", "Contacts"]) == {"OpenSettingsTask", "FindZoeTask", "AskColourTask"}
        assert names(tags=["lang-en", "agent-mcp"], mcp=TOOLS) == {"AddTask"}
        assert names(without_tags=["agent-user-interaction"]) == plain - {"AskColourTask"}
        assert names(task_names=["FindZoeTask"]) == {"FindZoeTask"}
        (task,) = environment(phone, task_names=["SendMessageTask"]).tasks()
        assert task == Task("SendMessageTask", "mobile_world", tags=("lang-en", "app:SMS", "app:Contacts"))
        with pytest.raises(ConfigError, match=r"'AddTask' is not among them.*option mcp"):
            names(task_names=["AddTask"])
        with pytest.raises(ConfigError, match="none is left"):
            names(tags=["lang-fr"])


def test_without_a_task_the_seed_chooses() -> None:
    with phones() as (phone,):
        env = environment(phone)

        async def goals(seeds: range) -> list[str]:
            session = EnvironmentSession(env.spawn())
            try:
                return [(await session.reset(seed=seed)).text for seed in seeds]
            finally:
                await session.close()

        first = asyncio.run(goals(range(12)))
        assert first == asyncio.run(goals(range(12)))
        assert len(set(first)) > 2
        assert phone.idle


def test_a_goal_of_ones_own() -> None:
    with phones() as (phone,):

        async def goal() -> str:
            session = EnvironmentSession(environment(phone))
            try:
                return (await session.reset(Task("OpenSettingsTask", goal="Go to the settings, please."))).text
            finally:
                await session.close()

        assert asyncio.run(goal()) == "Go to the settings, please."


def test_the_prompt_names_what_there_is() -> None:
    with phones() as (phone,):
        env = environment(phone, mcp=TOOLS, more_apps=["Sudoku"])
        words = env.get_prompt_prefix()
        assert "ask_user" in words
        assert "Sudoku" in words
        assert "Adds two numbers" not in words
        assert "ask_user" not in environment(phone, ask_user=False).get_prompt_prefix()

        async def during(task: str) -> str:
            session = EnvironmentSession(env.spawn())
            try:
                await session.reset(Task(task))
                return session.env.get_prompt_prefix()
            finally:
                await session.close()

        assert "Adds two numbers" in asyncio.run(during("AddTask"))
        assert asyncio.run(during("ReadClockTask")) == words


def test_a_number_in_place_of_the_text_is_the_answer_on_the_last_turn() -> None:
    reply = '<thinking>42</thinking><tool_call>{"arguments": {"action": "answer", "text": 42}}</tool_call>'
    with phones() as (phone,):
        env = environment(phone, mcp=TOOLS, max_turns=1)
        played = play_alone(env, [create_parser("mai_ui").parse(reply)], "AddTask")
        assert played.success is True


def test_tools_of_a_real_mcp_server() -> None:
    command = [sys.executable, SCRIPT, "stdio"]  # it has a tool 'wait', which only a prefix tells from the action
    actions = [act("math_add", a=19, b=23), act("answer", text="42")]
    with phones() as (phone,), MCPServer(command, prefix="math_") as server:
        for mcp in ({"ADDER": server}, {"adder": {"command": command, "prefix": "math_"}}):
            played = play_alone(environment(phone, mcp=mcp), actions, "AddTask")
            assert played.observations[1].text == "math_add answered:\n42"
            assert played.success is True


def test_an_mcp_tool_with_the_name_of_an_action() -> None:
    def click() -> str:
        """Not a finger."""
        return ""

    with phones() as (phone,), pytest.raises(ConfigError, match="is an action of the phone"):
        play_alone(environment(phone, mcp={"adder": [click]}), [DONE], "AddTask")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_turns": 0}, r"mobile_world\.max_turns: got 0, expected whole number >= 1"),
        ({"urls": ["http://a", "http://a/"]}, "named twice"),
        ({"mcp": {"a": {"address": "x"}}}, "mcp.a has no option 'address'"),
        ({"mcp": {"a": 3}}, "expected a mapping with url or command"),
        ({"mcp": {"a": {"url": "http://x", "token_env": "NO_SUCH_TOKEN"}}}, "NO_SUCH_TOKEN, which is empty"),
        ({"task_timout": 3}, "did you mean 'task_timeout'"),
        ({"suite_seed": 3}, "the tasks of mobile_world take no seed"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create_environment("mobile_world", options)


def test_the_contract_holds() -> None:
    actions = [tap(270, 900), act("swipe", direction="up"), act("jump"), act("ask_user", text="?")]
    with phones(2) as served:
        report = check_environment(environment(*served, max_turns=4, image_size=[45, 100]), episodes=2, actions=actions)
        assert report.seeded
        assert report.turns > 16
        assert all(phone.idle for phone in served)


def test_a_phone_that_is_turned() -> None:
    """Places are of the picture that was shown, whatever its sides."""
    buffer = io.BytesIO()
    Image.new("RGB", (2400, 1080)).save(buffer, format="PNG")
    with phones() as (phone,):
        phone.double.spoil["png"] = buffer.getvalue()
        play_alone(environment(phone), [act("click", coordinate=[500, 500])], "OpenSettingsTask")
        assert ("/step", {"action_type": "click", "x": 1201, "y": 540}) in phone.double.told


def test_several_episodes_share_the_phones_and_wait_for_them() -> None:
    async def run(env: Any) -> list[Any]:
        sessions = [EnvironmentSession(env.spawn()) for _ in range(5)]
        try:
            name = "OpenSettingsTask"
            return await asyncio.gather(*(play(session, SOLUTIONS[name], name) for session in sessions))
        finally:
            for session in sessions:
                await session.close()

    with phones(2) as served:
        env = environment(*served)
        played = asyncio.run(run(env))
        assert [one.success for one in played] == [True] * 5
        assert sum(phone.double.begun for phone in served) == 5
        assert all(phone.double.begun for phone in served)
        assert all(phone.idle for phone in served)
        assert [server.active for server in env.pool.servers] == [0, 0]
