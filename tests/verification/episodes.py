"""Records of episodes for the tests of this folder."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from uirl.images import Screenshot
from uirl.types import Action, Observation, Task, ToolCall, Trajectory, Turn


def shot(colour: tuple[int, int, int] = (255, 255, 255), size: tuple[int, int] = (40, 20)) -> Screenshot:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, format="PNG")
    return Screenshot(buffer.getvalue())


def record(
    state: dict[str, Any] | None = None,
    *,
    reply: str = "done",
    text: str = "a page",
    task: Task | None = None,
    success: bool | None = None,
    final: Screenshot | None = None,
    turns: int = 2,
    calls: tuple[ToolCall, ...] = (),
    id: str = "t",
) -> Trajectory:
    """An episode of `turns` turns: the last one left `state`, said `reply`, and `text` stands there."""
    made = [
        Turn(
            Observation(f"screen {i}", (shot((i % 256, 0, 0)),)),
            action=Action(reply if i == turns - 1 else f"step {i}", calls if i == turns - 1 else ()),
            info=dict(state or {}) if i == turns - 1 else {},
            terminated=i == turns - 1,
        )
        for i in range(turns)
    ]
    last = Observation(text, (final or shot(),), dict(state or {}))
    metrics = {} if success is None else {"success": float(success)}
    task = task or Task("order-1", goal="Order two apples.")
    return Trajectory(id, task, made, "terminated", metrics=metrics, final=last)
