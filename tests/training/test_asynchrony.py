"""Whole runs whose actors run ahead of the learner."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import cold, train, worth
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.learner import Learner
from uirl.training import measure
from uirl.training.channels.base import Channel


def ahead(folder: Path, staleness: int = 2, **training: Any) -> ConfigStore:
    config = cold(folder, adv_estimator="grpo", group_size=4, **training)
    config.actors.staleness = staleness
    config.checkpoint.save_interval = 1
    return config


def fit(config: ConfigStore, updates: int = 4) -> dict[str, Any]:
    return train(config, updates, reward_fn=worth)


def test_a_run_ahead_learns_from_older_versions_within_the_bound_and_balances(tmp_path: Path):
    summary = fit(ahead(tmp_path, 2), 4)
    ledger = summary["ledger"]
    assert ledger["balanced"]
    assert ledger["in_flight"] == 0
    assert ledger["dropped"]["run ended"] == 32, "two batches were under way"
    assert ledger == json.loads((tmp_path / "run" / "ledger.json").read_text())
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["ledger/in_flight"] for row in rows] == [32] * 4
    assert ledger["ordered"] == ledger["trained"] + sum(ledger["dropped"].values())
    store = TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)
    versions = {turn.policy_version for t in store if t.id.startswith("train") for turn in t.turns}
    assert len(versions) > 2


def test_actors_play_while_the_learner_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An update that waits for an episode to end would wait for ever in a synchronous run."""
    update, ended = Learner.update, threading.Event()

    def waits(self: Learner, *arguments: Any, **options: Any) -> Any:
        ended.clear()
        assert ended.wait(20), "no episode ended during the update"
        return update(self, *arguments, **options)

    config = ahead(tmp_path)
    config.rollout.parallel = 4  # so that some of the groups ordered ahead are left to play
    trainer = RayPPOTrainer(config, reward_fn=worth)
    write = trainer._write_down

    def written(trajectory: Any) -> None:
        write(trajectory)
        ended.set()

    monkeypatch.setattr(Learner, "update", waits)
    monkeypatch.setattr(trainer, "_write_down", written)
    summary = trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    trainer.cleanup()
    assert summary["steps"] == 2


def test_a_run_ahead_that_is_interrupted_goes_on_and_accounts_for_what_it_gave_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    update, calls = Learner.update, 0

    def signalled(self: Learner, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, *arguments, **options)

    monkeypatch.setattr(Learner, "update", signalled)
    trainer = RayPPOTrainer(ahead(tmp_path), reward_fn=worth)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(num_epochs=3, num_iters_per_epoch=1)
    trainer.cleanup()
    config = ahead(tmp_path)
    config.checkpoint.resume = True
    summary = fit(config, 3)
    assert summary["steps"] == 3
    assert summary["ledger"]["balanced"]
    assert summary["ledger"]["dropped"]["interrupted"] == 32
    ids = [t.id for t in TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)]
    assert len(ids) == len(set(ids))


def test_pictures_go_with_the_update_that_learned_from_them(tmp_path: Path):
    config = ahead(tmp_path, 1)
    config.model.model_name, config.environment.name, config.environment.options = "uirl/tiny-vlm", "screen", {}
    config.inference.max_tokens = 2
    trainer = RayPPOTrainer(config, reward_fn=worth)
    trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    first = len(trainer._parts.images)
    trainer.fit(num_epochs=1, num_iters_per_epoch=5)
    assert len(trainer._parts.images) <= 3 * first
    trainer.cleanup()


def test_a_finished_run_that_is_continued_leaves_no_actor_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[Channel] = []
    close = Channel.close

    async def counted(self: Channel) -> None:
        closed.append(self)
        await close(self)

    monkeypatch.setattr(Channel, "close", counted)
    fit(ahead(tmp_path), 1)
    assert closed
    closed.clear()
    config = ahead(tmp_path)
    config.checkpoint.resume = True
    fit(config, 1)
    assert closed, "the channel of a run with nothing left to do was not closed"


def test_a_run_with_adapters_is_measured_with_them_afterwards(tmp_path: Path):
    """Its engine has a copy of the model, which knows nothing of adapters until it is sent weights."""
    config = ahead(tmp_path, 1)
    config.model.use_lora, config.training.eval_temperature = True, 0.0
    config.training.warm_start.enabled, config.training.warm_start.steps = True, 8
    trainer = RayPPOTrainer(config, reward_fn=worth)
    trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    said = [[turn.action.text for turn in t.turns] for t in trainer.evaluate(8, split="test").trajectories]
    trainer.cleanup()
    report = measure(tmp_path / "run", episodes=8, reward_fn=worth)
    assert [[turn.action.text for turn in t.turns] for t in report.trajectories] == said
    untrained = RayPPOTrainer(config, reward_fn=worth)
    assert [[turn.action.text for turn in t.turns] for t in untrained.evaluate(8, split="test").trajectories] != said
    untrained.cleanup()
