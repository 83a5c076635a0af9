"""A pytest plug-in that shakes the tests, to find those that pass only while everything happens in step.

    SHAKE=1 python -m pytest -p tests.shaken tests/environments/remote

Event loops stall, requests wait and threads give way at moments drawn from SHAKE and the test's name. A test that names
the third call of three concurrent episodes, or that takes 0.3 s for long enough, fails here within a few seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from asyncio import base_events
from typing import Any

import httpx
import pytest

STALL = 0.02
"""Seconds, the longest that a loop stands still; one turn of the loop in thirty does."""
WAIT = 0.06
"""Seconds, the longest that a request waits before it is sent; most wait far less."""

_draw = random.Random()
_turn = base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]
_send = httpx.AsyncClient.send
_sleep = asyncio.sleep  # the real one, also in a test that replaces it


def _stalling_turn(loop: asyncio.AbstractEventLoop) -> None:
    if _draw.random() < 1 / 30:
        time.sleep(_draw.uniform(0, STALL))
    _turn(loop)


async def _waiting_send(client: httpx.AsyncClient, *given: Any, **named: Any) -> httpx.Response:
    await _sleep(_draw.random() ** 3 * WAIT)
    return await _send(client, *given, **named)


def pytest_configure(config: pytest.Config) -> None:
    base_events.BaseEventLoop._run_once = _stalling_turn  # type: ignore[attr-defined]
    httpx.AsyncClient.send = _waiting_send  # type: ignore[method-assign, assignment]
    sys.setswitchinterval(0.0005)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _draw.seed(f"{os.environ.get('SHAKE', '0')} {item.nodeid}")
