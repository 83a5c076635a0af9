"""Changes to a finished run, each with what an audit has to name."""

from __future__ import annotations

import json
import random
import sqlite3
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from uirl.runtime.folders import seal

CLOCKS = ("seconds", "time", "generate_", "environment_", "rate", "tokens_per", "cache_hit")
"""What is measured, and follows from nothing."""
Change = tuple[str, Callable[[str], bool]]
"""What was done, and whether a line of the report names it."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every number, text, bool and None."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, (*path, key))
    else:
        yield path


def other(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 3))
    if isinstance(value, float):
        return value * 1.2 + rng.choice((0.1, 0.3))
    return 0.25 if value is None else f"{value}x"


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def is_clock(path: tuple[Any, ...]) -> bool:
    return any(isinstance(part, str) and part.startswith(CLOCKS) for part in path)


def names(*parts: str) -> Callable[[str], bool]:
    return lambda line: any(part in line for part in parts)


BEYOND_RECORD = {"created", "origin", "thought", "state_key", "level", "tags"}
"""Of an episode: what no figure and no prompt depends on."""


def in_record(run: Path, rng: random.Random, taken: set[str]) -> Change | None:
    """One value of one episode: of its columns, its header, a turn, its tokens, or of what was learned from it."""
    base = sqlite3.connect(run / "trajectories.sqlite", isolation_level=None)
    number, id, split = rng.choice(base.execute("SELECT number, id, split FROM trajectories").fetchall())
    if id in taken:
        return None
    taken.add(id)
    found = names(f"episode {id},", f"episode {id} ")
    where = rng.choice(("column", "header", "turn", "turn", "ids", "log_probs", "learned"))
    if where == "column":
        name = rng.choice(("step", "split", "reward", "success", "stop_reason", "turns", "task_id", "group_id"))
        value = base.execute(f"SELECT {name} FROM trajectories WHERE number = ?", (number,)).fetchone()[0]
        new = {"train": "eval"}.get(value, "train") if name == "split" else other(value, rng)
        new = int(not value) if name == "success" else new
        base.execute(f"UPDATE trajectories SET {name} = ? WHERE number = ?", (new, number))
        # an episode under another update or split is missed there
        told = names(f"episode {id}", "update ", "episode", "cannot be read") if name in ("step", "split") else found
        return f"{name} of {id}", told
    if where == "header":
        return _in_json(base, "trajectories", f"number = {number}", rng, id, found)
    (count,) = base.execute("SELECT count(*) FROM turns WHERE trajectory = ?", (number,)).fetchone()
    position = rng.randrange(count)
    key = f"trajectory = {number} AND position = {position}"
    if where == "turn":
        return _in_json(base, "turns", key, rng, id, found)
    if where == "learned" or (where == "log_probs" and split != "train"):
        row = base.execute("SELECT step, advantages, log_probs FROM learned WHERE trajectory = ?", (number,)).fetchone()
        if row is None:
            return None
        column = rng.choice(("advantages", *(("log_probs",) if row[2] else ())))
        numbers = array("f", row[1 if column == "advantages" else 2])
        numbers[rng.randrange(len(numbers))] += 0.2
        base.execute(f"UPDATE learned SET {column} = ? WHERE trajectory = ?", (numbers.tobytes(), number))
        return f"{column} learned of {id}", names(f"episode {id}", f"update {row[0]},", f"update {row[0]} cannot")
    column = {"ids": rng.choice(("context_ids", "response_ids"))}.get(where, "log_probs")
    (blob,) = base.execute(f"SELECT {column} FROM turns WHERE {key}").fetchone()
    numbers = array("f" if where == "log_probs" else "i", blob)
    at_number = rng.randrange(len(numbers))
    numbers[at_number] += -0.2 if where == "log_probs" else 1
    base.execute(f"UPDATE turns SET {column} = ? WHERE {key}", (numbers.tobytes(),))
    (step,) = base.execute("SELECT step FROM trajectories WHERE number = ?", (number,)).fetchone()
    learned = base.execute("SELECT log_probs FROM learned WHERE trajectory = ?", (number,)).fetchone()
    if where == "log_probs" and (learned is None or learned[0] is None):
        return None  # of an episode of a dead group no figure depends on them
    # where the row of this update has another step as well, that is what is told of the update
    told = names(f"episode {id}", f"update {step},", f"update {step} cannot", "metrics.jsonl, its steps")
    return f"{column} of {id}", told


def _in_json(
    base: sqlite3.Connection, table: str, key: str, rng: random.Random, id: str, found: Callable[[str], bool]
) -> Change | None:
    (text,) = base.execute(f"SELECT record FROM {table} WHERE {key}").fetchone()
    record = json.loads(text)
    paths = [p for p in leaves(record) if not is_clock(p) and not BEYOND_RECORD & set(p) and p != ("id",)]
    # nothing tells the notes of what it began with, and nothing follows from what stood there at its end
    beyond = (("observation", "info"), ("final", "text"))
    paths = [p for p in paths if p[:2] not in beyond and at(record, p) is not None]
    if record.get("terminated"):  # an end is one, whether a limit was reached too or not
        paths.remove(("truncated",))
    path = rng.choice(paths)
    put(record, path, other(at(record, path), rng))
    base.execute(f"UPDATE {table} SET record = ? WHERE {key}", (json.dumps(record),))
    told = found if path != ("policy_version",) else names(f"episode {id}", "staleness", "cannot be read")
    return f"{table} {'/'.join(map(str, path))} of {id}", told


def in_metrics(run: Path, rng: random.Random) -> Change:
    """One number of one row."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    row = rng.choice([row for row in rows if not any(name.startswith("warm_start/") for name in row)])
    name = rng.choice([name for name in row if name != "time"])
    row[name] = other(row[name], rng)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{name} of a row", names(
        f", {name}:", "its evaluation", "history", "counts", "its steps", "ledger", "cannot"
    )


