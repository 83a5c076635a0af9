"""Protocols M and S of ui-verifiers as `uirl serve` speaks them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from PIL import Image

from tests.environments.remote.running import Served, running, serving
from tests.environments.remote.stand_ins import many_sessions
from tests.patience import PATIENCE
from uirl.environments import BaseEnvironment, ScreenEnvironment
from uirl.types import Action, Observation


class Recorder(BaseEnvironment):
    """Shows pictures, counts submissions, and remembers what it was told."""

    action_format = "json"
    runs_inline = True

    def __init__(self, counts: bool = True, size: tuple[int, int] = (64, 40)) -> None:
        super().__init__()
        self.counts, self.size = counts, size
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.resets = 0

    def spawn(self) -> BaseEnvironment:
        other = Recorder(self.counts, self.size)
        other.told, self.last = [], other
        return other

    def reset(self, seed: int | None = None) -> Any:
        self.seed, self.rows, self.wrong = seed, [], 0
        self.resets += 1
        return Observation(f"seed {seed}", (self._draw(),))

    def step(self, action: Action) -> Any:
        name, text = action.call.name, str(action.call.arguments.get("text", ""))
        self.told.append((name, dict(action.call.arguments)))
        if text.startswith("row"):
            self.rows.append(int(text[3:]))
        self.wrong += text == "wrong"
        info = {"progress": {"submitted_row_indices": list(self.rows), "num_incorrect_submissions": self.wrong}}
        reward = float(text.startswith("row")) - 0.5 * (text == "wrong")
        images = () if text == "end" else (self._draw(),)  # some environments show nothing after the end
        if not self.counts:
            info = {"progress": 0.5, "success": text == "right"}
        return Observation("Grüße", images), reward, text in ("end", "right"), info

    def get_state_description(self) -> str:
        return ""

    def _draw(self) -> Image.Image:
        return Image.new("RGB", self.size, (len(self.told) % 256, 10, 10))


@pytest.fixture
def recorder() -> Iterator[tuple[Recorder, Served, httpx.Client]]:
    environment = Recorder()
    with serving(environment, sessions=3) as served, served.http() as http:
        yield environment, served, http


@pytest.fixture(params=["uirl serve", "stand-in"])
def protocol_m(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Our server, and what stands in for the original."""
    with contextlib.ExitStack() as stack:
        if request.param == "stand-in":
            url = stack.enter_context(running(many_sessions()))
        else:
            url = stack.enter_context(serving(Recorder(size=(1280, 800)), sessions=3)).url
        yield stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False))


def test_the_answers_of_protocol_m(protocol_m: httpx.Client) -> None:
    http = protocol_m
    root = http.get("/")
    assert (root.text, root.headers["content-type"]) == ("UI Verifiers Server v0.1.0", "text/plain; charset=utf-8")
    assert http.post("/session", params={"type": "simple_data_entry", "n": 2}).json() == {"session_ids": [1, 2]}
    info = http.get("/session/1").json()
    assert set(info) == {"id", "start_time", "display", "action_count", "stop_time"}
    assert (info["id"], info["display"], info["action_count"], info["stop_time"]) == (1, 10, 0, None)
    datetime.fromisoformat(info["start_time"])
    clicked = http.get("/session/1/act", params={"action_type": "left_click", "x": 5, "y": 6, "delay": 0})
    assert clicked.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(clicked.content)).size == (1280, 800)
    assert http.get("/session/1/screenshot").content == clicked.content
    assert http.get("/session/1/act", params={"action_type": "screenshot"}).content == clicked.content
    assert http.get("/session/1").json()["action_count"] == 2
    assert http.get("/session/1/progress").json() == {"num_correct_submissions": 0, "num_incorrect_submissions": 0}
    assert http.delete("/session/1").json() == {"deleted": 1}
    assert http.get("/session/1").json()["stop_time"] is not None
    for method, path in (
        ("GET", "/session/1/act?action_type=screenshot"),
        ("GET", "/session/1/screenshot"),
        ("GET", "/session/1/progress"),
        ("DELETE", "/session/1"),
        ("GET", "/session/99"),
    ):
        gone = http.request(method, path)
        assert (gone.status_code, gone.json()) == (404, {"detail": "Session not found"})
    assert set(http.get("/status").json()) == {"1", "2"}
    assert http.post("/session").json() == {"session_ids": [3]}
    for method in ("GET", "DELETE"):
        assert http.request(method, "/vnc").json() is None
    assert http.put("/vnc", params={"session": 2}).json() is None
    for wrong in ("/session/2/act?action_type=type&text=a", "/session/2/act?action_type=left_click&x=a&y=1"):
        assert http.get(wrong).status_code == 422
    assert http.post("/session?type=shopping").status_code == 422


