"""Episodes for plain code: what an adapter that nobody closes leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from uirl.environments.adapters.browsergym import BrowserGymEnvironment
from uirl.environments.adapters.calls import EpisodeThread
from uirl.environments.adapters.gym_env import GymEnv
from uirl.environments.adapters.trl import TRLEnvironmentFactory
from uirl.environments.base import BaseEnvironment
from uirl.environments.screen.environment import ScreenEnvironment

CLOSED: list[BaseEnvironment] = []


class Form(ScreenEnvironment):
    """Says when it is closed."""

    def close(self) -> None:
        CLOSED.append(self)
        super().close()


def gym() -> Any:
    env = GymEnv(Form())
    env.reset(seed=1)
    return env


def browser_gym() -> Any:
    env = BrowserGymEnvironment(Form())
    env.reset(seed=1)
    return env


def trl() -> Any:
    factory = TRLEnvironmentFactory(Form())
    factory().reset(seed=1)
    return factory


@pytest.mark.parametrize("play", [gym, browser_gym, trl])
def test_an_environment_that_is_dropped_ends_its_thread_and_its_instance(play: Callable[[], Any]) -> None:
    owner = play()
    thread: EpisodeThread = owner._thread
    worker = thread._loop._thread
    CLOSED.clear()
    assert worker.is_alive()
    del thread, owner
    gc.collect()
    worker.join(60)
    assert not worker.is_alive()
    assert len(CLOSED) == 1
