"""The nouns as JSON and back."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.pictures import picture
from uirl.environments.remote.protocol.native import WireAction, WireObservation, WireTask, show, write_step
from uirl.environments.remote.server.ui_verifiers import as_png
from uirl.errors import EnvironmentFailure
from uirl.http.wire import whole
from uirl.images import Screenshot, media_type, screenshot
from uirl.runtime.limits import MAX_CALLS
from uirl.runtime.wire import WireError, dumps, loads
from uirl.types import Action, Observation, StepResult, Task, ToolCall, ToolResult

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
words = st.text(st.characters(), max_size=20)  # half surrogate pairs too
objects = st.dictionaries(words, anything, max_size=3)
calls = st.builds(ToolCall, words, objects, words)
actions = st.builds(Action, words, st.lists(calls, max_size=3).map(tuple), words, st.none() | words)
results = st.builds(ToolResult, words, objects, st.booleans(), anything, words, st.floats(0, 1e6))
tasks = st.builds(
    Task, st.text(min_size=1), words, words, objects, st.lists(words, max_size=3).map(tuple), st.none() | st.integers()
)
SHOT = screenshot(picture(3))


def sent(value: Any) -> Any:
    return loads(dumps(value))


def read_action(value: Any) -> Action:
    return WireAction.read(value, "action").to_record()


def read_task(value: Any) -> Task:
    return WireTask.read(value, "task").to_record()


def read_observation(value: Any) -> Observation:
    return WireObservation.read(value, "observation").to_record()


def written(observation: Observation, *, info: bool) -> dict[str, Any]:
    return show(observation, info=info)


@settings(max_examples=30, deadline=None)
@given(actions)
def test_actions_come_back_as_they_were(action: Action) -> None:
    assert read_action(sent(WireAction.of(action).write())) == action


@settings(max_examples=30, deadline=None)
@given(tasks)
def test_tasks_come_back_as_they_were(task: Task) -> None:
    assert read_task(sent(WireTask.of(task).write())) == task
    assert read_task(sent(WireTask.of(task, {"checks"}).write())).checks == {}


@settings(max_examples=30, deadline=None)
@given(words, objects, st.lists(results, max_size=2).map(tuple))
def test_observations_come_back_as_they_were(text: str, info: dict[str, Any], results: tuple[ToolResult, ...]) -> None:
    observation = Observation(text, (SHOT, SHOT), info, results)
    assert read_observation(sent(written(observation, info=True))) == observation
    assert read_observation(sent(written(observation, info=False))).info == {}


def test_the_key_of_a_state_travels_to_a_trainer_alone() -> None:
    seen = Observation("look", state_key="room 3")
    assert read_observation(sent(written(seen, info=True))) == seen
    assert "state_key" not in written(seen, info=False)
    assert "state_key" not in written(Observation("look"), info=True), "older readers know no such field"


def test_what_an_agent_must_not_see_is_not_written() -> None:
    result = StepResult(Observation("x", (), {"answer": 42}), 1.0, True)
    assert write_step(result, 1, graded=True)["reward"] == 1.0
    hidden = write_step(result, 1, graded=False)
    assert hidden["reward"] is None
    assert "info" not in hidden["observation"]


def test_a_picture_that_was_damaged_on_the_way() -> None:
    message = written(Observation("", (SHOT,)), info=False)
    other = base64.b64encode(SHOT.data[:-1] + b"?").decode()
    message["images"][0]["base64"] = other
    with pytest.raises(WireError, match="it was damaged on the way"):
        read_observation(message)
    message["images"][0]["base64"] = "not base64!"
    with pytest.raises(WireError, match=r"images\[0\].base64 is no base64"):
        read_observation(message)


def test_an_action_has_no_more_calls_than_are_meant() -> None:
    call = {"name": "click"}
    assert len(read_action({"tool_calls": [call] * MAX_CALLS}).tool_calls) == MAX_CALLS
    with pytest.raises(WireError, match=r"action\.tool_calls has 101 items; expected at most 100"):
        read_action({"tool_calls": [call] * (MAX_CALLS + 1)})


async def test_pictures_are_looked_at_to_the_last_pixel() -> None:
    png = SHOT.data
    assert (await whole(png, "here")).hash == SHOT.hash
    noise = screenshot(np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)).data
    assert len(noise) > 100_000
    assert (await whole(noise, "here")).data == noise
    bomb = png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:]
    for data in (png[:-60], noise[:-5000], b"", b"Internal Server Error", bomb):
        with pytest.raises(EnvironmentFailure, match="here sent a picture that cannot be used"):
            await whole(data, "here")


def test_other_formats_become_png() -> None:
    import io

    buffer = io.BytesIO()
    SHOT.open().save(buffer, format="JPEG", quality=95)
    jpeg = Screenshot(buffer.getvalue())
    assert (media_type(jpeg.data), media_type(SHOT.data)) == ("image/jpeg", "image/png")
    assert media_type(b"RIFF....WEBP") == "image/webp"
    assert media_type(b"?") == "application/octet-stream"
    assert as_png(SHOT) is SHOT.data
    assert media_type(as_png(jpeg)) == "image/png"
    assert Screenshot(as_png(jpeg)).open().size == SHOT.open().size
