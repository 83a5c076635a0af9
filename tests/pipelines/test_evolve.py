"""Whole small runs of `uirl evolve`: their files, every key, and kills at any point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.corridor import Corridor
from tests.pipelines.mortal import make_mortal
from tests.training.test_step_credit import played as episode_of
from tests.verification.scripted_judge import ScriptedJudge
from uirl.cli.main import main
from uirl.config import ConfigStore, EvolveConfig
from uirl.errors import ConfigError, StorageError
from uirl.pipelines import Evolution
from uirl.pipelines.evolve import find_beginnings, fine_tune
from uirl.pipelines.selection import STEPS
from uirl.runtime.files import sha256_of
from uirl.storage import TrajectoryStore
from uirl.verification.prefixes import FineGrainedTrajectoryAnalyzer

SMALL = [
    "model.model_name=uirl/tiny-lm",
    "model.tiny.hidden_size=32",
    "environment.name=tests.pipelines.corridor:Corridor",
    "inference.max_tokens=4",
    "training.eval_episodes=8",
    "training.warm_start={steps: 12, batch_size: 16, learning_rate: 0.03, evaluate_every: null, stop_at_success: null}",
    "evolve.rounds=2",
    "evolve.episodes=16",
    "evolve.group_size=4",
    "evolve.batch_size=4",
    "evolve.prefix_share=0.9",
]


def made(folder: Path, *changes: str, name: str = "run", resume: bool = False) -> Evolution:
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}", f"checkpoint.resume={str(resume).lower()}"]
    return Evolution(ConfigStore().override([*SMALL, *where, *changes]))


def run(folder: Path, *changes: str, name: str = "run", resume: bool = False) -> dict[str, Any]:
    evolution = made(folder, *changes, name=name, resume=resume)
    try:
        return evolution.run()
    finally:
        evolution.close()


def facts(folder: Path) -> list[dict[str, Any]]:
    """What the rounds found, without times and without what was played in this process alone."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("round_*/round.json"))]
    for steps in found:
        for step in steps.values():
            for name in ("seconds", "played_now"):
                step.pop(name, None)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder / "run"


def test_every_episode_is_accounted_for(whole: Path) -> None:
    for number in (1, 2):
        folder = whole / f"round_{number:02d}"
        card = json.loads((folder / "data_card.json").read_text())
        assert card["episodes"] == 16 == sum(card["kept"].values()) + sum(card["left_out"].values())
        assert sum(counts["episodes"] for counts in card["tasks"].values()) == 16
        chosen = json.loads((folder / "selection.json").read_text())
        lines = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
        assert {line["id"] for line in lines} == {one["id"] for one in chosen}
        turns = {one["id"]: one["turns"] for one in chosen}
        for line in lines:
            assert sum(message["role"] == "assistant" for message in line["messages"]) == turns[line["id"]]
        assert card["sha256"]["sft.jsonl"] == sha256_of(folder / "sft.jsonl")
        assert "| episodes played | 16 |" in (folder / "README.md").read_text()
        with TrajectoryStore(folder / "episodes.sqlite", read_only=True) as store:
            assert (store.count(split="train"), store.count(split="test")) == (16, 8)
    assert set(facts(whole)[1]) == set(STEPS)
    assert set(facts(whole)[0]) == {"fine_tune", "evaluate"}
    rounds = json.loads((whole / "summary.json").read_text())["rounds"]
    assert [row["round"] for row in rounds] == [0, 1, 2]


def test_beginnings_are_found_and_certified(whole: Path) -> None:
    found = [steps["verify"]["beginnings"] for steps in facts(whole)[1:]]
    assert sum(counts.get("found by fork", 0) for counts in found) > 0
    assert sum(counts.get("certified", 0) for counts in found) > 0
    with TrajectoryStore(whole / "round_01" / "episodes.sqlite", read_only=True) as store:
        reasons = [t.verdict.reason for t in store if t.verdict is not None and t.verdict.correct_prefix]
        reasons += [t.verdict.reason for t in store if t.verdict is not None and "fork" in t.verdict.reason]
    assert all("its beginning: fork" in reason for reason in reasons)


class Elsewhere(Corridor):
    """Shows other screens than were recorded."""

    def _look(self) -> str:
        return f"somewhere else, door {self.door}"


async def test_what_is_not_certified_is_no_right_beginning(tmp_path: Path) -> None:
    found = {}
    for name, environment in (("here", Corridor()), ("elsewhere", Elsewhere())):
        with TrajectoryStore(tmp_path / f"{name}.sqlite") as store:
            store.add_many([episode_of("aba", id="solved"), episode_of("abc", id="late")], step=1, split="train")
            analyzer, timeouts = FineGrainedTrajectoryAnalyzer(), (60.0, 60.0)
            counts = await find_beginnings(store, analyzer, environment, certify=True, timeouts=timeouts)
            found[name] = (counts["certified"], store.get("late").verdict.correct_prefix)
    assert found == {"here": (1, 2), "elsewhere": (0, None)}


