"""A real app in a real browser: its demonstrator solves what is asked, and who breaks it has lost."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from uirl.environments.apps.environment import AppsEnvironment
from uirl.environments.apps.process import shared_server
from uirl.environments.conformance import check_environment
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.types import Action, Task

NOTES = str(Path(__file__).parent / "notes")
together = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def session() -> AsyncIterator[EnvironmentSession]:
    session = EnvironmentSession(AppsEnvironment(app=NOTES, split="all"))
    yield session
    await session.close()


def one_of_each(env: AppsEnvironment) -> list[Task]:
    """Return a task of each template."""
    return list({task.tags[3]: task for task in env.tasks()}.values())


def ask(url: str, session: str) -> str:
    """Return what the app answers to somebody who knows the name of a session, or guesses it."""
    request = urllib.request.Request(url, headers={"X-Uirl-Session": session})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


@together
async def test_the_demonstrator_solves_every_template_and_laziness_none(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    tasks = one_of_each(env)
    assert len(tasks) == 15
    for seed, task in enumerate(tasks):
        played = await play_episode(session, task=task, seed=seed)
        assert (played.success, played.total_reward) == (True, 1.0), task.id
    for task in (tasks[0], tasks[-1]):
        lazy = await play_episode(session, lambda turn: Action.of("answer", text="0"), task=task, seed=0)
        assert (lazy.success, lazy.total_reward, len(lazy.actions)) == (False, 0.0, 1), task.id


@together
async def test_the_demonstrator_writes_the_numbers_of_marks(session: EnvironmentSession) -> None:
    env = AppsEnvironment(app=NOTES, split="all", marks=True, picture=False, tree=2000)
    marked = EnvironmentSession(env)
    task = next(task for task in env.tasks() if task.tags[3] == "create")
    played = await play_episode(marked, task=task, seed=3)
    await marked.close()
    assert played.success is True
    assert all("mark" in action.tool_calls[0].arguments for action in played.actions)


@together
async def test_more_than_was_asked_is_no_success(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    task = Task("apps/notes/plain.note/delete/-")
    await session.reset(task, 0)
    (_, gone), *_ = env._problem.wanted.removed
    other = gone % 5 + 1
    for key in (other, gone):
        await session.step(Action.of("goto", url=f"{env.url}note/{key}/delete"))
        x, y = env.page_state["submit"]
        result = await session.step(Action.of("click", x=round(x), y=round(y)))
    assert result.observation.info["removed"] == 2
    assert result.observation.info["success"] is False
    assert not result.done


@together
async def test_who_crashes_the_app_has_spent_a_turn_and_the_store_stands(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    neighbour = EnvironmentSession(env.spawn())
    await session.reset(None, 0)
    await neighbour.reset(None, 1)
    result = await session.step(Action.of("goto", url=f"{env.url}crash"))
    assert not result.done
    assert result.observation.info["success"] is False
    await session.step(Action.of("goto", url=env.url))  # a process of its own comes up again
    assert env.page_state["path"] == "/"
    assert (await play_episode(neighbour, seed=1)).success is True
    await neighbour.close()


@together
async def test_the_store_of_a_session_is_nobody_elses(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    await session.reset(None, 0)

    assert env._session is not None
    assert "href=/note/1" in await asyncio.to_thread(ask, f"{env.url}note/", env._session.folder.name)
    for name in ("", "template", "0" * 32, "../template"):
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            await asyncio.to_thread(ask, f"{env.url}note/", name)


@together
async def test_an_app_reads_no_file_of_the_machine_and_has_no_network(
    session: EnvironmentSession, tmp_path: Path
) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    await session.reset(None, 0)
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert env._session is not None
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        asked = f"{env.url}spy?port={port}&file={secret}&file=/etc/passwd&file=/root/.bashrc&file={__file__}"
        told = await asyncio.to_thread(ask, asked, env._session.folder.name)
    assert told == "no file, no file, no file, no file, no network"


@together
async def test_an_ended_episode_leaves_neither_folder_nor_process(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    for seed in range(3):
        await session.reset(None, seed)
    server = shared_server(NOTES)
    others = {folder.name for folder in server.root.iterdir()} - {"template"}
    assert env._session is not None
    assert others == {env._session.folder.name}


@together
async def test_a_neighbour_that_sends_nothing_holds_nobody_up(session: EnvironmentSession) -> None:
    server = await asyncio.to_thread(shared_server, NOTES)
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as half:
        half.sendall(b"GET / HTTP/1.1\r\n")
        assert (await play_episode(session, seed=2)).success is True


def test_it_keeps_the_contract() -> None:
    report = check_environment(AppsEnvironment(app=NOTES, max_turns=12, tags=("find",)), episodes=1)
    assert report.expert_success == 1.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"app": "nowhere"}, "no app 'nowhere'"),
        ({"app": NOTES, "tags": ["edits"]}, "did you mean 'edit'"),
        ({"app": NOTES, "split": "train", "tags": ["replace"]}, "none of the tasks of the split 'train'"),
    ],
)
def test_what_is_not_there_is_refused(options: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AppsEnvironment(**options)
