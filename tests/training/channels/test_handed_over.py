"""Objects of a script in the actors of a run, and everything that plays there: also demonstrations and controls."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl import BaseEnvironment, ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.errors import ConfigError
from uirl.training.checks.preflight import preflight
from uirl.types import Observation

pytestmark = pytest.mark.actors


def small(folder: Path, **changes: Any) -> ConfigStore:
    config = settings(folder, adv_estimator="grpo", group_size=4, num_epochs=1, num_iters_per_epoch=2)
    config.model.tiny.hidden_size, config.model.tiny.intermediate_size = 16, 16
    config.training.warm_start.steps, config.training.warm_start.evaluate_every = 4, 2
    config.training.warm_start.evaluate_episodes = config.training.eval_episodes = 4
    config.training.old_log_probs = "recompute"  # the engine's own depend on which replies it computes together
    config.inference.max_tokens, config.rollout.parallel = 3, 8
    for key, value in changes.items():
        section, name = key.split("__")
        setattr(getattr(config, section), name, value)
    return config.override([])


def world(folder: Path) -> BaseEnvironment:
    """An environment that no other process can import, and that tells where it played and for whom."""

    class Here(Countdown):
        kind = "plain"

        def reset(self, seed: int | None = None) -> Any:
            (folder / f"{os.getpid()}-{self.kind}").touch()
            seen = super().reset(seed)
            return Observation("nothing") if self.kind == "blind" else seen

        def expert_action(self) -> str:
            (folder / f"{os.getpid()}-expert").touch()
            return super().expert_action()

        def controls(self) -> dict[str, Any]:
            blind = Here(self.length)
            blind.kind = "blind"
            return {"constant": "no", "blind": blind}

    return Here(length=2)


def play(config: ConfigStore, environment: BaseEnvironment) -> tuple[Any, Any, dict[str, Any]]:
    """(episodes, losses, summary) of a run."""
    trainer = RayPPOTrainer(config, environment, lambda t: float(sum(turn.response_ids[0] for turn in t.turns) % 3))
    try:
        summary = trainer.fit()
        assert trainer.run_path is not None
        rows = read_metrics(trainer.run_path / "metrics.jsonl")
        with TrajectoryStore(trainer.run_path / "trajectories.sqlite") as store:
            episodes = {
                t.id: (t.total_reward(), [(turn.context_ids, turn.response_ids) for turn in t.turns]) for t in store
            }
    finally:
        trainer.cleanup()
    return episodes, [(row.get("policy_loss"), row.get("loss")) for row in rows], summary


@pytest.mark.parametrize("ray", [False, True])
def test_objects_of_a_script_play_in_actors_what_they_play_here(tmp_path: Path, ray: bool) -> None:
    seen = []
    where = {"ray__use_ray": True, "ray__actor_cpus": 0.1} if ray else {"actors__processes": 2}
    for name, changes in (("here", {}), ("there", where)):
        folder = tmp_path / name
        folder.mkdir()
        seen.append(play(small(folder, **changes), world(folder)))
    (here, losses_here, summary_here), (there, losses_there, summary_there) = seen
    assert here == there
    assert len(here) >= 32 + 8
    assert losses_here == losses_there
    assert summary_here["controls"] == summary_there["controls"]
    assert set(summary_there["controls"]) == {"constant", "blind"}
    played = {path.name for path in (tmp_path / "there").glob("*-*") if path.is_file()}
    assert {name.split("-")[1] for name in played} == {"plain", "expert", "blind"}
    mine = [name for name in played if name.startswith(f"{os.getpid()}-")]
    assert not mine, "something was played in the learner's process"


def test_what_cannot_be_copied_is_named_before_anything_is_started(tmp_path: Path) -> None:
    environment = world(tmp_path)
    environment.door = threading.Lock()  # type: ignore[attr-defined]
    trainer = RayPPOTrainer(small(tmp_path, actors__processes=2), environment)
    try:
        with pytest.raises(ConfigError, match=r"^the environment\.door is a _thread\.lock"):
            trainer.fit()
    finally:
        trainer.cleanup()
    assert not list(tmp_path.glob("*-*"))


def test_the_check_plays_its_episodes_where_the_run_would(tmp_path: Path) -> None:
    findings = preflight(small(tmp_path, actors__processes=2), world(tmp_path))
    # a count down from two has one instance, which nothing can be held out of
    assert [f.what for f in findings if not f.ok] == ["held-out tasks"]
    played = {path.name.split("-")[0] for path in tmp_path.glob("*-plain")}
    assert played - {str(os.getpid())}, "no actor played"
