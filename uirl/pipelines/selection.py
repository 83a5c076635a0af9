"""What of a round's episodes is learned from: solved ones and right beginnings, each once, no task too often."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from uirl import __version__
from uirl.config import EvolveConfig, VerificationConfig
from uirl.errors import StorageError
from uirl.rollout.episode import derive_seed
from uirl.runtime.files import sha256_of, storage_errors
from uirl.runtime.folders import MANIFEST
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Trajectory


@dataclass(frozen=True, slots=True)
class Example:
    """Turns of an episode, from the first on."""

    id: str
    """Of the episode."""
    turns: int
    """How many of its turns, from the first on."""
    kind: Literal["solved", "beginning"]
    task: str
    instance: str = ""
    """What episodes of one instance share; '' in `selection.json`, where nobody needs it any more."""
    beginnings: tuple[str, ...] = ()
    """After each turn the digest of all that was shown and said until then."""

    @property
    def digest(self) -> str:
        """Of the whole example."""
        return self.beginnings[-1]


@dataclass(slots=True)
class Selection:
    """What is kept, and why the rest is not."""

    kept: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> episodes."""


def candidate_of(trajectory: Trajectory) -> Example | str:
    """Return what an episode has to learn from, or the reason why it has nothing."""
    if trajectory.failure is not None:
        return f"failed: {trajectory.failure.kind}"
    if not trajectory.turns or not all(turn.response_ids for turn in trajectory.turns):
        return "has no tokens"
    if trajectory.success is None:
        return "nobody says whether it was solved"
    right = None if trajectory.verdict is None else trajectory.verdict.correct_prefix
    turns = len(trajectory) if trajectory.success else right or 0
    if turns == 0:
        return "not solved, no right beginning is known" if right is None else "not solved, wrong from the first turn"
    return Example(
        trajectory.id,
        turns,
        "solved" if trajectory.success else "beginning",
        trajectory.task.id,
        f"{trajectory.task.id}/{trajectory.seed if trajectory.seed is not None else trajectory.group_id}",
        tuple(digests(trajectory.prefix(turns))),
    )


def digests(trajectory: Trajectory) -> Iterator[str]:
    """Yield after each turn what is equal only where the same was shown and said until then."""
    sums = hashlib.sha256(json.dumps([trajectory.task.id, trajectory.task.goal]).encode())
    for turn in trajectory.turns:
        seen = turn.observation
        pictures = [image if isinstance(image, str) else getattr(image, "hash", repr(image)) for image in seen.images]
        results = [[result.name, result.text] for result in seen.tool_results]
        sums.update(json.dumps([seen.text, pictures, results, turn.action.text]).encode())
        yield sums.hexdigest()


def select(candidates: Iterable[Example | str], limits: EvolveConfig, seed: int) -> Selection:
    """Return the examples to learn from; each episode is kept or counted under one reason.

    Solved ones come first. What is equal, and a beginning of what is kept already, is left out; so is what is more of
    one instance, of one task or of beginnings than the limits say. Which ones of too many is drawn by `seed`.
    """
    chosen, found = Selection(), []
    for candidate in candidates:
        if isinstance(candidate, str):
            chosen.left_out[candidate] += 1
        else:
            found.append(candidate)
    found.sort(key=lambda one: (one.kind != "solved", -one.turns, derive_seed(seed, one.id)))
    known: set[str] = set()
    different = []
    for one in found:
        if one.digest in known:
            chosen.left_out["the same as another" if one.kind == "solved" else "the beginning of another"] += 1
        else:
            different.append(one)
            known.update(one.beginnings)
    kept = _at_most(different, limits.per_instance, lambda one: one.instance, chosen, "more of one instance")
    tasks = len({one.task for one in kept})
    if tasks > 1:
        share = max(1, math.floor(limits.task_share * len(kept) / tasks))
        kept = _at_most(kept, share, lambda one: one.task, chosen, "more of one task")
    chosen.kept = _with_few_beginnings(kept, limits.prefix_share, chosen)
    return chosen


def _at_most(
    examples: Sequence[Example], most: int, key: Callable[[Example], str], chosen: Selection, reason: str
) -> list[Example]:
    count: dict[str, int] = defaultdict(int)
    kept = []
    for one in examples:
        if count[key(one)] < most:
            count[key(one)] += 1
            kept.append(one)
        else:
            chosen.left_out[reason] += 1
    return kept


def _with_few_beginnings(examples: Sequence[Example], share: float, chosen: Selection) -> list[Example]:
    """Return the examples without the last beginnings, so that these are at most `share` of all."""
    solved = [one for one in examples if one.kind == "solved"]
    beginnings = [one for one in examples if one.kind != "solved"]
    most = len(beginnings) if share >= 1 else math.floor(len(solved) * share / (1 - share) + 1e-9)
    if most < len(beginnings):
        chosen.left_out["more beginnings than their share"] += len(beginnings) - most
    return solved + beginnings[:most]


def to_plain(example: Example) -> dict[str, Any]:
    """Return the line of an example in `selection.json`."""
    return {"id": example.id, "turns": example.turns, "kind": example.kind, "task": example.task}


