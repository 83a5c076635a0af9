"""Trajectories for the tests of this folder."""

from uirl.images import Screenshot
from uirl.types import (
    Action,
    Failure,
    Observation,
    PictureTransform,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)

PNG = b"\x89PNG\r\n\x1a\n"


def full_trajectory(id: str = "t-1") -> Trajectory:
    """A trajectory in which every field of every noun differs from its default."""
    shots = (Screenshot(PNG + b"one"), Screenshot(b"\xff\xd8\xfftwo"))
    calls = (ToolCall("click", {"x": 3, "where": {"deep": [1, 2.5, None, True, "é"]}}, id="c1"), ToolCall("wait"))
    results = (
        ToolResult("look", {"at": [1, {"b": "é"}]}, False, {"seen": [1.5, None]}, "c0", 0.25),
        ToolResult("wait"),
    )
    first = Turn(
        observation=Observation("press red", shots, {"stage": 0, "score": 0.1 + 0.2}, results, "stage 0"),
        context_ids=(1, 2, 2**31 - 1),
        response_ids=(7, 8),
        rollout_log_probs=(-0.1, -1e-30),  # not float32: stored with all digits
        action=Action("{...}", calls, "hm \ud800 \x00", "x is missing"),
        reward=1 / 3,
        policy_version=4,
        starts_segment=True,
        context_images=(shots[0].hash, shots[1].hash),
        pictures=(PictureTransform((4, 2), (28, 56), (-1, 0, 4, 4), (1, 2, 3, 4), "box", (9, 8, 7)), None),
        finish_reason="length",
        terminated=True,
        truncated=True,
        info={"a": [1, {"b": None}], "inf": float("inf")},
        tool_results=results[::-1],
    )
    second = Turn(
        Observation("ok", shots[:1]),
        (5,),
        (6,),
        (-0.5,),
        starts_segment=False,
        context_images=(shots[0].hash, shots[0].hash),
        pictures=(PictureTransform((4, 2), (4, 2)), PictureTransform((4, 2), (28, 14))),
    )
    return Trajectory(
        id=id,
        task=Task("level/1", "screen", "press red", {"target": [3, 4]}, ("easy", "red"), 11, 2.5),
        turns=[first, second],
        stop_reason="failure",
        group_id="g",
        verdict=Verdict(0.7, True, "all there", "rules", 1),
        failure=Failure("timeout", "hung", 1),
        seed=12,
        metrics={"success": 1.0, "seconds": 0.1},
        final=Observation("done", (Screenshot(PNG + b"three"),), {"stage": 2}, results, "stage 2"),
        sampling={"temperature": 0.7, "seed": 3},
        level="frontier",
    )


def episode(id: str, *, success: bool | None = True, shot: bytes = b"", task: str = "a") -> Trajectory:
    """A short trajectory; `shot`: the bytes of the one picture it shows."""
    pictures = (Screenshot(shot),) if shot else ()
    turn = Turn(Observation("look", pictures), (1, 2), (3,), (-0.25,), Action("reply"), reward=float(success is True))
    metrics = {} if success is None else {"success": float(success)}
    return Trajectory(id=id, task=Task(task), turns=[turn], stop_reason="terminated", group_id="g", metrics=metrics)
