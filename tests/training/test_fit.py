"""`fit` called again, from two threads, and on rewards that leave nothing to learn."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.test_loop import cold, settings, train
from uirl import Callback, GuessNumberEnvironment, RayPPOTrainer, read_metrics
from uirl.errors import ContractError
from uirl.inference.models.loading import load_model
from uirl.training.groups_with_signal import NO_SIGNAL, why_no_signal
from uirl.types import Observation, Trajectory, Turn


def test_fit_goes_on_where_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    class Watch(Callback):
        def on_step(self, trainer: Any, step: int, row: Any) -> None:
            ended.append((tmp_path / "run" / "summary.json").exists())

    trainer = RayPPOTrainer(settings(tmp_path), callbacks=[Watch()])
    first = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    warm = trainer.learner.version
    capsys.readouterr()
    again = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    assert trainer.learner.version == warm
    assert again == first
    told = capsys.readouterr().out
    assert "this run is finished: all epochs are done" in told
    assert "counts from the start of the run" in told
    more = trainer.fit(num_epochs=2, num_iters_per_epoch=2)
    trainer.cleanup()
    assert more["steps"] == 4
    assert ended == [False] * 4, "a run that goes on has not ended"
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_trainer_fits_once_at_a_time(tmp_path: Path) -> None:
    begun, free, refused = threading.Event(), threading.Event(), []

    class Slow(GuessNumberEnvironment):
        def reset(self, *, seed: int | None = None) -> str:
            begun.set()
            assert free.wait(60)
            return super().reset(seed=seed)

        def spawn(self) -> Slow:
            return Slow()

    def second() -> None:
        assert begun.wait(60)
        try:
            trainer.fit(num_epochs=1, num_iters_per_epoch=1)
        except ContractError as error:
            refused.append(str(error))
        finally:
            free.set()

    config = cold(tmp_path)
    trainer = RayPPOTrainer(config, Slow())
    other = threading.Thread(target=second)
    other.start()
    summary = trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    other.join()
    trainer.cleanup()
    assert summary["steps"] == 1
    assert len(refused) == 1
    assert "is under way" in refused[0]


def test_two_calls_in_the_same_moment_are_one(tmp_path: Path) -> None:
    config = cold(tmp_path)
    trainer = RayPPOTrainer(config)
    together, ended = threading.Barrier(2), []

    def fit() -> None:
        together.wait(60)
        try:
            ended.append(trainer.fit(num_epochs=1, num_iters_per_epoch=1)["steps"])
        except ContractError:
            ended.append("refused")

    threads = [threading.Thread(target=fit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trainer.cleanup()
    assert sorted(map(str, ended)) == ["1", "refused"]


@pytest.mark.parametrize(("cut", "told"), [(2, "2 of 3 replies were cut off at inference.max_tokens"), (1, NO_SIGNAL)])
def test_a_skipped_update_says_that_replies_were_cut_off(cut: int, told: str) -> None:
    turns = [Turn(Observation("?"), finish_reason="length" if number < cut else "stop") for number in range(3)]
    group = SimpleNamespace(usable=[Trajectory(turns=turns)])
    assert why_no_signal([group]).startswith(told)


def test_a_run_that_learned_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = cold(tmp_path, adv_estimator="grpo", group_size=8)
    trainer = RayPPOTrainer(config, reward_fn=lambda trajectory: 1.0)
    trainer.fit(num_epochs=1, num_iters_per_epoch=10)
    trainer.cleanup()
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"an update was skipped\. .*An update is skipped where", told), "at once"
    assert re.search(r"10 updates in a row were skipped\. .*An update is skipped where", told)
    assert "NOTHING WAS LEARNED, no update took a step: 160 ordered: 0 trained, 160 dropped" in told


@pytest.mark.parametrize(("enabled", "told"), [(None, True), (False, False)])
def test_a_checkpoint_that_could_imitate_first_is_told_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], enabled: bool | None, told: bool
) -> None:
    config = settings(tmp_path)
    load_model(config.model).save(tmp_path / "model")
    config.model.local_path, config.training.warm_start.enabled = str(tmp_path / "model"), enabled
    train(config, 1)
    assert ("training.warm_start.enabled=true imitates him first" in " ".join(capsys.readouterr().out.split())) is told


def test_an_environment_that_goes_elsewhere_leaves_the_run_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Moves(GuessNumberEnvironment):
        def step(self, action: str) -> Any:
            os.chdir(tempfile.mkdtemp(dir=tmp_path))
            return super().step(action)

        def spawn(self) -> Moves:
            return Moves()

    monkeypatch.chdir(tmp_path)
    for name, place in (("runs", None), ("others", "checkpoints")):
        config = settings(Path(name))
        config.training.warm_start.enabled, config.logging.trackers = False, ("tensorboard",)
        config.checkpoint.output_dir = place
        os.chdir(tmp_path)
        train(config, 1, Moves())
        run = tmp_path / name / "run"
        assert {"summary.json", "ledger.json", "learning_curve.png", "tensorboard"} <= {p.name for p in run.iterdir()}
        assert (tmp_path / place if place else run / "checkpoints").joinpath("step_000001").is_dir()
        assert f"run directory {name}/run\n" in capsys.readouterr().out
    assert not list(tmp_path.glob("tmp*/*"))
