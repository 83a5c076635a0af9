"""The single-session server of ui-verifiers, as it was recorded (`record_ui_verifiers.py`): we ask it the same."""

from __future__ import annotations

import asyncio

import pytest

from tests.environments.remote.running import running
from tests.originals.replay import Desk, recording
from tests.originals.ui_verifiers_plays import play

pytestmark = pytest.mark.originals


def test_the_requests_are_those_that_the_original_was_sent() -> None:
    desk = Desk(recording("ui_verifiers")["exchanges"])
    with running(desk.app()) as url:
        first, results = asyncio.run(play(url))
    assert desk.asked == [(one["method"], one["path"], one["query"]) for one in desk.kept]
    assert first.images[0].open().size == (1280, 800)
    assert [result.reward for result in results] == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    last = results[-1]
    assert (last.terminated, last.observation.info["submitted_row_indices"]) == (True, [0, 1])
