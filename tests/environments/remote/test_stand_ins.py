"""The stand-in of protocol S answers as the original does, errors included. Of protocol M, server/test_ui_verifiers.py
asks the stand-in and our server the same."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import pytest
from PIL import Image

from tests.environments.remote.form import FIELDS, ROWS, SUBMIT, middle
from tests.environments.remote.running import running
from tests.environments.remote.stand_ins import single_session


@pytest.fixture
def single() -> Iterator[httpx.Client]:
    with running(single_session()) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def act(http: httpx.Client, action_type: str, **given: object) -> httpx.Response:
    return http.get("/act", params={"action_type": action_type, "delay": 0, **given})  # type: ignore[dict-item]


def test_a_row_is_copied_over_protocol_s(single: httpx.Client) -> None:
    assert single.get("/").text.split("\n")[:2] == ["UI Verifiers Session Server", "Session Type: Simple Data Entry"]
    for box, word in zip(FIELDS, ROWS[1], strict=True):
        x, y = middle(box)
        assert act(single, "left_click", x=x, y=y).headers["content-type"] == "image/png"
        last = act(single, "type", text=word)
    assert Image.open(io.BytesIO(last.content)).size == (1280, 800)
    x, y = middle(SUBMIT)
    act(single, "left_click", x=x, y=y)
    act(single, "left_click", x=x, y=y)
    assert single.get("/progress").json() == {"submitted_row_indices": [1], "num_incorrect_submissions": 1}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("action_type=hover", 422),
        ("action_type=left_click&x=a&y=1", 422),
        ("action_type=left_click&y=1", 500),
        ("action_type=type", 500),
        ("action_type=keys", 500),
        ("action_type=scroll", 500),
        ("action_type=keys&keys=ctrl%2Bzzz&delay=0", 200),
        ("action_type=scroll&direction=sideways&delay=-3", 200),
        ("action_type=screenshot&delay=1000", 200),
    ],
)
def test_errors_of_protocol_s(single: httpx.Client, query: str, status: int) -> None:
    answer = single.get(f"/act?{query}")
    assert answer.status_code == status
    if status == 422:
        assert {"type", "loc", "msg", "input"} <= set(answer.json()["detail"][0])
    if status == 500:
        assert (answer.text, answer.headers["content-type"]) == ("Internal Server Error", "text/plain; charset=utf-8")
    posted = single.post("/act")
    assert (posted.status_code, posted.json()) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize("corner", [(0, 0), (-40, -1), (1279, 5000)])
def test_the_pointer_trap_of_protocol_s(single: httpx.Client, corner: tuple[int, int]) -> None:
    assert act(single, "mouse_move", x=0, y=5).status_code == 200
    assert act(single, "mouse_move", x=corner[0], y=corner[1]).status_code == 500
    assert act(single, "left_click", x=600, y=400).status_code == 500
    assert act(single, "type", text="x").status_code == 500
    assert act(single, "screenshot").status_code == 200
    assert single.get("/progress").status_code == 200
