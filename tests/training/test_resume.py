"""A run that is interrupted anywhere goes on from there, says which run it is, and never begins again by accident."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.training.test_loop import digits, settings, train, worth
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.config import CheckpointConfig
from uirl.errors import CheckpointError, ConfigError, StorageError
from uirl.training import measure, saving
from uirl.training.channels.base import Channel
from uirl.training.interrupt import Interrupt
from uirl.training.plan import settle
from uirl.training.record.run_state import RunState
from uirl.training.resume import BY_MACHINE, candidates, naming_the_way_back, open_run, run_name_for


def quick(folder: Path, **training: Any) -> ConfigStore:
    """Two steps of warm start, one of them evaluated; updates of 4 episodes."""
    config = settings(folder, batch_size=4, eval_episodes=2, minibatches=1)
    config.training.warm_start.steps = 3
    config.training.warm_start.batch_size = 4
    config.training.warm_start.demonstrations = 8
    config.training.warm_start.evaluate_every = 2
    config.training.warm_start.evaluate_episodes = 2
    config.checkpoint.keep_last_n = None
    for key, value in training.items():
        setattr(config.training, key, value)
    return config


def resumed(config: ConfigStore, from_step: int | None = None) -> ConfigStore:
    again = config.model_copy(deep=True)
    again.checkpoint.resume, again.checkpoint.from_step = True, from_step
    return again


def plain(folder: Path, **training: Any) -> ConfigStore:
    """The same without a warm start."""
    config = quick(folder, **training)
    config.training.warm_start.enabled = False
    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two updates that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(quick(folder), 2, reward_fn=worth)
    assert [row["skipped"] for row in read_metrics(folder / "run" / "metrics.jsonl")] == [0, 0]
    return folder / "run"


def records(run: Path) -> dict[str, Any]:
    store = TrajectoryStore(run / "trajectories.sqlite", read_only=True)
    try:
        return {t.id: (t.turns, t.total_reward()) for t in store}
    finally:
        store.close()


def curve(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl", "warm_start")
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def test_a_run_that_is_interrupted_at_every_turn_repeats_every_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(quick(tmp_path / "whole", eval_every=1), 2)
    give_up, passed, starts = Interrupt.give_up, 0, 0

    async def once(self: Interrupt, coroutine: Any) -> Any:
        """One piece of work per process: whoever begins a second one has been asked to stop."""
        nonlocal passed
        passed += 1
        if passed > 1 and starts < 10:
            self.ask()
        return await give_up(self, coroutine)

    monkeypatch.setattr(Interrupt, "give_up", once)
    config, summary = quick(tmp_path / "cut", eval_every=1), {}
    while not summary:
        passed, starts = 0, starts + 1
        summary = train(resumed(config) if starts > 1 else config, 2)
    ours, theirs = tmp_path / "cut" / "run", tmp_path / "whole" / "run"
    assert starts == 10
    assert digits(ours / "metrics.jsonl") == digits(theirs / "metrics.jsonl")
    assert [row["warm_start/step"] for row in curve(ours)] == [1, 2, 3]
    assert curve(ours) == curve(theirs)
    assert records(ours) == records(theirs)
    for one in (whole, summary):
        del one["train_seconds"], one["meter"], one["warm_start"]["seconds"]
    assert summary == whole


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        ("uirl.environments.text.guess_number:GuessNumberEnvironment", "step", 6),  # a demonstration
        ("uirl.learner:Learner", "supervised", 2),
        ("uirl.learner:Learner", "update", 1),
        ("uirl.training.channels.base:Channel", "submit", 6),  # the second batch of episodes
    ],
)
def test_sigterm_saves_at_the_boundary_and_the_run_goes_on(
    whole: Path,
    tmp_path: Path,
    owner: str,
    method: str,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, name = owner.split(":")
    target = getattr(importlib.import_module(module), name)
    original, calls = getattr(target, method), 0

    def signalled(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments, **options)

    close, said = Channel.close, []

    async def closing(self: Channel) -> None:
        said.append(capsys.readouterr().out)
        await close(self)

    monkeypatch.setattr(target, method, signalled)
    monkeypatch.setattr(Channel, "close", closing)
    trainer = RayPPOTrainer(quick(tmp_path), reward_fn=worth)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    assert calls >= call
    assert "stopping: " in said[0]
    assert ", saved in " in said[0].partition("stopping: ")[2], "actors are stopped after that: it may take them long"
    assert not trainer.busy
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if method == "submit":  # the same trainer can go on as well
        summary = trainer.fit(num_epochs=2, num_iters_per_epoch=1)
        trainer.cleanup()
    else:
        trainer.cleanup()
        summary = train(resumed(quick(tmp_path)), 2, reward_fn=worth)
    assert digits(tmp_path / "run" / "metrics.jsonl") == digits(whole / "metrics.jsonl")
    assert records(tmp_path / "run") == records(whole)
    assert summary["success_after"] == json.loads((whole / "summary.json").read_text())["success_after"]


def test_a_kill_within_the_warm_start_loses_no_more_than_the_clock_allows(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands on the disk after each step of the warm start is enough to go on from."""
    config = quick(tmp_path)
    config.checkpoint.save_seconds = 1e-9
    monkeypatch.setattr("uirl.training.saving.LARGEST_SHARE", 1e9)
    trainer = RayPPOTrainer(config, reward_fn=worth)
    supervised, calls = trainer.learner.supervised, 0

    def dies(samples: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("as if killed")
        return supervised(samples)

    trainer.learner.supervised = dies
    with pytest.raises(OSError, match="as if killed"):
        trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    trainer.cleanup()
    run = tmp_path / "run"
    state = json.loads((run / "checkpoints" / "step_000000" / "state.json").read_text())
    assert state["extra"]["state"]["warming"]["step"] == 2
    train(resumed(config), 2, reward_fn=worth)
    assert curve(run) == curve(whole)
    assert digits(run / "metrics.jsonl") == digits(whole / "metrics.jsonl")


def test_a_checkpoint_is_due_by_the_clock_and_by_what_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, costs = 0.0, iter([1.0, 120.0, 1.0])

    def save(*_: Any, **__: Any) -> None:
        nonlocal now
        now += next(costs)

    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(saving, "save_checkpoint", save)
    saver, never = (saving.Saver(CheckpointConfig(save_seconds=limit)) for limit in (60, None))
    for step, least in enumerate([60.0, 60.0, 2400.0]):  # 120 s / 0.05
        now += least - 0.1
        assert not saver.due()
        now += 0.2
        assert saver.due()
        saver.save(tmp_path, cast(Any, None), RunState(step=step), dict)
    assert not never.due()


# -- which run, which step -----------------------------------------------------------------------------------------


def shelf(folder: Path, name: str, steps: tuple[int, ...], saved: float = 1.0, **keys: Any) -> None:
    """A run directory with checkpoints that are names alone."""
    run = folder / name
    config = ConfigStore().override([f"{key}={value}" for key, value in keys.items()])
    run.mkdir(parents=True)
    config.to_yaml(run / "config.yaml")
    for step in steps:
        checkpoint = run / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        os.utime(checkpoint / "manifest.json", (saved, saved))


def asks(folder: Path, resume: Any = True, **keys: Any) -> ConfigStore:
    config = ConfigStore().override([f"{key}={value}" for key, value in keys.items()])
    config.logging.runs_dir, config.checkpoint.resume = str(folder), resume
    return config


def name_of(config: ConfigStore, stem: str) -> str:
    config.logging.call_runs(stem)
    return run_name_for(config)


def test_the_newest_run_of_this_config_that_has_a_checkpoint_is_continued(tmp_path: Path) -> None:
    rate = {"training.learning_rate": 1e-3}
    shelf(tmp_path, "screen", (10, 20), saved=1.0)
    other_words = {"training.num_epochs": 7, "logging.print_every": 3, "checkpoint.keep_last_n": 9}
    other_words |= {"actors.processes": 3, "actors.engines": 2, "ray.num_actors": 9}
    other_words |= {"rollout.parallel": 64, "model.gradient_checkpointing": True, "training.micro_batch_tokens": 4096}
    shelf(tmp_path, "screen-2", (10,), saved=2.0, **other_words)
    shelf(tmp_path, "screen-3", (40,), saved=3.0, **rate)
    shelf(tmp_path, "screen-4", ())
    shelf(tmp_path, "screening", (99,), saved=9.0)
    assert name_of(asks(tmp_path), "screen") == "screen-2"
    assert name_of(asks(tmp_path, **rate), "screen") == "screen-3"
    memory = {"rollout.parallel": 128, "model.gradient_checkpointing": False, "training.micro_batch_tokens": 9000}
    assert name_of(asks(tmp_path, **memory), "screen") == "screen-2"
    assert name_of(asks(tmp_path, resume=False), "screen") == "screen-5"
    named = asks(tmp_path)
    named.logging.run_name = "screen"
    assert name_of(named, "other") == "screen"
    told = r"several could be meant: screen-3 \(step 40\): training.learning_rate: 0.001 -> 0.01; screen-2 "
    with pytest.raises(ConfigError, match=told):
        name_of(asks(tmp_path, **{"training.learning_rate": 1e-2}), "screen")
    assert name_of(asks(tmp_path, **rate), "screening") == "screening", "the only one of its name"
    config = asks(tmp_path)
    assert [str(c) for c in candidates(config.logging, config.resolved())][:2] == [
        "screening (step 99)",
        "screen-3 (step 40)",
    ]


def test_what_a_run_chose_for_itself_is_no_difference(tmp_path: Path) -> None:
    for number, (name, more) in enumerate({"screen": {}, "screen-2": {"training.lam": 0.5}, "screen-3": {}}.items()):
        chosen = settle(asks(tmp_path, **more), phases=("training", "warm_start", "evolve"))
        assert {*BY_MACHINE, "training.learning_rate", "training.entropy_coef"} < set(chosen.chosen)
        shelf(tmp_path, name, (10,), saved=float(number), **{**chosen.chosen, **more})
    assert name_of(asks(tmp_path), "screen") == "screen-3"
    assert name_of(asks(tmp_path, **{"training.lam": 0.5}), "screen") == "screen-2"
    with pytest.raises(ConfigError, match=r"screen-3 \(step 10\): model.dtype: float32 -> bfloat16; screen-2 "):
        name_of(asks(tmp_path, **{"model.dtype": "bfloat16"}), "screen")


def test_runs_that_begin_in_the_same_moment_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asks(tmp_path, resume=False)
    config.logging.call_runs("screen")
    first, _ = open_run(config)
    names = iter(["screen", "screen", "screen-2"])  # two looked before the other had made its folder
    monkeypatch.setattr("uirl.training.resume.free_run_name", lambda *_: next(names))
    second, _ = open_run(config)
    assert (first.name, second.name) == ("screen", "screen-2")
    first.close()
    second.close()
    config.logging.run_name = "screen"
    with pytest.raises(StorageError, match="already holds a run"):
        open_run(config)


def test_a_run_that_is_not_there_is_refused_and_others_are_named(tmp_path: Path) -> None:
    shelf(tmp_path, "screen", (10,))
    config = asks(tmp_path)
    config.logging.run_name = "scren"
    with pytest.raises(
        ConfigError, match=r"no run 'scren' in .*runs that can be continued: screen \(step 10\)\. To begin"
    ):
        name_of(config, "screen")
    with pytest.raises(ConfigError, match=r"no run called lookup in .* has a checkpoint"):
        name_of(asks(tmp_path), "lookup")
    assert name_of(asks(tmp_path, resume="auto"), "lookup") == "lookup"
    config.checkpoint.resume = "auto"
    assert name_of(config, "screen") == "scren"


def test_a_trainer_that_resumes_without_a_name_begins_no_second_run(tmp_path: Path) -> None:
    config = plain(tmp_path)
    config.logging.run_name = None
    trainer = RayPPOTrainer(resumed(config))
    with pytest.raises(ConfigError, match=r"no run called guess_number in .* has a checkpoint"):
        trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    trainer.cleanup()
    assert list(tmp_path.iterdir()) == []
    train(config, 1)
    train(resumed(config), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["guess_number"]
    assert [row["step"] for row in read_metrics(tmp_path / "guess_number" / "metrics.jsonl")] == [1, 2]


def test_going_back_cuts_the_line_and_keeps_what_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = plain(tmp_path)
    config.checkpoint.save_interval = 1
    train(config, 3)
    run = tmp_path / "run"
    before, abandoned = digits(run / "metrics.jsonl"), records(run)
    (run / "tensorboard").mkdir(exist_ok=True)
    (run / "tensorboard" / "events").write_text("curves")
    capsys.readouterr()
    again = train(resumed(config), 3)
    told = capsys.readouterr().out
    assert f"resumed at step 3, from {run / 'checkpoints' / 'step_000003'}" in told
    assert "this run is finished: all epochs are done" in told
    assert again == json.loads((run / "summary.json").read_text())

    other = resumed(config, from_step=1)
    other.training.learning_rate = 1e-2
    train(other, 2)
    told = capsys.readouterr().out
    aside = run / "abandoned-1"
    assert f"kept in {aside}" in told
    assert "changed since run was last started: training.learning_rate: 0.0004 -> 0.01" in told
    assert sorted(p.name for p in (aside / "checkpoints").iterdir()) == ["step_000002", "step_000003"]
    assert digits(aside / "metrics.jsonl") == before
    assert records(aside) == abandoned
    assert (aside / "tensorboard" / "events").read_text() == "curves"
    assert measure(aside, episodes=2).episodes == 2
    rows = digits(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0] == before[0]
    assert ConfigStore.from_yaml(run / "config.yaml").training.learning_rate == 1e-2
    train(resumed(other), 3)
    assert "resumed at step 2, from" in capsys.readouterr().out, "the abandoned line is not taken up again"
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 .* expected one of 0, 1, 2, 3"):
        train(resumed(config, from_step=7), 2)


@pytest.mark.parametrize(("steps", "way"), [([0], None), ([0, 1], 0), ([1, 2, 3], 2)])
def test_the_way_back_is_the_checkpoint_before_the_damaged_one(
    tmp_path: Path, steps: list[int], way: int | None
) -> None:
    folders = [tmp_path / f"step_{step:06d}" for step in steps]
    for folder in folders:
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError) as told, naming_the_way_back(folders[-1]):
        raise CheckpointError("it is damaged")
    assert ("--from-step" in str(told.value)) == (way is not None)
    assert way is None or f"--resume --from-step {way} " in str(told.value)


def test_a_damaged_newest_checkpoint_is_named_with_the_way_back(tmp_path: Path) -> None:
    config = plain(tmp_path)
    config.checkpoint.save_interval = 1
    train(config, 2)
    newest = tmp_path / "run" / "checkpoints" / "step_000002"
    weights = max(newest.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    with pytest.raises(CheckpointError, match=weights.name):
        train(resumed(config), 2)
    weights.write_bytes(whole)
    (newest / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"step_000002 is damaged: state\.json .*--from-step 1"):
        train(resumed(config), 2)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2], "nothing is dropped"
    assert train(resumed(config, from_step=1), 2)["steps"] == 2
    assert (tmp_path / "run" / "abandoned-1" / "checkpoints" / "step_000002" / "state.json").read_bytes() == b"{}"


@pytest.mark.parametrize("call", [6, 10])  # the evaluation before the first update; the one after the last
def test_what_comes_after_a_resumed_evaluation_is_saved(
    tmp_path: Path, call: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the same step does not stand for a run that is further by now."""
    give_up, passed = Interrupt.give_up, 0

    async def asked_at(self: Interrupt, coroutine: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == call:
            self.ask()
        return await give_up(self, coroutine)

    monkeypatch.setattr(Interrupt, "give_up", asked_at)
    config = quick(tmp_path, eval_every=1)
    assert train(config, 2) == {}
    summary = train(resumed(config), 2)
    texts = [(step / "state.json").read_text() for step in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    first, *_, last = (json.loads(text)["extra"]["state"] for text in texts)
    assert first["before"] is not None
    assert last["pending"] is None
    capsys.readouterr()
    assert train(resumed(config), 2) == summary
    assert "this run is finished" in capsys.readouterr().out


def evaluated_as(monkeypatch: pytest.MonkeyPatch, success: dict[str, float | None]) -> None:
    """Let the evaluations with these labels have these successes."""
    real = RayPPOTrainer._evaluate

    async def evaluate(self: Any, *args: Any, label: str | None = None, **options: Any) -> Any:
        report = await real(self, *args, label=label, **options)
        return replace(report, success=success[label]) if label in success else report

    monkeypatch.setattr(RayPPOTrainer, "_evaluate", evaluate)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_best_checkpoint_stays_and_a_link_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = plain(tmp_path, eval_every=1)
    config.checkpoint.save_interval, config.checkpoint.save_seconds = 2, None
    config.checkpoint.keep_last_n, config.checkpoint.keep_best = 1, "success"
    evaluated_as(monkeypatch, {f"eval@{step + 1}": s for step, s in enumerate([0.5, 0.9, 0.9, None, 0.7])})
    home = tmp_path / "run" / "checkpoints"
    summary = train(config, 4)
    assert names(home) == ["best", "step_000002", "step_000004"]
    assert (home / "best").resolve() == (home / "step_000002").resolve()
    assert summary["best"] == {"step": 2, "metric": "success", "value": 0.9, "at_worst": None, "evaluations": 4}
    assert "best, step 2, success 90.0 %" in capsys.readouterr().out.replace("\n", " ")
    assert measure(home / "best", episodes=2).episodes == 2

    # a killed run has the best of its newest checkpoint, also where the link was not yet moved
    (home / "best").unlink()
    assert train(resumed(config), 5)["best"]["step"] == 2
    assert names(home) == ["best", "step_000002", "step_000005"]
    evaluated_as(monkeypatch, {"eval@6": 0.95})
    assert train(resumed(config), 6)["best"]["step"] == 6
    assert names(home) == ["best", "step_000006"]
    assert (home / "best").resolve() == (home / "step_000006").resolve()


def test_a_best_checkpoint_of_another_run_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = plain(tmp_path, eval_every=1)
    config.checkpoint.keep_best = "success"
    evaluated_as(monkeypatch, {"eval@1": 0.9, "eval@2": 0.5})
    train(config, 1)
    there = tmp_path / "run" / "checkpoints"
    other = plain(tmp_path / "other", eval_every=1)
    other.checkpoint.keep_best = "success"
    trainer = RayPPOTrainer(other)
    trainer.load_checkpoint(there / "step_000001")
    try:
        assert trainer.fit(num_epochs=2, num_iters_per_epoch=1)["best"] == {
            "step": 2,
            "metric": "success",
            "value": 0.5,
            "at_worst": None,
            "evaluations": 2,
        }
    finally:
        trainer.cleanup()
    assert (there / "best").resolve() == (there / "step_000001").resolve()


def test_an_engine_that_loads_its_model_for_minutes_is_not_waited_for(tmp_path: Path) -> None:
    trainer = RayPPOTrainer(quick(tmp_path))

    async def loads(*weights: Any, **more: Any) -> None:
        trainer._interrupt.ask()
        await asyncio.sleep(1000)

    trainer._parts.engine.update_weights = loads  # type: ignore[method-assign]
    try:
        assert trainer.fit() == {}
    finally:
        trainer.cleanup()
    assert (tmp_path / "run" / "checkpoints" / "step_000000" / "state.json").exists()


def test_an_interrupted_evaluation_of_the_warm_start_keeps_the_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up, passed = Interrupt.give_up, 0

    async def asked_at(self: Interrupt, coroutine: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == 4:  # weights to the engine, two steps of the warm start
            self.ask()
        return await give_up(self, coroutine)

    monkeypatch.setattr(Interrupt, "give_up", asked_at)
    monkeypatch.setattr("uirl.training.saving.LARGEST_SHARE", 1e9)
    config = quick(tmp_path)
    config.checkpoint.save_seconds = 1e-9  # every step is saved, so a checkpoint of step 0 stands there
    assert train(config, 2) == {}
    state = json.loads((tmp_path / "run" / "checkpoints" / "step_000000" / "state.json").read_text())
    assert state["extra"]["state"]["warming"]["step"] == 2


def test_a_run_does_not_begin_among_the_checkpoints_of_another(tmp_path: Path) -> None:
    first, second = plain(tmp_path / "a"), plain(tmp_path / "b")
    for config in (first, second):
        config.checkpoint.output_dir = str(tmp_path / "kept")
    train(first, 1)
    with pytest.raises(ConfigError, match="holds checkpoints of another run"):
        train(second, 1)
    assert not (tmp_path / "b").exists()
    assert train(resumed(first), 2)["steps"] == 2


def test_a_run_without_a_checkpoint_says_that_it_begins_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = plain(tmp_path)
    train(config, 1)
    said = "ended before its first checkpoint, so it begins again"
    assert said not in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train(resumed(config), 1)
    assert f"run run {said}" in capsys.readouterr().out
    train(resumed(config), 1)
    assert said not in capsys.readouterr().out