def test_actions_in_the_words_of_the_environment(recorder: tuple[Recorder, Served, httpx.Client]) -> None:
    environment, _, http = recorder
    http.post("/session")
    for name in ("mouse_move", "left_click", "right_click", "double_click", "triple_click"):
        assert http.get("/session/1/act", params={"action_type": name, "x": 3, "y": 4}).status_code == 200
    for extra in (
        {"action_type": "type", "text": "Zoë"},
        {"action_type": "keys", "keys": "ctrl+a"},
        {"action_type": "scroll", "direction": "up"},
        {"action_type": "scroll", "direction": "sideways", "x": 1, "y": 2},
        {"action_type": "left_click", "x": 7, "y": 8},
    ):
        assert http.get("/proxy/1/act", params=extra).status_code == 200
    at = {"x": 3, "y": 4}
    assert environment.last.told == [
        ("move", at),
        ("click", at),
        ("right_click", at),
        ("double_click", at),
        ("triple_click", at),
        ("type", {"text": "Zoë"}),
        ("keys", {"keys": "ctrl+a"}),
        ("scroll", {"direction": "up"}),
        ("scroll", {"direction": "down", "x": 1, "y": 2}),
        ("click", {"x": 7, "y": 8}),
    ]


@pytest.mark.parametrize(
    ("path", "field", "type"),
    [
        ("/session/1/act", "action_type", "missing"),
        ("/session/1/act?action_type=hover", "action_type", "enum"),
        ("/session/1/act?action_type=type&text=no", "action_type", "enum"),
        ("/session/1/act?action_type=left_click&x=a&y=1", "x", "int_parsing"),
        ("/session/1/act?action_type=left_click&y=1", "x", "missing"),
        ("/proxy/1/act?action_type=type", "text", "missing"),
        ("/proxy/1/act?action_type=keys", "keys", "missing"),
        ("/proxy/1/act?action_type=scroll", "direction", "missing"),
        ("/session/x", "id", "int_parsing"),
    ],
)
def test_wrong_parameters(screen: tuple[Served, httpx.Client], path: str, field: str, type: str) -> None:
    answer = screen[1].get(path)
    problem = answer.json()["detail"][0]
    assert (answer.status_code, problem["loc"][1], problem["type"]) == (422, field, type)
    assert {"type", "loc", "msg", "input"} <= set(problem)


def test_other_errors(screen: tuple[Served, httpx.Client]) -> None:
    http = screen[1]
    assert http.post("/session", params={"type": "shopping"}).json()["detail"][0]["loc"] == ["query", "type"]
    assert http.get("/act").status_code == 404
    assert http.get("/session").json() == {"detail": "Method Not Allowed"}
    missing = http.get("/proxy/77/act?action_type=screenshot")
    assert (missing.status_code, missing.text) == (404, "Pod not found")
    assert http.get("/proxy/..%2f1/progress").status_code == 404


@pytest.fixture(scope="module")
def screen() -> Iterator[tuple[Served, httpx.Client]]:
    with serving("screen", sessions=2, seed=7) as served, served.http() as http:
        assert http.post("/session", params={"type": "screen"}).json() == {"session_ids": [1]}
        yield served, http


