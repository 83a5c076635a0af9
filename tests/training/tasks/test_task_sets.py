"""Which tasks a run is trained and measured on, and that every evaluation plays the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import cold, settings, train
from uirl import ConfigError, ConfigStore, EnvironmentConfig, RayPPOTrainer
from uirl.cli.main import main
from uirl.training import measure
from uirl.training.tasks.task_sets import task_sets
from uirl.types import Observation, Task

ROOMS = {"train": ("a", "b"), "test": ("x", "y", "z")}


class Rooms(Countdown):
    """A set of rooms; which one the agent is in, only the task says."""

    def __init__(self, rooms: str = "train", turns: int = 2) -> None:
        super().__init__(turns)
        self.rooms = rooms

    def tasks(self) -> list[Task]:
        return [Task(f"room/{name}", goal=f"leave {name}") for name in ROOMS[self.rooms]]

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:  # type: ignore[override]
        super().reset(seed)
        return Observation(task.goal if task else "")

    def controls(self) -> dict[str, Any]:
        return {"no": "no"}


def names(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def sets(dataset: Any = None, eval_dataset: Any = None, **section: Any) -> Any:
    own = EnvironmentConfig(**section)
    worlds = [Rooms(**own.options_for(split)) for split in ("train", "eval")]
    return task_sets(own, *worlds, dataset, eval_dataset)


def test_evaluations_take_the_tasks_that_eval_options_choose() -> None:
    made = sets(eval_options={"rooms": "test"})
    assert (names(made.train), names(made.evaluation)) == (["room/a", "room/b"], ["room/x", "room/y", "room/z"])
    assert made.of_environment
    assert made.summary == "evaluation: 3 tasks from environment.eval_options, none of them a training task"


def test_without_another_word_evaluations_take_the_training_tasks() -> None:
    for made in (sets(), sets(eval_options={"turns": 4})):
        assert made.evaluation == made.train
        assert made.summary == (
            "evaluation: 2 tasks from the training tasks; all of them training tasks, on instances of other seeds"
        )
    made = sets(dataset=["one", "two", "three"], eval_options={"turns": 4})
    assert [task.goal for task in made.evaluation] == ["one", "two", "three"]
    assert not made.of_environment
    assert names(sets(dataset=["one"], eval_options={"rooms": "test"}).evaluation) == ["room/x", "room/y", "room/z"]


def test_an_evaluation_dataset_goes_first() -> None:
    made = sets(["one"], [{"id": "e", "goal": "other"}], eval_options={"rooms": "test"})
    assert (names(made.evaluation), made.source, made.of_environment) == (["e"], "eval_dataset", False)


def test_files_of_tasks(tmp_path: Path) -> None:
    train, held_out = tmp_path / "train.json", tmp_path / "eval.json"
    train.write_text(json.dumps(["open the box", "close the box"]))
    held_out.write_text(json.dumps({"tasks": [{"id": "h", "goal": "burn the box", "tags": ["hot"], "seed": 3}]}))
    made = sets(tasks=str(train), eval_tasks=str(held_out))
    assert [task.goal for task in made.train] == ["open the box", "close the box"]
    assert made.evaluation == [Task("h", "screen", goal="burn the box", tags=("hot",), seed=3)]
    assert str(held_out) in made.summary
    assert sets(tasks=str(train)).evaluation == made.train
    assert names(sets(["mine"], tasks=str(train)).train) == ["Rooms/0"], "what code hands over wins"
    held_out.write_text("{")
    with pytest.raises(ConfigError, match="expected a JSON list"):
        sets(eval_tasks=str(held_out))


def test_instances_that_training_plays_too_are_counted() -> None:
    fixed = [Task("one", seed=1), Task("two", seed=2)]
    made = sets(fixed, [Task("one", seed=1), Task("two", seed=9), Task("three", seed=3)])
    assert names(made.repeated) == ["one"]
    assert made.summary.endswith(
        "; 2 of them training tasks, on instances of other seeds, "
        "but 1 name the seed of the instance that training plays"
    )


def watched(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The tasks of every evaluation from now on."""
    from uirl.training.evaluation import evaluation

    seen: list[set[str]] = []
    report = evaluation.report_on

    def noting(trajectories: Any, *more: Any) -> Any:
        seen.append({t.task.id for t in trajectories})
        return report(trajectories, *more)

    monkeypatch.setattr(evaluation, "report_on", noting)
    return seen


