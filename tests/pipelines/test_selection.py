"""What of a round is kept: each episode is kept or counted under one reason; and the round's files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.storage.episodes import episode as stored
from uirl.config import ConfigStore, EvolveConfig
from uirl.errors import StorageError
from uirl.images import Screenshot
from uirl.pipelines.evolve import batches_of
from uirl.pipelines.selection import (
    Example,
    RoundFolder,
    Selection,
    as_markdown,
    candidate_of,
    data_card,
    digests,
    hash_of_weights,
    judged_by,
    select,
    to_plain,
)
from uirl.storage import TrajectoryStore
from uirl.types import Action, Failure, Observation, Task, ToolResult, Trajectory, Turn, Verdict

PAGE = Observation("page")


def episode(way: str, *, id: str = "t", solved: bool | None = True, right: int | None = None) -> Trajectory:
    """An episode whose turns see 'page' and say one letter each."""
    turns = [Turn(PAGE, response_ids=(1,), action=Action(letter)) for letter in way]
    verdict = None if solved is None else Verdict(float(solved), solved, correct_prefix=right)
    return Trajectory(id, Task("a"), turns, "terminated", verdict=verdict, seed=1)


def example(id: str, way: str, kind: str = "solved", task: str = "a", instance: str = "") -> Example:
    beginnings = tuple(way[: i + 1] for i in range(len(way)))
    return Example(id, len(way), kind, task, instance or id, beginnings)  # type: ignore[arg-type]


def test_what_an_episode_has_to_learn_from() -> None:
    solved, beginning = candidate_of(episode("abc")), candidate_of(episode("abx", solved=False, right=2))
    assert isinstance(solved, Example)
    assert isinstance(beginning, Example)
    assert (solved.kind, solved.turns, solved.task, solved.instance) == ("solved", 3, "a", "a/1")
    assert (beginning.kind, beginning.turns) == ("beginning", 2)
    assert beginning.beginnings == solved.beginnings[:2]  # the same was shown and said until there
    grouped = episode("a")
    grouped.seed, grouped.group_id = None, "g"
    assert candidate_of(grouped).instance == "a/g"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (episode("abx", solved=False), "not solved, no right beginning is known"),
        (episode("abx", solved=False, right=0), "not solved, wrong from the first turn"),
        (episode("abx", solved=None), "nobody says whether it was solved"),
        (episode(""), "has no tokens"),
        (Trajectory("t", turns=[Turn(PAGE, response_ids=(1,)), Turn(PAGE)]), "has no tokens"),
        (Trajectory("t", failure=Failure("judge", "timeout")), "failed: judge"),
    ],
)
def test_why_an_episode_has_nothing(made: Trajectory, reason: str) -> None:
    assert candidate_of(made) == reason


def test_all_that_was_shown_and_said_makes_a_digest() -> None:
    def of(task: str = "a", goal: str = "g", seen: Observation = PAGE, said: str = "x") -> str:
        (digest,) = digests(Trajectory(task=Task(task, goal=goal), turns=[Turn(seen, action=Action(said))]))
        return digest

    shot = Screenshot(b"1")
    others = [of(), of(task="b"), of(goal="h"), of(said="y"), of(seen=Observation("other"))]
    others += [of(seen=Observation("page", (one,))) for one in (shot, b"raw", Screenshot(b"2").hash)]
    results = [ToolResult("f", result=1), ToolResult("g", result=1), ToolResult("f", result=2)]
    others += [of(seen=Observation("page", tool_results=(one,))) for one in results]
    assert len(set(others)) == len(others)
    assert of(seen=Observation("page", (shot,))) == of(seen=Observation("page", (shot.hash,)))
    first, second = (list(digests(episode(way))) for way in ("ab", "ac"))
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)


ONE = [example(str(n), f"a{n}", instance="one") for n in range(5)]
TASKS = [example(f"a{n}", f"a{n}") for n in range(9)] + [example("b", "b", task="b")]
MIXED = [example("s1", "q"), example("s2", "r")] + [example(f"p{n}", f"p{n}", "beginning") for n in range(9)]
SAME = [example("1", "abc"), example("2", "abc"), example("3", "ab", "beginning"), example("4", "xy", "beginning")]


@pytest.mark.parametrize(
    ("candidates", "limits", "kept", "left_out"),
    [
        # which of equal ones, and of too many, follows from the seed alone
        ([*SAME, "bad"], {}, "2 4", {"bad": 1, "the same as another": 1, "the beginning of another": 1}),
        (ONE, {"per_instance": 2}, "0 4", {"more of one instance": 3}),
        (ONE[::-1], {"per_instance": 2}, "0 4", {"more of one instance": 3}),
        # ten examples of two tasks: an equal share is five
        (TASKS, {"task_share": 1.0}, "a8 a0 a4 a7 a2 b", {"more of one task": 4}),
        (TASKS, {"task_share": 0.1}, "a8 b", {"more of one task": 8}),
        (TASKS[:9], {"task_share": 0.1}, "a8 a0 a4 a7 a2 a3 a1 a5 a6", {}),  # one task takes no share of others
        # s solved ones and a share p: s p / (1 - p) beginnings
        (MIXED, {"prefix_share": 0.5}, "s1 s2 p3 p2", {"more beginnings than their share": 7}),
        (MIXED, {"prefix_share": 0.8}, "s1 s2 p3 p2 p4 p1 p0 p5 p7 p8", {"more beginnings than their share": 1}),
        (MIXED, {"prefix_share": 1.0}, "s1 s2 p3 p2 p4 p1 p0 p5 p7 p8 p6", {}),
        (MIXED, {"prefix_share": 0.0}, "s1 s2", {"more beginnings than their share": 9}),
        # solved ones come before beginnings of the same instance, longer ones before shorter ones
        (
            [example("p", "xxx", "beginning", instance="i"), example("s", "b", instance="i")],
            {"per_instance": 1}, "s", {"more of one instance": 1},
        ),
        ([example("1", "a", instance="i"), example("2", "bb", instance="i")], {"per_instance": 1}, "2",
         {"more of one instance": 1}),
    ],
)  # fmt: skip
def test_limits_and_their_reasons(
    candidates: list[Example | str], limits: dict[str, Any], kept: str, left_out: dict[str, int]
) -> None:
    found = select(candidates, EvolveConfig(**limits), 0)
    assert (" ".join(one.id for one in found.kept), found.left_out) == (kept, left_out)


def test_every_pass_has_an_order_of_its_own_that_follows_from_the_seed() -> None:
    settings = EvolveConfig(epochs=2, batch_size=2)
    assert batches_of(5, settings, 0) == [[3, 4], [2, 0], [1], [0, 1], [3, 4], [2]]
    assert batches_of(5, settings, 1) != batches_of(5, settings, 0)


def test_the_card_of_a_round(tmp_path: Path) -> None:
    about = {
        "environment": {"name": "screen", "options": {}},
        "policy": {"model": "uirl/tiny-lm", "sha256": "0123456789abcdefgh"},
        "verifier": judged_by(ConfigStore().verification, ConfigStore().evolve),
        "seed": 3,
    }
    failed = stored("f")
    failed.failure = Failure("engine", "gone")
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add_many([stored("a"), stored("b", success=False), stored("z", task="z"), failed], step=1)
        store.add(stored("held out"), step=1, split="test")
        chosen = Selection([example("a", "ab"), example("b", "x", "beginning")])
        chosen.left_out.update({"late": 2, "bad": 1})
        card = data_card(
            about, 4, store, chosen, {"found by fork": 1}, {"episodes": 2, "solved": 1}, hashes={"sft.jsonl": "h"},
        )  # fmt: skip
    version = card.pop("uirl")
    assert card == {
        "round": 4,
        "environment": {"name": "screen", "options": {}},
        "policy": {"model": "uirl/tiny-lm", "sha256": "0123456789abcdefgh"},
        "verifier": {"episodes": "the environment's word", "judge": None, "beginnings": "fork", "certified": True},
        "seed": 3,
        "episodes": 4,
        "solved": 2,
        "started_behind": {"episodes": 2, "solved": 1},
        "kept": {"beginning": 1, "solved": 1},
        "kept_turns": 3,
        "left_out": {"bad": 1, "late": 2},
        "beginnings": {"found by fork": 1},
        "tasks": {"a": {"beginning": 1, "episodes": 3, "solved": 1}, "z": {"episodes": 1}},
        "sha256": {"sft.jsonl": "h"},
    }
    told = as_markdown({**card, "uirl": version})
    head, rest = told.split("# Round 4 in screen\n\n")
    assert head == "---\ntags: [uirl, reinforcement-learning, user-interfaces]\n---\n\n"
    verifier = "episodes: the environment's word; judge: None; beginnings: fork; certified: True"
    table = [
        ("episodes played", 4), ("solved", 2), ("of these, started behind a beginning: episodes", 2),
        ("of these, started behind a beginning: solved", 1), ("kept: beginning", 1), ("kept: solved", 1),
        ("left out: bad", 1), ("left out: late", 2), ("beginnings: found by fork", 1),
    ]  # fmt: skip
    rows = "".join(f"| {name} | {count} |\n" for name, count in table)
    assert rest == (
        f"Episodes of `uirl/tiny-lm` (`0123456789abcdef`), seed 3, uirl {version}.\nVerifier: {verifier}.\n\n"
        f"| | |\n|---|---|\n{rows}\n- `sft.jsonl`: `h`\n"
    )
    assert "started behind" not in as_markdown({**card, "uirl": "1", "started_behind": {"episodes": 0, "solved": 0}})


@pytest.mark.parametrize(
    ("changes", "verifier"),
    [
        (["evolve.prefixes=off"], ("the environment's word", None, "off", False)),
        (["evolve.certify=false"], ("the environment's word", None, "fork", False)),
        (["verification.judge=eye"], ("the environment's word", None, "fork", True)),
        (["verification.judge=eye", "evolve.prefixes=judge"], ("the environment's word", "eye", "judge", True)),
        (["verification.judge=eye", "verification.enabled=true"], ("the environment's word", "eye", "fork", True)),
        (["verification.enabled=true", "verification.rules=my.rules:f"], ("my.rules:f", None, "fork", True)),
    ],
)
def test_the_card_says_who_judged(changes: list[str], verifier: tuple[Any, ...]) -> None:
    config = ConfigStore().override(changes)
    assert tuple(judged_by(config.verification, config.evolve).values()) == verifier


def test_the_files_of_a_round(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path, 3)
    assert (folder.path, folder.path.is_dir()) == (tmp_path / "round_03", True)
    assert (folder.facts(), folder.chosen(), folder.hashes(), folder.has("collect")) == ({}, [], {}, False)
    folder.finish("collect", 0.0, episodes=4)
    folder.finish("verify", 0.0)
    assert (folder.facts()["collect"]["episodes"], list(folder.facts())) == (4, ["collect", "verify"])
    assert folder.facts()["verify"]["seconds"] > 0
    assert folder.has("verify")
    folder.write_json("selection.json", [to_plain(example("a", "ab"))])
    assert folder.chosen() == [Example("a", 2, "solved", "a")]
    folder.examples.write_text("x")
    assert folder.hashes()["sft.jsonl"] == hashlib.sha256(b"x").hexdigest()
    assert list(folder.hashes()) == ["selection.json", "sft.jsonl"]
    (folder.path / "round.json").write_text("{")
    with pytest.raises(StorageError, match=r"round\.json is not JSON.*; remove the folder .*round_03 to play it again"):
        folder.facts()


def test_equal_weights_have_an_equal_hash(tmp_path: Path) -> None:
    def of(files: dict[str, str]) -> str:
        manifest = {"files": {name: {"sha256": said} for name, said in files.items()}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        return hash_of_weights(tmp_path)

    one = of({"a.safetensors": "1", "b.safetensors": "2", "state.json": "3"})
    assert of({"b.safetensors": "2", "a.safetensors": "1", "state.json": "4"}) == one
    assert of({"a.safetensors": "1", "b.safetensors": "3"}) != one
    assert one == hashlib.sha256(b'[["a.safetensors", "1"], ["b.safetensors", "2"]]').hexdigest()