def test_every_round_is_measured_on_the_evaluation_tasks(tmp_path: Path) -> None:
    for split in ("train", "eval"):
        (tmp_path / f"{split}.json").write_text(f'[{{"id": "{split}-a"}}, {{"id": "{split}-b"}}]')
    tasks = [f"environment.tasks={tmp_path}/train.json", f"environment.eval_tasks={tmp_path}/eval.json"]
    run(tmp_path, *tasks, "evolve.rounds=1")
    for folder in sorted((tmp_path / "run").glob("round_*")):
        with TrajectoryStore(folder / "episodes.sqlite", read_only=True) as store:
            played = {one.split: {one.task_id for one in store.list(split=one.split)} for one in store.list()}
        assert played["test"] == {"eval-a", "eval-b"}
        assert played.get("train", {"train-a"}) <= {"train-a", "train-b"}


class Killed(BaseException):
    """As a kill: nobody cleans up after it."""


KILLS = [
    ("uirl.storage.TrajectoryStore.add", 7),  # among the episodes
    ("uirl.storage.TrajectoryStore.set_verdict", 3),  # among the beginnings
    ("uirl.pipelines.evolve.data_card", 1),
    ("uirl.learner.Learner.supervised", 2),  # among the steps
    ("uirl.pipelines.evolve.evaluate_episodes", 1),
]
"""Function and number of its call, of the process that continued after the kill before it; test_kills.py kills real
processes in every phase."""


def test_a_run_that_was_killed_again_and_again_ends_as_the_one_that_was_not(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Killed

    for number, (target, at) in enumerate(KILLS):
        before = facts(tmp_path / "run")
        with monkeypatch.context() as patch:
            make_mortal(target, at, "before", die=die, put=patch.setattr)
            with pytest.raises(Killed):
                run(tmp_path, resume=number > 0)
        for old, new in zip(before, facts(tmp_path / "run"), strict=False):
            assert {step: new[step] for step in old} == old  # what was finished stayed
    summary = run(tmp_path, resume=True)
    assert strip(facts(tmp_path / "run")) == strip(facts(whole))
    assert [row["success"] for row in summary["rounds"]] == [
        row["success"] for row in json.loads((whole / "summary.json").read_text())["rounds"]
    ]


def strip(found: list[dict[str, Any]]) -> Any:
    """Facts without what depends on where a kill fell: how often a verdict was found before."""
    for steps in found:
        steps.get("verify", {}).pop("beginnings", None)
        steps["fine_tune"].pop("seconds", None)
        steps["fine_tune"].pop("loss", None)
    return found


def test_a_finished_run_that_goes_on_does_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("nothing is left to do")

    for work in ("collect", "fine_tune", "evaluate_episodes"):
        monkeypatch.setattr(f"uirl.pipelines.evolve.{work}", never)
    run(whole.parent, resume=True)
    with pytest.raises(StorageError, match="already holds a run"):
        run(whole.parent)


def test_more_rounds_can_follow(whole: Path, tmp_path: Path) -> None:
    short = run(tmp_path, "evolve.rounds=1")
    longer = run(tmp_path, resume=True)
    assert longer["rounds"][:2] == short["rounds"]
    assert strip(facts(tmp_path / "run")) == strip(facts(whole))


EFFECTS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], Any]]] = {
    "rounds": ("1", len),
    "episodes": ("8", lambda f: f[1]["collect"]["episodes"]),
    "group_size": ("8", lambda f: (f[1]["collect"], f[1]["select"])),
    "prefixes": ("off", lambda f: f[1]["verify"]),
    "certify": ("false", lambda f: f[1]["verify"]),
    "restarts": ("1.0", lambda f: f[2]["collect"]["started_behind"]),
    "rounds_kept": ("1", lambda f: f[2]["fine_tune"]["sequences"]),
    "per_instance": ("1", lambda f: f[1]["select"]),
    "prefix_share": ("0.0", lambda f: f[1]["select"]),
    "epochs": ("1", lambda f: f[1]["fine_tune"]["steps"]),
    "batch_size": ("2", lambda f: f[1]["fine_tune"]["steps"]),
    "learning_rate": ("0.05", lambda f: f[1]["fine_tune"]["policy"]),
    "warmup_steps": ("0", lambda f: f[1]["fine_tune"]["policy"]),
    "from_base": ("true", lambda f: f[2]["fine_tune"]["policy"]),
}
OF_TWO_ROUNDS = {"restarts", "rounds_kept", "from_base"}
TRIED_ELSEWHERE = {
    "task_share": "tests/pipelines/test_selection.py: this environment has one task",
    "parquet": "tests/clients/test_parquet.py: pyarrow may be missing",
}


