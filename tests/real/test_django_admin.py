"""Django's admin in a real browser, in its sandbox: what is done is what is asked, and nothing else is reached."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from uirl.environments.apps.environment import AppsEnvironment
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.images import screenshot
from uirl.types import Action, Task

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
async def session() -> AsyncIterator[EnvironmentSession]:
    session = EnvironmentSession(AppsEnvironment(split="all"))
    yield session
    await session.close()


async def test_the_demonstrator_solves_tasks_of_several_templates(session: EnvironmentSession) -> None:
    tasks = session.env.tasks()
    assert tasks is not None
    one_each = {task.tags[3]: task for task in random.Random(0).sample(tasks, len(tasks))}
    for seed, template in enumerate(("create", "edit", "edit_where", "delete_where", "find_by", "sum_where")):
        task = one_each[template]
        assert (await play_episode(session, task=task, seed=seed)).success is True, task.id


async def test_the_same_seed_begins_with_the_same_picture(session: EnvironmentSession) -> None:
    (task, *_) = session.env.tasks() or ()
    other = EnvironmentSession(session.env.spawn())
    seen = [await one.reset(task, 7) for one in (session, other, session)]
    assert len({screenshot(one.images[0]).hash for one in seen}) == 1
    assert len({one.text for one in seen}) == 1
    histories = []
    for one in (session, other):  # a page that says when a record was changed, by the app's clock
        env = one.env
        assert isinstance(env, AppsEnvironment)
        await one.reset(Task("apps/django/shop.product/edit_two/stock"), 7)
        changed = 0
        while not changed:
            action = await one.expert_action()
            assert action is not None
            changed = (await one.step(action)).observation.info["changed"]
        key = env._problem.steps[0].key
        seen = await one.step(Action.of("goto", url=f"{env.url}shop/product/{key}/history/"))
        histories.append(screenshot(seen.observation.images[0]).hash)
    assert histories[0] == histories[1]
    await other.close()


async def test_who_signs_out_or_goes_elsewhere_has_solved_nothing(session: EnvironmentSession) -> None:
    env = session.env
    assert isinstance(env, AppsEnvironment)
    await session.reset(None, 3)
    refused = await session.step(Action.of("goto", url="http://127.0.0.1:9/"))
    assert "out of reach" in refused.observation.text
    for path in ("logout/", "password_change/", "auth/user/", "../static/../../app.sqlite", "jsi18n/"):
        result = await session.step(Action.of("goto", url=f"{env.url}{path}"))
        assert result.observation.info["success"] is False
        assert not any(result.observation.info[kind] for kind in ("added", "removed", "changed"))
    ended = await session.step(Action.of("terminate", status="success"))
    assert (ended.terminated, ended.reward, ended.observation.info["success"]) == (True, 0.0, False)
