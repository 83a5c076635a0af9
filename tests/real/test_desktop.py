"""Real programs on a real X desktop: the same instance looks the same, and only what was asked for is a success."""

from __future__ import annotations

import asyncio
import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from uirl.environments.conformance import check_environment
from uirl.environments.desktop.environment import DesktopEnvironment
from uirl.environments.desktop.options import DesktopOptions
from uirl.environments.desktop.session import Desktop
from uirl.environments.desktop.tasks import draw, read_sheet, table, write_sheet
from uirl.environments.desktop.x11 import DisplayLost
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.images import screenshot
from uirl.parsers import create_parser
from uirl.types import Action, Task, ToolCall

pytestmark = pytest.mark.real
DONE = Action.of("terminate", status="success")


async def test_the_expert_solves_every_task_and_an_agent_that_does_nothing_none() -> None:
    names = list(table())

    async def play() -> None:
        session = EnvironmentSession(DesktopEnvironment())
        while names:
            task = Task(f"desktop/{names.pop()}")
            played = await play_episode(session, task=task, seed=1)
            assert played.success is True, (task.id, played.results[-1].observation.info)
            idle = await play_episode(session, lambda turn: DONE, task=task, seed=1)
            assert (idle.success, idle.total_reward) == (False, 0.0), task.id
        await session.close()

    await asyncio.gather(*(play() for _ in range(4)))


@pytest.mark.parametrize("form", ["pyautogui", "computer"])
async def test_the_expert_solves_a_task_in_words_of_another_format(form: str) -> None:
    session = EnvironmentSession(DesktopEnvironment(tasks=("files-rename",), action_format=form))
    assert session.env.action_format == form
    parser = create_parser(form)
    await session.reset(seed=1)
    result, replies = None, []
    while result is None or not result.terminated:
        action = await session.expert_action()
        assert action is not None
        replies.append(parser.render(action))
        result = await session.step(parser.parse(replies[-1]))
    await session.close()
    assert result.observation.info["success"] is True, replies
    told = session.env.get_prompt_prefix()
    assert {"pyautogui": "pyautogui.click(", "computer": '{"action":"left_click","coordinate":['}[form] in told


async def test_a_button_is_held_where_the_pointer_is() -> None:
    env = DesktopEnvironment(tasks=("calculator-press",), jitter=0)
    env.reset(seed=1)
    action = env.expert_action()
    assert action is not None
    for turn in (ToolCall("move", dict(action.tool_calls[0].arguments)), ToolCall("mouse_down"), ToolCall("mouse_up")):
        env.step(Action(tool_calls=(turn,)))
    result = env.step(DONE)
    env.close()
    assert result.observation.info["success"] is True


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([], None),
        ([Action.of("type", text="x")], "work is not saved"),
        ([Action.of("keys", keys="ctrl+o"), Action.of("wait", seconds=0.5)], "a dialog is open"),
        ([Action.of("type", text="x"), Action.of("keys", keys="ctrl+s")], "does not hold what was asked for"),
    ],
)
async def test_what_is_done_beside_the_task_fails_it(more: list[Action], reason: str | None) -> None:
    session = EnvironmentSession(DesktopEnvironment(tasks=("editor-empty",)))
    await session.reset(seed=2)
    for _ in range(3):
        action = await session.expert_action()
        assert action is not None
        await session.step(action)
    for action in more:
        await session.step(action)
    result = await session.step(DONE)
    await session.close()
    assert result.observation.info["success"] is (reason is None)
    assert reason is None or reason in result.observation.info["reason"]


def test_another_file_that_changes_fails_the_task() -> None:
    instance = draw("files-rename", random.Random(1))
    home = {path: content.encode() for path, content in instance.want.items() if isinstance(content, str)}
    assert instance.problem(home, []) is None
    assert instance.problem({**home, ".cache/x": b""}, []) is None
    assert instance.problem({**home, "Documents/more.txt": b""}, []) == "'Documents/more.txt' should not be there"
    assert instance.problem({**home, "Documents/Old/list.txt": b"2"}, []) is not None
    assert instance.problem({**home, "Documents/Old/list.txt": None}, []) is not None
    assert instance.problem({p: c for p, c in home.items() if "Old" not in p}, []) is not None


