"""Every shape that an environment may return, and nonsense that says what was expected."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.environments.answering import KINDS, RED, RED_HASH, Answers, Make, first_turn
from uirl.errors import EnvironmentFailure
from uirl.images import screenshot
from uirl.types import Observation, StepResult


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("answer", "text", "images", "info"),
    [
        ("hello", "hello", 0, {}),
        (("hello", {"a": 1}), "hello", 0, {"a": 1}),
        (Observation("hello", (RED,), {"a": 1}), "hello", 1, {"a": 1}),
        ((Observation("hello", (), {"a": 1, "b": 1}), {"b": 2}), "hello", 0, {"a": 1, "b": 2}),
        (RED, "", 1, {}),
        (np.asarray(RED), "", 1, {}),
        (screenshot(RED), "", 1, {}),
        (screenshot(RED).data, "", 1, {}),
        ({"text": "hello", "image": RED}, "hello", 1, {}),
        ({"text": "hello", "images": [RED, RED]}, "hello", 2, {}),
        (({"image": np.asarray(RED)}, {}), "", 1, {}),
    ],
)
def test_reset_accepts_every_shape(make: Make, answer: Any, text: str, images: int, info: dict[str, int]) -> None:
    observation, _ = first_turn(make(answer))
    assert (observation.text, observation.info) == (text, info)
    assert [image.hash for image in observation.images] == [RED_HASH] * images


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("answer", "terminated", "truncated"),
    [
        (("next", 0.5, False, {}), False, False),
        (("next", np.float32(0.5), np.bool_(True), {"a": 1}), True, False),
        (("next", 0.5, False, True, {}), False, True),
        (("next", 0.5, True, False, {}), True, False),
        (StepResult(Observation("next"), 0.5, terminated=True), True, False),
        (StepResult(Observation("next"), 0.5, truncated=True), False, True),
    ],
)
def test_step_accepts_every_shape(make: Make, answer: Any, terminated: bool, truncated: bool) -> None:
    _, result = first_turn(make("start", answer))
    assert (result.observation.text, result.reward) == ("next", 0.5)
    assert (result.terminated, result.truncated) == (terminated, truncated)
    assert (type(result.reward), type(result.terminated)) == (float, bool)


def test_the_info_of_an_object_of_ones_own_is_read() -> None:
    told = {"observation": Observation("next", info={"a": 1}), "reward": 1.0, "terminated": True, "truncated": False}
    _, result = first_turn(Answers("start", SimpleNamespace(**told, info={"success": np.bool_(True)})))
    assert result.observation.info == {"a": 1, "success": True}
    with pytest.raises(EnvironmentFailure, match=r"None \(NoneType\) as info"):
        first_turn(Answers("start", SimpleNamespace(**told, info=None)))


@pytest.mark.parametrize("make", KINDS)
def test_the_environments_word_on_the_state_is_on_the_observation(make: Make) -> None:
    keys = iter(["first", "second"])
    env = make()
    env.state_key = lambda: next(keys)  # type: ignore[method-assign]
    first, result = first_turn(env)
    assert (first.state_key, result.observation.state_key) == ("first", "second")
    ended = make(on_step=("over", 1.0, True, {}))
    ended.state_key = iter(["first"]).__next__  # type: ignore[method-assign]
    assert first_turn(ended)[1].observation.state_key is None, "after the end nobody acts"
    said = make(on_reset=Observation("start", state_key="from a server"))
    assert first_turn(said)[0].state_key == "from a server"


def test_a_state_key_that_is_no_text_is_a_failure() -> None:
    env = Answers()
    env.state_key = lambda: 3  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(EnvironmentFailure, match=r"Answers.state_key returned 3 \(int\); expected a str"):
        first_turn(env)


def test_info_is_carried_and_success_survives_the_last_step() -> None:
    _, result = first_turn(
        Answers("start", (Observation("end", (), {"seen": 1}), True, True, {"success": np.bool_(True)}))
    )
    assert result.observation.info == {"seen": 1, "success": True}
    assert result.observation.info["success"] is True
    assert result.reward == 1.0


def test_a_picture_is_taken_at_once_and_not_shared() -> None:
    canvas = np.asarray(RED).copy()

    def paint() -> tuple[Any, ...]:
        canvas[:] = 0
        return canvas, 0.0, False, {}

    first, second = first_turn(Answers(lambda: canvas, paint))
    assert first.images[0].hash == RED_HASH
    assert second.observation.images[0].hash != RED_HASH


NONSENSE_STEPS: list[tuple[Any, str]] = [
    (None, "None (NoneType)"),
    ("next", "'next' (str)"),
    (("next", 0.5), "a tuple of 2"),
    (("next", 0.5, False), "a tuple of 3"),
    (("next", 0.5, False, False, {}, {}), "a tuple of 6"),
    (("next", None, False, {}), "the reward None"),
    (("next", math.nan, False, {}), "the reward nan"),
    (("next", math.inf, False, {}), "the reward inf"),
    (("next", "1.0", False, {}), "the reward '1.0' (str)"),
    (("next", -1e300, False, {}), "the reward -1e+300"),  # of float32
    (("next", 10**400, False, {}), "the reward"),
    (("next", 1e30, False, {}), "expected a finite number of at most 1e+15"),  # its square is not
    (("next", np.array([1.0]), False, {}), "the reward array([1.])"),
    (("next", 0.5, None, {}), "None (NoneType) as done"),
    (("next", 0.5, "no", {}), "'no' (str) as done"),
    (("next", 0.5, False, 1, {}), "1 (int) as truncated"),
    (("next", 0.5, False, None), "None (NoneType) as info"),
    (("next", 0.5, False, True), "True (bool) as info"),
    (("next", 0.5, False, {"success": "yes"}), "'yes' (str) as info['success']"),
    ((None, 0.5, False, {}), "None (NoneType) as observation"),
    ((3, 0.5, False, {}), "3 (int) as observation"),
    (({"text": "a", "target": "b"}, 0.5, False, {}), "keys ['text', 'target']"),
    (({"text": 3}, 0.5, False, {}), "3 (int) as observation text"),
    (("a" * 1_000_001, 0.5, False, {}), "an observation of 1000001 characters; expected at most 1000000"),
    (({"images": RED}, 0.5, False, {}), "as 'images'"),
    ((np.full((4, 3), 2.0, np.float32), 0.5, False, {}), "uint8"),
    ((b"no picture", 0.5, False, {}), "cannot be used"),
    ((Observation("a", ("no picture",)), 0.5, False, {}), "must be PIL, bytes or an array, got str"),
]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(("answer", "words"), NONSENSE_STEPS)
def test_nonsense_from_step_is_a_failure_that_says_what_was_got(make: Make, answer: Any, words: str) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        first_turn(make("start", answer))
    message = str(caught.value)
    assert words in message
    assert "Answers.step returned" in message
    assert "expected" in message


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("answer", [None, 3, ("a",), ("a", {}, {}), ("a", "b"), {}, [RED]])
def test_nonsense_from_reset_is_a_failure(make: Make, answer: Any) -> None:
    with pytest.raises(EnvironmentFailure, match=r"Answers\.reset returned .*expected"):
        first_turn(make(answer))