def judged_by(settings: VerificationConfig, evolve: EvolveConfig) -> dict[str, Any]:
    """Return who says that an episode was solved, and that a beginning is right."""
    return {
        "episodes": (settings.rules if settings.enabled else None) or "the environment's word",
        "judge": settings.judge if settings.enabled or evolve.prefixes == "judge" else None,
        "beginnings": evolve.prefixes,
        "certified": evolve.certify and evolve.prefixes != "off",
    }


def data_card(
    about: Mapping[str, Any],
    number: int,
    store: TrajectoryStore,
    selection: Selection,
    found: Mapping[str, int],
    behind: Mapping[str, int],
    *,
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """Return the card of a round. `about`: who played what (environment, policy) and how it was judged (verifier);
    `found`: what the search for beginnings counted; `behind`: episodes that started behind a beginning, and how many of
    them are solved; `hashes`: of the files."""
    played = store.list(split="train")
    kept = Counter(one.kind for one in selection.kept)
    by_task: dict[str, Counter[str]] = {}
    for one in played:
        by_task.setdefault(one.task_id, Counter())["episodes"] += 1
    for example in selection.kept:
        by_task[example.task][example.kind] += 1
    return {
        "round": number,
        **about,
        "uirl": __version__,
        "episodes": len(played),
        "solved": sum(one.success is True and one.failure is None for one in played),
        "started_behind": dict(behind),
        "kept": dict(sorted(kept.items())),
        "kept_turns": sum(example.turns for example in selection.kept),
        "left_out": dict(sorted(selection.left_out.items())),
        "beginnings": dict(sorted(found.items())),
        "tasks": {name: dict(sorted(counts.items())) for name, counts in sorted(by_task.items())},
        "sha256": dict(sorted(hashes.items())),
    }


def as_markdown(card: Mapping[str, Any]) -> str:
    """Return the card for people, with the head that dataset pages read."""
    rows, behind = [("episodes played", card["episodes"]), ("solved", card["solved"])], card["started_behind"]
    if behind["episodes"]:
        rows += [(f"of these, started behind a beginning: {name}", behind[name]) for name in ("episodes", "solved")]
    rows += [(f"kept: {kind}", count) for kind, count in card["kept"].items()]
    rows += [(f"left out: {reason}", count) for reason, count in card["left_out"].items()]
    rows += [(f"beginnings: {what}", count) for what, count in card["beginnings"].items()]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    verifier = "; ".join(f"{name}: {value}" for name, value in card["verifier"].items())
    hashes = "\n".join(f"- `{name}`: `{value}`" for name, value in card["sha256"].items())
    return f"""---
tags: [uirl, reinforcement-learning, user-interfaces]
---

# Round {card["round"]} in {card["environment"]["name"]}

Episodes of `{card["policy"]["model"]}` (`{card["policy"]["sha256"][:16]}`), seed {card["seed"]}, uirl {card["uirl"]}.
Verifier: {verifier}.

| | |
|---|---|
{table}

{hashes}
"""


SELECTION = "selection.json"
STEPS = ("collect", "verify", "select", "fine_tune", "evaluate")
"""What a round does, in this order."""


class RoundFolder(RunDirectory):
    """`round_01/` and so on. A step that is finished stands in `round.json`, with what it found; after a kill the round
    goes on with the first step that does not. Its `checkpoints` are of the fine-tuning under way."""

    def __init__(self, run: Path, number: int) -> None:
        super().__init__(run / f"round_{number:02d}")
        self.number = number
        self.episodes = self.path / "episodes.sqlite"
        self.examples = self.path / "sft.jsonl"
        self.parquet = self.path / "sft.parquet"
        with storage_errors(f"cannot create {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what each finished step found. Raises StorageError where the file is damaged."""
        return dict(self._found("round.json") or {})

    def has(self, step: str) -> bool:
        """Return whether a step is finished."""
        return step in self.facts()

    def finish(self, step: str, started: float, **facts: Any) -> None:
        """Note that a step, which began at `started` (`time.monotonic`), is finished, and what it found."""
        facts["seconds"] = round(time.monotonic() - started, 3)
        self.write_json("round.json", {**self.facts(), step: facts})

    def chosen(self) -> list[Example]:
        """Return what the round has chosen to learn from. Raises StorageError where the file is damaged."""
        return [Example(**line) for line in self._found(SELECTION) or ()]

    def hashes(self) -> dict[str, str]:
        """Return name -> SHA-256 of the files with data."""
        found = {}
        for path in (self.path / SELECTION, self.examples, self.parquet):
            if path.is_file():
                with storage_errors(f"cannot read {path}"):
                    found[path.name] = sha256_of(path)
        return found

    def _found(self, name: str) -> Any:
        """Return the JSON in a file; None: there is none."""
        try:
            return self.read_json(name) if (self.path / name).is_file() else None
        except StorageError as error:
            raise StorageError(f"{error}; remove the folder {self.path} to play it again") from None


def hash_of_weights(checkpoint: Path) -> str:
    """Return the SHA-256 of the names and hashes of a checkpoint's weights, as its manifest has them: equal weights
    have an equal one, wherever they were saved."""
    with storage_errors(f"cannot read {checkpoint / MANIFEST}"):
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
    weights = sorted((name, entry["sha256"]) for name, entry in files.items() if name.endswith(".safetensors"))
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()