def test_every_key_is_tried() -> None:
    assert EFFECTS.keys() | TRIED_ELSEWHERE.keys() == set(EvolveConfig.model_fields)


@pytest.mark.slow
@pytest.mark.parametrize("key", EFFECTS)
def test_every_key_has_an_effect(whole: Path, tmp_path: Path, key: str) -> None:
    value, seen = EFFECTS[key]
    alone = [] if key in OF_TWO_ROUNDS else ["evolve.rounds=1"]
    run(tmp_path, *alone, f"evolve.{key}={value}")
    assert seen(facts(tmp_path / "run")) != seen(facts(whole))


def test_keys_that_need_a_judge_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"verification.judge names none"):
        made(tmp_path, "evolve.prefixes=judge")
    with pytest.raises(ConfigError, match=r"evolve.episodes=10 is no multiple of evolve.group_size=4"):
        made(tmp_path, "evolve.episodes=10")


def test_beginnings_by_the_judge_need_no_solved_episode(tmp_path: Path) -> None:
    with ScriptedJudge() as server:
        server.on_track = lambda seen: (
            "yes" if "2. " not in str(seen.body["messages"][1]) else "no"
        )  # one turn is right
        run(
            tmp_path,
            "evolve.prefixes=judge",
            "evolve.group_size=1",  # no other episode to compare with
            "evolve.rounds=1",
            "evolve.prefix_share=1.0",
            "verification.judge=eye",
            f"verification.judge_url={server.url}",
        )
    (_, found) = facts(tmp_path / "run")
    assert found["verify"]["beginnings"]["found by judge"] > 0
    assert found["select"]["beginnings"] > 0


def test_what_started_behind_a_beginning_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "evolve.restarts=1.0")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("round 2/2  success"))
    first, second = (tmp_path / "run" / name for name in ("round_01", "round_02"))
    with TrajectoryStore(first / "episodes.sqlite", read_only=True) as store:
        earlier = {one.seed for one in store}
    with TrajectoryStore(second / "episodes.sqlite", read_only=True) as store:
        played = [store.get(one.id) for one in store.list(split="train")]
    behind = [bool(one.success) for one in played if one.seed in earlier]  # in an instance of the round before
    others = [bool(one.success) for one in played if one.seed not in earlier]
    assert len(behind) == 4
    told = (
        f"solved {sum(others)} of {len(others)} from the start, {sum(behind)} of {len(behind)} behind a beginning, kept"
    )
    assert told in line
    card = json.loads((second / "data_card.json").read_text())
    assert card["started_behind"] == {"episodes": len(behind), "solved": sum(behind)}
    assert card["solved"] == sum(behind) + sum(others)
    assert f"| of these, started behind a beginning: solved | {sum(behind)} |" in (second / "README.md").read_text()


def test_the_curriculum_of_the_config_chooses_and_hears_of_every_round(tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('[{"id": "a"}, {"id": "b"}]')
    run(tmp_path, f"environment.tasks={tmp_path}/two.json", "curriculum.enabled=true")
    first, second = (steps["collect"]["tasks"] for steps in facts(tmp_path / "run")[1:])
    assert (first["position"], second["position"]) == (4, 8)  # groups
    assert first["curriculum"] != second["curriculum"]


def test_the_engine_sleeps_while_the_policy_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def sleep() -> None:
        order.append("sleep")

    def learn(*arguments: Any) -> dict[str, float]:
        order.append("learn")
        return fine_tune(*arguments)

    evolution = made(tmp_path, "evolve.rounds=1", "training.warm_start.enabled=false")
    monkeypatch.setattr(evolution._parts.engine, "sleep", sleep)
    monkeypatch.setattr("uirl.pipelines.evolve.fine_tune", learn)
    try:
        evolution.run()
    finally:
        evolution.close()
    assert order == ["sleep", "learn"]


def test_keeping_the_best_is_refused_where_every_round_keeps_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint.keep_best=success does nothing in `uirl evolve`"):
        made(tmp_path, "checkpoint.keep_best=success", "training.eval_every=1")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "small.yaml"
    config.write_text("evolve: {rounds: 1}\n")
    where = f"logging.runs_dir={tmp_path}"
    words = [word for word in SMALL if not word.startswith("evolve.rounds")]
    assert main(["evolve", str(config), where, *words]) == 0
    said = capsys.readouterr().out
    assert "round 1/1  success" in said
    assert "small-evolve\n  round 0 " in said
    path = tmp_path / "small-evolve"
    assert main(["evolve", str(path), "--resume"]) == 0
    assert main(["evolve", str(path)]) == 2
    assert "go on with it by --resume" in capsys.readouterr().err
    assert main(["eval", str(path), "--episodes", "8"]) == 0
