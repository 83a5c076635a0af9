"""One trajectory as the page shows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from uirl.config import ConfigStore
from uirl.errors import ConfigError, StorageError
from uirl.types import Observation, ToolResult, Trajectory, Turn
from uirl.viewer.files import is_file, opened
from uirl.viewer.flags import flags_of_reply
from uirl.viewer.marks import GRID, marks_of
from uirl.viewer.pictures import Fed, Sizes, fed_pictures
from uirl.viewer.runs import Run
from uirl.viewer.tokens import coordinates_of, heat_of, tokens_of

JUDGEMENTS = "judgements"
"""Folder of a run with what `uirl judge` said."""
LARGEST = 64 << 20
"""Bytes of a file of judgements that is looked through."""
LETTERS = 60
"""Of what a turn without a picture read that the strip shows."""
OPENING = 600
"""Letters of what the environment said first, shown where a task has no goal."""
_AS_RECORDED = ("reward", "finish_reason", "terminated", "truncated", "policy_version", "starts_segment", "info")


def episode(run: Run, id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything about a trajectory but its tokens. `row`: its line in the index.

    Raises StorageError for an unknown id.
    """
    trajectory = run.store.get(id, pictures=False)
    turns, sizes, grid = trajectory.turns, Sizes(run.store), grid_of(run)
    return _about(run, trajectory, row) | {"turns": [_turn(run, id, turns, i, sizes, grid) for i in range(len(turns))]}


