"""Runs for the tests of the viewer, made by the classes that a real run uses."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from uirl.images import Screenshot
from uirl.metrics.trackers import MetricsLogger
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Action, Observation, Task, ToolCall, ToolResult, Trajectory, Turn, Verdict

CONFIG = "environment:\n  name: screen_suite\n"


def picture(color: str = "red", size: tuple[int, int] = (40, 30)) -> Screenshot:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, format="PNG")
    return Screenshot(out.getvalue())


def turn(reply: str = "click", shot: Screenshot | None = None, **fields: Any) -> Turn:
    shots = () if shot is None else (shot,)
    made: dict[str, Any] = {
        "observation": Observation("look", shots),
        "context_ids": (1, 2),
        "response_ids": (3, 4),
        "rollout_log_probs": (-0.5, -0.25),
        "action": Action(reply, (ToolCall("click", {"x": 5, "y": 6}),), "I think"),
        "context_images": tuple(one.hash for one in shots),
        "tool_results": (ToolResult("click", {"x": 5, "y": 6}, True, "done"),),
    }
    return Turn(**(made | fields))


def trajectory(id: str, turns: Sequence[Turn] = (), *, task: str = "task", success: bool | None = True, **fields: Any):
    made = {
        "stop_reason": "terminated",
        "group_id": "g",
        "metrics": {} if success is None else {"success": float(success)},
    }
    return Trajectory(id=id, task=Task(task, goal=f"goal of {task}"), turns=list(turns) or [turn()], **(made | fields))


def passed(score: float = 1.0) -> Verdict:
    return Verdict(score, score > 0.5, "all there", "rules", 1)


def make_run(path: Path, trajectories: Sequence[Trajectory] = (), rows: int = 3, config: str = CONFIG) -> Path:
    """Write a run directory with these trajectories, all of step 1, and so many rows of metrics."""
    RunDirectory.create(path, config).close()
    run = RunDirectory.open(path)
    with MetricsLogger(run.metrics_path) as log:
        for step in range(1, rows + 1):
            log.log(
                step,
                {
                    "success": 0.5,
                    "success_low": 0.2,
                    "success_high": 0.8,
                    "trajectories": 8,
                    "reward": 0.1 * step,
                    "policy_loss": 0.2,
                },
            )
    with TrajectoryStore(run.trajectories_path) as store:
        for i, one in enumerate(trajectories):
            store.add(one, step=i + 1)
    return path
