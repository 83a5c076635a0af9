"""OpenEnv's own servers, as they were recorded (`record_openenv.py`): our client sends the same, byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.environments.remote.running import running
from tests.originals.openenv_plays import PLAYS, play
from tests.originals.replay import Talk, recording
from uirl.types import Observation, StepResult

pytestmark = pytest.mark.originals


def replayed(name: str) -> tuple[Talk, Observation, list[StepResult], list[Any]]:
    talk = Talk(recording(f"openenv_{name}"))
    with running(talk.app()) as url:
        return talk, *asyncio.run(play(name, url))


def texts(results: list[StepResult]) -> list[str]:
    return [result.observation.text for result in results]


@pytest.mark.parametrize("name", PLAYS)
def test_the_frames_are_those_that_the_original_was_sent(name: str) -> None:
    talk, _, results, _ = replayed(name)
    sent = [frame["text"] for frame in talk.kept["frames"] if frame["from"] == "client"]
    assert (talk.heard, talk.missed) == (sent, [])
    assert len(results) == len(PLAYS[name][1])


def test_echo_lists_its_tools_and_answers_natural_calls() -> None:
    _, _, results, tools = replayed("echo_env")
    assert [tool["function"]["name"] for tool in tools] == ["echo_message", "echo_with_length"]
    answers = [result.observation.tool_results[0] for result in results]
    assert [(answer.name, answer.success) for answer in answers] == [
        ("echo_message", True), ("echo_with_length", True), ("echo_message", False), ("shout", False),
    ]  # fmt: skip
    assert [answer.text for answer in answers[:2]] == ["Grüße", '{"message":"four","length":4}']
    assert "Missing required argument" in answers[2].text
    assert answers[3].text == "Unknown tool: 'shout'"


def test_repl_is_opened_though_it_has_no_state_before_its_reset() -> None:
    talk, first, results, _ = replayed("repl_env")
    refused = next(frame["text"] for frame in talk.kept["frames"] if frame["from"] == "server")
    assert "EXECUTION_ERROR" in refused
    assert "REPL environment initialized" in first.text
    assert '"stdout": "6\\n"' in texts(results)[0]
    assert [result.terminated for result in results] == [False, False, True]


def test_grid_and_maze_say_what_is_no_action() -> None:
    _, _, results, _ = replayed("grid_world_env")
    assert [result.reward for result in results] == [-0.1, -0.1, -0.1, -0.1]  # the worst so far, for what is no action
    assert texts(results)[1].splitlines()[:2] == ["x: 1", "y: 1"]
    assert "Input should be 'UP', 'DOWN', 'LEFT' or 'RIGHT'" in texts(results)[3]
    _, _, results, _ = replayed("maze_env")
    assert [result.reward for result in results] == [-0.75, -0.05, -0.75]
    assert "action: Input should be a valid integer" in texts(results)[2]


def test_a_move_that_connect4_forbids_ends_the_game() -> None:
    _, first, results, _ = replayed("connect4_env")
    assert "legal_actions: [0, 1, 2, 3, 4, 5, 6]" in first.text
    assert [(result.reward, result.terminated) for result in results] == [(0.0, False), (0.0, False), (-1.0, True)]


def test_coding_takes_the_reply_as_code() -> None:
    _, _, results, _ = replayed("coding_env")
    assert texts(results) == ["stdout: 42\n\nexit_code: 0", "stdout: 20\n\nexit_code: 0", "stdout: 21\nexit_code: 0"]
