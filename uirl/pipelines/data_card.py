"""What the data of a round is: counts of all that was kept and left out with reasons, who judged, versions, hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from uirl import __version__
from uirl.config import ConfigStore
from uirl.pipelines.selection import Selection
from uirl.storage import TrajectoryStore


def data_card(
    config: ConfigStore,
    number: int,
    store: TrajectoryStore,
    selection: Selection,
    found: Mapping[str, int],
    behind: Mapping[str, int],
    *,
    policy: str,
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """Return the card of a round. `found`: what the search for beginnings counted; `behind`: episodes that started
    behind a beginning, and how many of them are solved; `policy`: hash of the policy that played; `hashes`: of the
    files."""
    played = store.list(split="train")
    kept = Counter(one.kind for one in selection.kept)
    by_task: dict[str, Counter[str]] = {}
    for one in played:
        by_task.setdefault(one.task_id, Counter())["episodes"] += 1
    for example in selection.kept:
        by_task[example.task][example.kind] += 1
    return {
        "round": number,
        "environment": {"name": config.environment.name, "options": config.environment.options},
        "policy": {"model": config.model.source, "sha256": policy},
        "verifier": _verifier(config),
        "uirl": __version__,
        "seed": config.training.seed,
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


def _verifier(config: ConfigStore) -> dict[str, Any]:
    settings, evolve = config.verification, config.evolve
    return {
        "episodes": "the environment's word" if not settings.enabled else (settings.rules or "the environment's word"),
        "judge": settings.judge if settings.enabled or evolve.prefixes == "judge" else None,
        "beginnings": evolve.prefixes,
        "certified": evolve.certify and evolve.prefixes != "off",
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