def test_progress_counts_what_the_environment_counts(recorder: tuple[Recorder, Served, httpx.Client]) -> None:
    _, _, http = recorder
    http.post("/session")
    for text in ("row4", "wrong", "row4", "row9"):
        http.get("/proxy/1/act", params={"action_type": "type", "text": text})
    assert http.get("/proxy/1/progress").json() == {"submitted_row_indices": [4, 4, 9], "num_incorrect_submissions": 1}
    assert http.get("/session/1/progress").json() == {"num_correct_submissions": 3, "num_incorrect_submissions": 1}


@pytest.mark.parametrize(("last", "rows", "wrong"), [("right", [0], 0), ("end", [], 1)])
def test_an_episode_of_an_environment_that_counts_nothing_is_one_submission(
    last: str, rows: list[int], wrong: int
) -> None:
    with serving(Recorder(counts=False)) as served, served.http() as http:
        http.post("/session")
        for text in ("row4", "wrong", "nothing", "row4"):  # what is paid for a part is no row
            http.get("/proxy/1/act", params={"action_type": "type", "text": text})
            nothing = {"submitted_row_indices": [], "num_incorrect_submissions": 0}
            assert http.get("/proxy/1/progress").json() == nothing
        http.get("/proxy/1/act", params={"action_type": "type", "text": last})
        said = http.get("/proxy/1/progress").json()
        assert said == {"submitted_row_indices": rows, "num_incorrect_submissions": wrong}


def test_what_a_picture_cannot_say_stands_in_headers(recorder: tuple[Recorder, Served, httpx.Client]) -> None:
    environment, _, http = recorder
    http.post("/session", params={"seed": 5})
    assert unquote(http.get("/session/1/screenshot").headers["x-uirl-text"]) == "seed 5"
    first = http.get("/proxy/1/act", params={"action_type": "type", "text": "on"})
    assert unquote(first.headers["x-uirl-text"]) == "Grüße"
    assert "x-uirl-done" not in first.headers
    last = http.get("/proxy/1/act", params={"action_type": "type", "text": "end"})
    assert last.headers["x-uirl-done"] == "terminated"
    # the screen of an episode that is over stands still
    assert last.content == first.content
    after = http.get("/proxy/1/act", params={"action_type": "type", "text": "row1"})
    assert after.content == last.content
    assert len(environment.last.told) == 2


def test_seeds_of_sessions_follow_from_the_servers(screen: tuple[Served, httpx.Client]) -> None:
    http = screen[1]
    second = http.post("/session").json()["session_ids"][0]
    for number, seed in ((1, 7), (second, 6 + second)):
        assert unquote(http.get(f"/session/{number}/screenshot").headers["x-uirl-text"]) == (
            ScreenEnvironment().reset(seed=seed).text
        )
    http.delete(f"/session/{second}")


def test_too_many_sessions(recorder: tuple[Recorder, Served, httpx.Client]) -> None:
    _, served, http = recorder
    refused = http.post("/session", params={"n": 4})
    assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "capacity")
    assert "retry-after" in refused.headers
    assert served.active == 0
    assert http.post("/session", params={"n": 3}).status_code == 200


def test_an_environment_vision_outputs_is_refused() -> None:
    with serving("guess_number") as served, served.http() as http:
        answer = http.post("/session")
        assert answer.status_code == 500
        assert "shows no picture" in answer.json()["error"]["message"]
        assert served.active == 0


def test_protocol_s_is_one_session_that_starts_with_the_server() -> None:
    environment = Recorder()
    with serving(environment, single=True, sessions=1) as served, served.http() as http:
        lines = http.get("/").text.split("\n")
        assert lines[:2] == ["UI Verifiers Session Server", "Session Type: Recorder"]
        assert lines[2].startswith("Start time: 2")
        assert lines[3].startswith("Duration: 0:00:0")
        picture = http.get("/act", params={"action_type": "screenshot"})
        assert picture.headers["content-type"] == "image/png"
        assert http.get("/act", params={"action_type": "type", "text": "row2", "id": "5"}).status_code == 200
        assert http.get("/progress").json() == {"submitted_row_indices": [2], "num_incorrect_submissions": 0}
        for path in ("/status", "/session/1"):
            assert http.get(path).status_code == 404
        assert served.active == 1
        assert environment.last.resets == 1