BEYOND_SUMMARY = {"controls", "train_seconds", "meter"}


def in_summary(run: Path, rng: random.Random) -> Change:
    """One value of the summary."""
    file = run / "summary.json"
    summary = json.loads(file.read_text())
    path = rng.choice([p for p in leaves(summary) if not BEYOND_SUMMARY & set(p)])
    put(summary, path, other(at(summary, path), rng))
    file.write_text(json.dumps(summary))
    return f"summary {'/'.join(map(str, path))}", names(f"summary, {path[0]}", "summary, excluded", "summary.json")


STATE = ("step", "episodes", "tally", "before", "reward_before", "interval_before", "held_out", "evaluations", "counts")
"""What of the state of a run in a checkpoint follows from its record."""


def in_checkpoint(run: Path, rng: random.Random) -> Change:
    """A weight, or a value of the state, with or without a new list of hashes."""
    folder = rng.choice(sorted((run / "checkpoints").glob("step_*")))
    kind = rng.choice(("weight", "state", "history", "config"))
    resealed = rng.random() < 0.7
    if kind == "weight":
        file = folder / "policy" / "model.safetensors"
        weights = load_file(file)
        name = rng.choice(sorted(weights))
        weights[name] = weights[name] * 1.1 + 0.02
        save_file(weights, file, metadata={"format": "pt"})
        what = name
    elif kind == "config":
        file = folder / "config.yaml"
        file.write_text(file.read_text().replace("temperature: 1.0", "temperature: 0.9"))
        what = "config"
    else:
        file = folder / "state.json"
        state = json.loads(file.read_text())
        inside = state["extra"]["history"] if kind == "history" else {k: state["extra"]["state"][k] for k in STATE}
        if not inside:
            inside = {k: state["extra"]["state"][k] for k in STATE}
        path = rng.choice([p for p in leaves(inside) if not (is_clock(p) and kind != "history")])
        put(inside, path, other(at(inside, path), rng))
        if isinstance(inside, dict):
            state["extra"]["state"] |= inside
        file.write_text(json.dumps(state))
        what = "/".join(map(str, path))
    if resealed:
        (folder / "manifest.json").unlink()
        seal(folder)
    return f"{folder.name}: {what}", names(folder.name)