def test_a_sheet_is_read_by_its_cells_and_nonsense_is_none() -> None:
    cells = {"A1": "apple", "B2": "7", "C3": "=SUM(A1:B2)"}
    assert read_sheet(write_sheet(cells).encode()) == cells
    assert read_sheet(gzip.compress(write_sheet(cells).encode())) == cells
    for content in (b"", b"<a", b"\x1f\x8b", gzip.compress(b"x")[:-3], b'<!DOCTYPE a [<!ENTITY b "c">]><a>&d;</a>'):
        with pytest.raises(ValueError, match="no file of gnumeric"):
            read_sheet(content)


def test_it_keeps_the_contract_of_environments() -> None:
    actions = [Action.of("click", x=300, y=200), Action.of("keys", keys="ctrl+a"), Action.of("type", text="x")]
    check_environment(DesktopEnvironment(tasks=("editor-append", "calculator-add"), max_turns=8), actions=actions)


async def test_a_seed_makes_the_same_picture_and_another_one_another() -> None:
    seen = []
    for seed in (1, 1, 2):
        env = DesktopEnvironment(tasks=("files-rename",))
        seen.append(screenshot(env.reset(seed=seed).images[0]).hash)
        env.close()
    assert seen[0] == seen[1] != seen[2]


def test_a_program_that_does_not_start_is_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    whole = Desktop.open

    def fails_at_first(self: Desktop, program: str, *paths: str, place: tuple[int, int]) -> None:
        opened.append(program)
        if len(opened) == 1:
            raise DisplayLost("no window")
        whole(self, program, *paths, place=place)

    monkeypatch.setattr(Desktop, "open", fails_at_first)
    env = DesktopEnvironment(tasks=("files-rename",))
    assert env.reset(seed=1).images
    assert opened == ["pcmanfm", "pcmanfm"]
    env.close()


def test_the_block_of_the_guide_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "desktop.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], names := dict[str, Any]())
    assert names["result"].observation.images


BASE = {"tasks": ("calculator-press",), "jitter": 0}
ADD = {"tasks": ("calculator-add",)}
SHOWN = {
    "tasks": (ADD, {}),
    "width": ({"width": 800}, {}),
    "height": ({"height": 600}, {}),
    "crop": ({"crop": (50, 30, 380, 390)}, {}),
    "image_size": ({"image_size": 64}, {}),
    "actions": ({"actions": ("click", "wait")}, {}),
    "coordinates": ({"coordinates": "grid_999"}, {}),
    "action_format": ({"action_format": "pyautogui"}, {}),
    "say_target": ({"say_target": True}, {}),
    "jitter": ({"jitter": 90}, {}),
    "max_turns": ({"max_turns": 1}, {}),
    "demonstrator": ({**ADD, "demonstrator": "careless"}, ADD),
    "carelessness": ({**ADD, "demonstrator": "careless", "carelessness": 1.0}, {**ADD, "demonstrator": "careless"}),
}
"""Option -> options with it, and options beside which it can be seen."""


async def test_every_option_changes_what_can_be_seen() -> None:
    async def seen(options: dict) -> tuple:
        session = EnvironmentSession(DesktopEnvironment(**{**BASE, **options}))
        play = await play_episode(session, seed=1)
        await session.close()
        return play.first.text, play.first.images[0].hash, play.actions, session.env.get_prompt_prefix()

    assert SHOWN.keys() == DesktopOptions.model_fields.keys()
    before = await seen({})
    for name, (options, beside) in SHOWN.items():
        assert await seen(options) != (await seen(beside) if beside else before), name