def outline(run: Run, id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `episode` does, of its turns only what the strip shows: a page of a thousand turns is small.

    Raises StorageError for an unknown id.
    """
    trajectory = run.store.get(id, pictures=False, tokens=False)
    return _about(run, trajectory, row) | {"turns": [_frame(i, turn) for i, turn in enumerate(trajectory.turns)]}


def turn_of(run: Run, id: str, turns: Sequence[Turn], index: int) -> dict[str, Any]:
    """Return one turn of a trajectory, whole."""
    return _turn(run, id, turns, index, Sizes(run.store), grid_of(run))


def _turn(run: Run, id: str, turns: Sequence[Turn], index: int, sizes: Sizes, grid: int | None) -> dict[str, Any]:
    turn = turns[index]
    fed = fed_pictures(turns, index, sizes)
    return {
        "index": index,
        "observation": _seen(turn.observation),
        "fed": [_fed(run.key, id, index, i, one) for i, one in enumerate(fed)],
        "thought": turn.action.thought,
        "reply": turn.action.text,
        "action_text": without_thought(turn.action.text, turn.action.thought),
        "calls": list(_calls(turn)),
        "parse_error": turn.action.parse_error,
        "marks": _marks_of(turn, fed, grid),
        "flags": flags_of_reply(turn.action.text),
        "context_tokens": len(turn.context_ids),
        "response_tokens": len(turn.response_ids),
        **{name: getattr(turn, name) for name in _AS_RECORDED},
    }


def _about(run: Run, trajectory: Trajectory, row: Mapping[str, Any]) -> dict[str, Any]:
    label, verdict, seed = run.labels.get(row["id"]), trajectory.verdict, trajectory.task.seed
    previous, following = (run.index.beside(row["number"], side) for side in ("<", ">"))
    return {
        **{name: row[name] for name in ("id", "number", "step", "split", "created", "level", "flags")},
        "previous": previous,
        "next": following,
        "opening": trajectory.turns[0].observation.text[:OPENING] if trajectory.turns else "",
        "task": asdict(trajectory.task) | {"id": row["task_id"], "seed": trajectory.seed if seed is None else seed},
        "group_id": row["group_id"],
        "stop_reason": trajectory.stop_reason,
        "failure": None if trajectory.failure is None else asdict(trajectory.failure),
        "reward": trajectory.total_reward(),
        "success": trajectory.success,
        "metrics": trajectory.metrics,
        "verdict": None if verdict is None else asdict(verdict),
        "verdict_evidence": _evidence(run.folder, row["id"], trajectory.metrics),
        "label": None if label is None else label.to_dict(),
        **_origin(run, row["id"], trajectory),
        "final": None if trajectory.final is None else _seen(trajectory.final),
    }


def _frame(index: int, turn: Turn) -> dict[str, Any]:
    """Return what the strip shows of a turn."""
    return {
        "index": index,
        "image": turn.observation.images[-1] if turn.observation.images else None,
        "text": turn.observation.text[:LETTERS],
        "calls": [call.name for call in turn.action.tool_calls],
        "reward": turn.reward,
        "warned": bool(turn.action.parse_error or flags_of_reply(turn.action.text)),
        "parse_error": turn.action.parse_error is not None,
    }


def turn_tokens(run: Run, id: str, turns: Sequence[Turn], index: int, *, context: bool = False) -> dict[str, Any]:
    """Return the tokens of a turn, its coordinates among them, and the heat patch of the first place. `context`: the
    tokens that it was fed stand first."""
    turn = turns[index]
    texts = run.vocabulary.texts
    figures = run.store.learned(id).get(index)
    tokens = tokens_of(turns, index, texts, figures, context=context)
    coordinates = coordinates_of(turn, texts(turn.context_ids, turn.response_ids))
    fed = fed_pictures(turns, index, Sizes(run.store))
    at = _seen_last(turn, fed)
    heat = heat_of(coordinates, None if at is None else fed[at], at, grid_of(run))
    moved = len(tokens) - len(turn.response_ids)
    places = [{**asdict(one), "start": one.start + moved, "stop": one.stop + moved} for one in coordinates]
    return {"turn": index, "tokens": tokens, "coordinates": places, "heat": heat}


def grid_of(run: Run) -> int | None:
    """Return the largest coordinate of the run's actions where they are shares of the picture; None: they are pixels.
    Phones of MobileWorld speak MAI-UI's grid."""
    if not is_file(run.config_path):
        return None
    try:
        environment = ConfigStore.from_yaml(run.config_path).environment
    except (ConfigError, OSError, RecursionError):
        return None
    on_grid = environment.name == "mobile_world" or environment.options.get("coordinates") == "grid_999"
    return GRID if on_grid else None


def _marks_of(turn: Turn, fed: list[Fed], grid: int | None) -> list[dict[str, Any]]:
    """Return the marks of a turn, on the last picture that it saw."""
    at = _seen_last(turn, fed)
    picture = None if at is None else fed[at]
    calls = [(call.name, call.arguments) for call in turn.action.tool_calls]
    marks = []
    for mark in marks_of(calls, None if picture is None else picture.raw_size, grid):
        places = {"raw": mark.places, "fed": () if picture is None else picture.to_fed(mark.places)}
        flat = {name: [value for place in found for value in place] or None for name, found in places.items()}
        marks.append({"kind": mark.kind, **flat, "image": at, "text": mark.text})
    return marks


def _seen_last(turn: Turn, fed: list[Fed]) -> int | None:
    """Return which of the fed pictures is the last one that the turn was shown, what actions point at; None: none."""
    shown = turn.observation.images[-1] if turn.observation.images else None
    return next((i for i in reversed(range(len(fed))) if fed[i].hash == shown), None)


def without_thought(text: str, thought: str) -> str:
    """Return what a reply says beside its thought."""
    before, found, behind = text.partition(thought) if thought else (text, "", "")
    return f"{before.rstrip()}\n{behind.lstrip()}".strip() if found else text


def _calls(turn: Turn) -> Iterator[dict[str, Any]]:
    """Return the calls of a turn with what came back: by their ids or, without ids, in order."""
    left = list(turn.tool_results)
    for call in turn.action.tool_calls:
        fits = [one for one in left if (one.id == call.id if call.id else one.name == call.name)]
        result: ToolResult | None = fits[0] if fits else None
        if result is not None:
            left.remove(result)
        came = {name: getattr(result, name, None) for name in ("success", "seconds")}
        yield {"name": call.name, "arguments": call.arguments, "result": getattr(result, "text", None), **came}


def _seen(observation: Observation) -> dict[str, Any]:
    said = ("name", "arguments", "success", "text", "seconds")
    results = [{name: getattr(one, name) for name in said} for one in observation.tool_results]
    shown = {"text": observation.text, "images": list(observation.images), "tool_results": results}
    return shown | {"info": observation.info}


def mark_of(fed: Fed) -> str:
    """Return what tells a picture and what became of it from every other: browsers keep it for ever under its address,
    and a run that is made anew has another one at this place."""
    said = json.dumps([fed.hash, None if fed.transform is None else asdict(fed.transform)])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _fed(key: str, id: str, turn: int, place: int, fed: Fed) -> dict[str, Any]:
    segment = f"\0{id}" if id in (".", "..") else id  # browsers take dots out of addresses
    url = f"/api/runs/{key}/fed/{quote(segment, safe='')}/{turn}/{place}.png?of={mark_of(fed)}"
    transform = None if fed.transform is None else asdict(fed.transform)
    return {"hash": fed.hash, "raw_size": fed.raw_size, "fed_size": fed.fed_size, "transform": transform, "url": url}


def _origin(run: Run, id: str, trajectory: Trajectory) -> dict[str, Any]:
    versions = {turn.policy_version for turn in trajectory.turns}
    origin = run.store.origin(id)
    model = (origin or {}).get("model")
    newest = next(iter(run.store.learned(id).values()), None)
    return {
        "sampling": trajectory.sampling,
        "policy": {
            "model": model.get("name") if isinstance(model, dict) else None,
            "version": max(versions, default=None),
            "versions": sorted(versions),
        },
        "origin": origin,
        "learned": newest is not None,
        "learned_in": None if newest is None else newest.step,
    }


def _evidence(folder: Path, id: str, metrics: Mapping[str, float]) -> dict[str, Any] | None:
    """Return what the verdict rests on: the numbers of the rules and the judge, and what `uirl judge` said later."""
    numbers = {name: value for name, value in metrics.items() if name.startswith("verification/")}
    later = [found for path in _files(folder / JUDGEMENTS) if (found := _judgement(path, id)) is not None]
    return {"metrics": numbers, "judgements": later} if numbers or later else None


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)[:8]
    except OSError:
        return []


def _judgement(path: Path, id: str) -> dict[str, Any] | None:
    wanted = json.dumps(id).encode()
    try:
        if path.stat().st_size > LARGEST:
            return None
        with opened(path) as file:
            for line in file:
                if wanted in line and (found := json.loads(line)).get("id") == id:
                    return {"file": path.name, **found}
    except (OSError, ValueError, AttributeError, RecursionError, StorageError):
        return None
    return None
