"""The learning curve: what is drawn, and when there is nothing to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from uirl.training.record.record import draw_curve


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Label -> points of each line that is drawn."""
    seen: dict[str, list[Any]] = {}
    plot, line = Axes.plot, Axes.axhline

    def note_plot(axes: Axes, x: Any, y: Any, **style: Any) -> Any:
        seen[style["label"]] = list(zip(x, y, strict=True))
        return plot(axes, x, y, **style)

    def note_line(axes: Axes, y: float, **style: Any) -> Any:
        seen[style["label"]] = [y, style["linestyle"]]
        return line(axes, y, **style)

    monkeypatch.setattr(Axes, "plot", note_plot)
    monkeypatch.setattr(Axes, "axhline", note_line)
    return seen


ROWS = [
    {"episodes_total": 16, "success": 0.25, "reward": 9.0},
    {"episodes_total": 32, "success": 0.5, "eval/success": 0.75, "reward": 9.0},
    {"episodes_total": 48, "success": None, "eval/success": None, "reward": 9.0},
]


def test_success_over_episodes_beside_the_controls(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    path = tmp_path / "curve.png"
    assert draw_curve(path, ROWS, title="run", controls={"blind": 0.1, "mute": 0.05})
    assert drawn == {
        "success while training": [(16, 0.25), (32, 0.5)],
        "success in evaluations": [(32, 0.75)],
        "control: blind (0.10)": [0.1, "--"],
        "control: mute (0.05)": [0.05, ":"],
    }
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_success_the_reward_is_drawn(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    rows = [{"episodes_total": 16, "success": None, "reward": 2.0}, {"episodes_total": 32, "eval/reward": 3.0}]
    assert draw_curve(tmp_path / "curve.png", rows, title="run")
    assert drawn == {"reward while training": [(16, 2.0)], "reward in evaluations": [(32, 3.0)]}


@pytest.mark.parametrize("rows", [[], [{"episodes_total": 16, "success": None, "reward": None}]])
def test_nothing_to_draw_leaves_no_picture(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert not draw_curve(tmp_path / "curve.png", rows, title="run")
    assert not list(tmp_path.iterdir())