def small(folder: Path) -> ConfigStore:
    config = settings(folder, eval_every=1, eval_episodes=6, batch_size=4)
    config.training.warm_start.steps = config.training.warm_start.evaluate_every = 1
    config.training.warm_start.evaluate_episodes = 6
    return config


def test_every_evaluation_of_a_run_plays_the_same_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path)
    config.environment.name = f"{__name__}:Rooms"
    config.environment.options, config.environment.eval_options = {}, {"rooms": "test"}
    seen = watched(monkeypatch)
    train(config, 1)
    # warm start, before, during, after, and the control
    assert seen == [{"room/x", "room/y", "room/z"}] * 5
    assert "evaluation: 3 tasks from environment.eval_options, none of them" in capsys.readouterr().out
    assert measure(tmp_path / "run", episodes=6).tasks.keys() == {"room/x", "room/y", "room/z"}
    assert not (tmp_path / "run" / "eval_tasks.json").exists(), "the config says it"


def test_tasks_from_code_are_kept_with_the_run(tmp_path: Path) -> None:
    train(small(tmp_path), 1, Rooms(), dataset=["go", "stay"], eval_dataset=["rest"])
    run = tmp_path / "run"
    (kept,) = json.loads((run / "eval_tasks.json").read_text())
    assert (kept["id"], kept["goal"]) == ("Rooms/0", "rest")
    for path in (run, run / "checkpoints" / "step_000001"):
        assert measure(path, episodes=4, environment=Rooms()).trajectories[0].task.goal == "rest"
    (tmp_path / "other.json").write_text('["work"]')
    report = measure(run, episodes=4, environment=Rooms(), tasks_path=tmp_path / "other.json")
    assert report.trajectories[0].task.goal == "work"
    named = [f"environment.name={__name__}:Rooms", "environment.options={}"]
    assert measure(run, episodes=4, overrides=named).tasks.keys() == {"room/a", "room/b"}


@pytest.mark.parametrize(
    "columns", [{"goal": "goal"}, {"goal": "question", "id": "name"}, {"goal": "goal", "id": "id"}]
)
def test_tasks_of_columns_are_measured_as_they_were_trained(tmp_path: Path, columns: dict[str, str]) -> None:
    row = {**{column: f"{field} 1" for field, column in columns.items()}, "answer": "7"}
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    config = small(tmp_path)
    config.environment.tasks, config.environment.eval_tasks = f"{tmp_path}/train.jsonl", f"{tmp_path}/held_out.jsonl"
    config.environment.columns = columns
    train(config, 1, Rooms())
    task = measure(tmp_path / "run", episodes=2, environment=Rooms()).trajectories[0].task
    assert (task.goal, task.checks) == ("goal 1", {"answer": "7"})
    assert task.id == ("id 1" if "id" in columns else "Rooms/0")


def test_the_command_of_the_document_measures_a_checkpoint_on_a_file_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cold(tmp_path / "experiments", eval_episodes=2, batch_size=4)
    config.logging.run_name = "exp_001"
    trainer = RayPPOTrainer(config)
    trainer.fit(num_epochs=0)
    trainer.save_checkpoint(tmp_path / "experiments" / "exp_001" / "checkpoints" / "step_001000")
    trainer.cleanup()
    monkeypatch.chdir(tmp_path)
    Path("eval_tasks.json").write_text('[{"id": "held out", "seed": 3}]')
    words = "eval --checkpoint experiments/exp_001/checkpoints/checkpoint_step_1000.pt --tasks eval_tasks.json"
    capsys.readouterr()
    assert main([*words.split(), "--episodes", "2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"].keys() == {"held out"}
    assert main(["eval", "--checkpoint", "experiments/exp_001/checkpoints/checkpoint_step_7.pt"]) == 2
    assert "checkpoint_step_7.pt does not exist" in capsys.readouterr().err
