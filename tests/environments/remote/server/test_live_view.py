"""The live view, in the browser that people would use."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.environments.remote.running import serving
from tests.inference.pictures import picture
from tests.patience import PATIENCE
from uirl.environments import BaseEnvironment
from uirl.environments.browser.process import find_executable
from uirl.images import screenshot
from uirl.types import Observation, Task


class Nasty(BaseEnvironment):
    """Shows a picture, and words that would like to be a page."""

    runs_inline = True

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        return Observation(f"<img src=x onerror=\"document.title='owned'\"> seed {seed}", (picture(seed or 0),))

    def step(self, action: str) -> Any:
        return Observation("solved it", (picture(9),)), 0.25, action == "end", {"success": action == "end"}

    def get_state_description(self) -> str:
        return ""


def test_what_the_page_asks_for() -> None:
    with serving(Nasty(), sessions=3) as served, served.http() as http:
        first = http.post("/v1/sessions", json={"seed": 1, "task": {"id": "some/task"}}).json()["session"]
        http.post("/v1/sessions")
        http.post(f"/v1/sessions/{first}/step", json={"action": {"text": "end"}})
        said = http.get("/view/sessions").json()
        assert said["capacity"] == 3
        one, two = said["sessions"]
        assert (one["task"], one["terminated"], one["success"], one["total_reward"]) == ("some/task", True, True, 0.25)
        assert (two["episodes"], two["hash"]) == (0, None)
        shown = http.get("/view/screens/1")
        assert shown.content == screenshot(picture(9)).data
        assert (shown.headers["content-type"], shown.headers["x-content-type-options"]) == ("image/png", "nosniff")
        assert http.get("/view/screens/2").status_code == 404
        assert http.get("/view/screens/9").status_code == 404


def test_the_page_in_chromium() -> None:
    with serving(Nasty(), sessions=4) as served, served.http() as http:
        for seed, actions in ((1, []), (2, ["end"]), (3, ["on"])):
            session = http.post("/v1/sessions", json={"seed": seed}).json()["session"]
            for action in actions:
                http.post(f"/v1/sessions/{session}/step", json={"action": {"text": action}})
        command = [find_executable(), "--no-sandbox", "--headless", "--disable-gpu", "--virtual-time-budget=3000"]
        done = subprocess.run(
            [*command, "--dump-dom", f"{served.url}/view"], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    page = done.stdout
    assert "3 of 4 sessions in use" in page
    for word in ("Session 1", "Session 3", ">playing<", ">solved<", "reward 0.25", "screen of session 2"):
        assert word in page
    # what an environment says is text, whatever it looks like
    assert "&lt;img src=x onerror=" in page
    assert "<title>nasty · live</title>" in page
