"""One definition of success: whatever ends an episode without a word, everything that counts sees the true rate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.training.test_loop import cold, settings, train
from uirl import RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.curriculum import TaskCurriculum
from uirl.environments import BaseEnvironment
from uirl.environments.adapters.calls import CalledEpisode, EpisodeThread
from uirl.environments.adapters.gymnasium import GymnasiumEnvironment
from uirl.errors import EnvironmentFailure
from uirl.parsers import create_parser
from uirl.pipelines import Evolution
from uirl.pipelines.evolve import report_to, specs_of_round
from uirl.rollout.multi_turn import MultiTurnManager
from uirl.success import UNSAID
from uirl.tools import ToolRegistry
from uirl.training import measure
from uirl.training.checks.preflight import Finding, _success_finding
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.run_state import RunState
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Action, Failure, Observation, Task, Trajectory, Turn, Verdict
from uirl.viewer.groups import group
from uirl.viewer.runs import Run


def solvable(seed: int) -> bool:
    return seed % 4 == 0


class Late(BaseEnvironment):
    """Says `success` only where it ends a solved episode; what becomes of the others, `end` says."""

    runs_inline = True
    end = "goes on"

    def reset(self, seed: int | None = None, task: Task | None = None) -> str:
        self.seed = seed or 0
        return f"begin {self.seed % 7}"

    def tasks(self) -> list[Task]:
        return [Task("one"), Task("two")]

    def step(self, action: str) -> Any:
        if solvable(self.seed):
            return "there", 1.0, True, False, {"success": True}
        seen = Observation("x", (picture(1),)) if self.end == "unshowable" else "on"
        return seen, 0.0, self.end == "terminated", self.end == "truncated", {}

    def get_state_description(self) -> str:
        return "somewhere"


ENDS: dict[str, dict[str, Any]] = {
    "max_turns": {"inference.max_turns": 2},
    "token_budget": {"rollout.max_tokens": 30},
    "wall_time": {"rollout.max_seconds": 1e-9},
    "unshowable": {},
    "truncated": {},
    "terminated": {},
}


@pytest.mark.parametrize("end", ENDS)
def test_every_count_sees_the_true_rate_whatever_ends_the_others(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Late, "end", end)
    heard: list[bool] = []
    update = TaskCurriculum.update_group

    def listen(self: TaskCurriculum, task: str, outcomes: Sequence[bool], **keys: Any) -> Any:
        heard.extend(outcomes)
        return update(self, task, outcomes, **keys)

    monkeypatch.setattr(TaskCurriculum, "update_group", listen)
    config = settings(tmp_path, eval_every=1, stop_at_success=0.9)
    changes = ["checkpoint.keep_best=success", "curriculum.enabled=true", "training.warm_start.enabled=false"]
    config = config.override(changes + [f"{key}={value}" for key, value in ENDS[end].items()])
    summary = train(config, 2, Late())
    run = tmp_path / "run"
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        episodes = {one.id: (one, store.get(one.id)) for one in store.list()}
        outcomes = store.outcomes()
    assert {one.stop_reason for one, record in episodes.values() if not solvable(record.seed or 0)} == {end}
    for one, record in episodes.values():
        assert one.success is record.success is solvable(record.seed or 0), one

    def true_rate(step: int, split: str) -> float:
        seeds = [r.seed or 0 for one, r in episodes.values() if (one.step, one.split) == (step, split)]
        return sum(map(solvable, seeds)) / len(seeds)

    rows = read_metrics(run / "metrics.jsonl")
    assert [row["success"] for row in rows] == [true_rate(1, "train"), true_rate(2, "train")]
    assert [row["eval/success"] for row in rows] == [true_rate(1, "eval"), true_rate(2, "eval")]
    assert [row["count/judged_episodes"] for row in rows] == [16, 16]
    assert summary["stopped_because"] == "all epochs are done"
    assert (summary["success_before"], summary["success_after"]) == (true_rate(0, "test"), true_rate(2, "test"))
    assert summary["best"]["value"] == max(row["eval/success"] for row in rows)
    assert sum(heard) / len(heard) == (true_rate(1, "train") + true_rate(2, "train")) / 2
    assert len(heard) == 32
    assert (outcomes.judged, outcomes.solved) == (
        len(episodes),
        sum(solvable(r.seed or 0) for _, r in episodes.values()),
    )
    assert measure(run, episodes=16, environment=Late()).success == summary["success_after"]
    assert "16 of 16 judged" in capsys.readouterr().out


def ended(success: bool | None = None, *, environment: str = "late", **fields: Any) -> Trajectory:
    """An episode that the run cut, with or without a word."""
    said = {} if success is None else {"success": float(success)}
    return Trajectory(
        task=Task("a", environment), stop_reason=fields.pop("stop_reason", "max_turns"), metrics=said, **fields
    )


class Worsening(Late):
    """Its first 16 episodes, those of the evaluation before, are solved, later ones as `after` says."""

    begun = 0
    after = False

    def reset(self, seed: int | None = None, task: Task | None = None) -> str:
        type(self).begun += 1
        self.solved = type(self).begun <= 16 or self.after
        return super().reset(seed, task)

    def step(self, action: str) -> Any:
        return "there", float(self.solved), True, False, {"success": self.solved}


@pytest.mark.parametrize("stays", [False, True])
def test_a_run_whose_success_fell_says_so(stays: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = type("Worsening", (Worsening,), {"after": stays})
    config = cold(tmp_path)
    train(config, 1, kind())
    assert ("SUCCESS FELL" in capsys.readouterr().out) == (not stays)


def test_whoever_speaks_makes_the_silent_ones_of_this_environment_unsolved() -> None:
    for played in ([ended(), ended(True)], [ended(True), ended()]):  # in any order
        report = report_on(played)
        assert (report.success, report.judged, report.episodes) == (0.5, 2, 2)
        assert (report.tally.judged, report.tally.wins) == (2, 1)
    # of another environment nobody ever says it; a failure is no evidence; what is running may still be solved
    others = [ended(environment="mute"), ended(failure=Failure("engine", "gone")), ended(stop_reason=None)]
    report = report_on([ended(True), *others])
    assert (report.success, report.judged, report.episodes, report.failures) == (1.0, 1, 3, 1)
    # a verdict is no word of the environment: of those that were not judged nobody knows
    judged = ended(verdict=Verdict(1.0, True, "", "judge"))
    assert report_on([judged, ended()]).judged == 1
    assert report_on([ended(), ended()]).success is None


def test_what_was_heard_once_holds_for_the_whole_run_and_after_a_resume() -> None:
    state = RunState()
    assert report_on([ended(), ended()], speakers=state.speakers).success is None
    assert report_on([ended(True)], speakers=state.speakers).success == 1.0
    resumed = RunState.from_dict(state.to_dict())
    assert resumed == state
    assert report_on([ended(), ended()], speakers=resumed.speakers).success == 0.0


def test_what_was_counted_before_anybody_spoke_is_unsolved_once_somebody_did() -> None:
    state = RunState(before=report_on([ended(environment="late")] * 2 + [ended(True, environment="early")]).tally)
    state.interval_before = (0.2, 1.0)
    state.add(
        [ended(environment="late")] * 4 + [ended(environment="mute"), ended(failure=Failure("engine", "gone"))], []
    )
    state = RunState.from_dict(json.loads(json.dumps(state.to_dict())))
    state.settle()
    assert state.before is not None
    assert (state.before.success, state.before.judged, state.before.evidence, state.tally.judged) == (1.0, 1, 3, 0)
    assert state.interval_before == [0.2, 1.0]
    state.speakers.add("late")
    for _ in range(2):  # once is enough
        state.settle()
        assert (state.before.success, state.before.judged, state.before.evidence) == (1 / 3, 3, 3)
        assert state.interval_before is None, "of another success"
        assert (state.tally.success, state.tally.judged, state.tally.success_if_lost) == (0.0, 4, 0.0)


def test_the_store_agrees_whenever_the_word_comes(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add(ended(id="before"), step=1)
        store.add(ended(id="failed", failure=Failure("engine", "gone")), step=1)
        store.add(ended(id="judged", environment="mute", verdict=Verdict(1.0, True, "", "judge")), step=1)
        store.add(ended(id="mute", environment="mute"), step=1)
        assert store.outcomes().judged == 1
        store.add(ended(True, id="word"), step=2)
        store.add(ended(id="after"), step=2)
        expected = {"before": False, "failed": None, "judged": True, "mute": None, "word": True, "after": False}
        assert {one.id: one.success for one in store.list()} == expected
        assert {one.id: one.success for one in store} == expected
        assert store.get("before").metrics[UNSAID] == store.get("after").metrics[UNSAID] == 1.0
        assert [one.id for one in store.list(success=False)] == ["before", "after"]
    with TrajectoryStore(tmp_path / "t.sqlite") as store:  # in a process of its own
        assert store.speakers == {"late"}
        store.add(ended(id="later"), step=3)
        assert store.get("later").success is False


def test_the_check_tells_of_episodes_that_end_without_a_word() -> None:
    played = [ended(), ended(True), ended()]
    told = _success_finding(played, [])
    assert told.detail.startswith("3 of 3 judged")
    assert "2 ended (max_turns) without a word, though the environment says info['success'] of others" in told.detail
    assert "2 ended (max_turns)" in _success_finding([ended(), ended()], [ended(True)]).detail  # of a demonstration
    assert "of 2 nobody says" in _success_finding([ended(), ended()], [ended()]).detail
    assert _success_finding([ended(True), ended(False)], []) == Finding("success", True, "2 of 2 judged")


def test_a_curriculum_hears_nothing_of_episodes_that_began_behind_a_beginning(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listening(UniformTasks):
        def report(self, trajectories: Sequence[Trajectory], step: int) -> None:
            heard.extend(one.id for one in trajectories)

    tasks = [Task("one", "late"), Task("two", "late")]
    source = Listening(tasks, seed=0)
    start = Trajectory("solved", tasks[0], [Turn(Observation("begin"))], seed=3)
    specs = specs_of_round(source, groups=3, size=2, starts=[start])
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        for spec in specs:
            store.add(ended(True, id=spec.trajectory_id, group_id=spec.group_id), step=1)
        report_to(source, store, 1, {spec.group_id for spec in specs if spec.start})
    assert heard == [spec.trajectory_id for spec in specs if not spec.start]
    assert len(heard) == 4


def test_evolution_sees_the_true_rate_in_every_round(tmp_path: Path) -> None:
    changes = ["training.warm_start.enabled=false", "evolve={rounds: 2, episodes: 8, group_size: 2, prefixes: 'off'}"]
    config = settings(tmp_path).override([*changes, "inference.max_turns=2"])
    evolution = Evolution(config, Late())
    summary = evolution.run()
    evolution.close()
    for number in (1, 2):
        with TrajectoryStore(tmp_path / "run" / f"round_{number:02d}" / "episodes.sqlite", read_only=True) as store:
            seeds = {one.id: store.get(one.id).seed or 0 for one in store.list()}
            assert {one.id: one.success for one in store.list()} == {id: solvable(seed) for id, seed in seeds.items()}
            held_out = [solvable(seeds[one.id]) for one in store.list(split="test")]
        row = summary["rounds"][number]
        assert (row["success"], row["judged"], row["episodes"]) == (sum(held_out) / len(held_out), 16, 16)


class Reached(GymnasiumEnvironment):
    """CartPole in which every action of a policy is a right push."""

    def step(self, action: str) -> Any:
        return super().step("1")


@pytest.mark.parametrize(("turns", "solved"), [(4, False), (5, True), (6, True)])
def test_a_return_that_was_reached_counts_where_the_run_cuts(tmp_path: Path, turns: int, solved: bool) -> None:
    config = settings(tmp_path).override(["training.warm_start.enabled=false", f"inference.max_turns={turns}"])
    trainer = RayPPOTrainer(config, Reached("CartPole-v1", success_return=5))
    report = trainer.evaluate(4)
    trainer.cleanup()
    assert {one.stop_reason for one in report.trajectories} == {"max_turns"}
    assert (report.success, report.judged) == (float(solved), 4)


def test_a_return_below_zero_is_no_success_before_the_environment_ends() -> None:
    env = GymnasiumEnvironment("MountainCar-v0", success_return=-110.0)
    env.reset(seed=0)
    assert [env.step("1")[4]["success"] for _ in range(50)] == [False] * 50
    env.close()


def test_tools_around_an_environment_leave_its_word_as_it_is() -> None:
    played = []
    for seed in range(8):
        manager = MultiTurnManager(ToolRegistry(), create_parser("qwen"), Late(), max_turns=2)
        manager.reset(seed)
        while manager.trajectory.stop_reason is None:
            manager.step("go on")
        played.append(manager.trajectory)
        manager.close()
    report = report_on(played)
    assert (report.success, report.judged) == (0.25, 8)


class Breaks(BaseEnvironment):
    """Says of some episodes that they are solved, and breaks before these have ended."""

    runs_inline = True

    def reset(self, seed: int | None = None) -> str:
        self.seed = seed or 0
        self.turns = 0
        return "begin"

    def step(self, action: str) -> Any:
        self.turns += 1
        if self.turns > 1:
            raise ConnectionError("the server is gone")
        return "on", 1.0, not solvable(self.seed), {"success": solvable(self.seed) or self.seed % 4 == 1}

    def get_state_description(self) -> str:
        return "somewhere"


def test_what_failed_is_nowhere_counted_as_solved(tmp_path: Path) -> None:
    """The environment's word stands in the record of an episode that broke later; it is no evidence all the same."""
    changes = ["training.warm_start.enabled=false", "evolve={rounds: 1, episodes: 16, group_size: 2, prefixes: 'off'}"]
    evolution = Evolution(settings(tmp_path).override([*changes, "rollout.retries=1"]), Breaks())
    evolution.run()
    evolution.close()
    folder = tmp_path / "run" / "round_01"
    facts = json.loads((folder / "round.json").read_text())
    with TrajectoryStore(folder / "episodes.sqlite", read_only=True) as store:
        train = store.list(split="train")
        broken = [one for one in train if one.failure is not None]
        right = [one for one in train if (store.get(one.id).seed or 0) % 4 == 1]
        assert broken
        assert right
        assert all(store.get(one.id).metrics["success"] == 1.0 for one in broken)
        assert {store.get(one.id).success for one in broken} == {one.success for one in broken} == {None}
        assert store.count(split="train", success=True) == len(right)
        shown = group(Run("round", folder / "episodes.sqlite"), broken[0].group_id)
    assert facts["collect"]["solved"] == len(right)
    assert shown is not None
    assert shown["solved"] == 0


def test_what_failed_is_not_solved_for_those_who_call_functions_either() -> None:
    episode = CalledEpisode(Breaks())
    thread = EpisodeThread(episode)
    thread.run(episode.reset(seed=0))
    thread.run(episode.act(Action(text="on")))
    assert episode.success is True
    with pytest.raises(EnvironmentFailure):
        thread.run(episode.act(Action(text="on")))
    assert (episode.success, episode.reward) == (None, None)
    thread.close()
