"""Credit for the right beginnings of failed episodes: what is found, certified, rewarded and spared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pipelines.corridor import Corridor
from tests.training.options import digest
from uirl import ConfigStore, RayPPOTrainer, read_metrics
from uirl.training.learning import Credited, StepCredit
from uirl.types import Action, Failure, Observation, Task, Trajectory, Turn

GROUP = ["training.adv_estimator=grpo", "training.group_size=4"]


def played(replies: str, *, id: str, seed: int = 7, group: str = "g") -> Trajectory:
    """An episode of the corridor: one letter per turn, as it goes."""
    env = Corridor()
    seen, turns, said = env.reset(seed=seed), [], {"success": False}
    for letter in replies:
        after, reward, done, said = env.step(letter)
        turns.append(Turn(Observation(seen), action=Action(letter), reward=reward, terminated=done))
        seen = after
    made = Trajectory(id, Task("corridor"), turns, "terminated", final=Observation(seen), group_id=group, seed=seed)
    made.metrics["success"] = float(said["success"])
    return made


async def credited(*trajectories: Trajectory, environment: Any = None, **keys: Any) -> Credited:
    config = ConfigStore().override([*GROUP, *(f"algorithm.{key}={value}" for key, value in keys.items())])

    def never(name: str) -> Any:
        raise KeyError(name)

    return await StepCredit(config.algorithm, config.environment, environment or Corridor(), never).apply(trajectories)


async def test_right_turns_share_a_reward_and_the_wrong_one_loses() -> None:
    found = await credited(
        played("aba", id="solved"),
        played("abc", id="late"),
        played("c", id="at once"),
        step_credit="reward",
        step_right=0.75,
        step_wrong=0.5,
    )
    # 0.75 shared by 3 turns: 0.25 for each of two right ones; the third is the mistake. Nothing is known of 'at once'.
    assert [t.rewards for t in found.trajectories] == [[0.0, 0.0, 1.0], [0.25, 0.25, -0.5], [0.0]]
    assert found.spared == {}
    assert found.metrics == {"count/beginnings_found": 1.0, "count/beginnings_refused": 0.0}


async def test_right_turns_are_spared() -> None:
    episodes = [
        played("aba", id="solved"),
        played("abc", id="late"),
        played("bc", id="early"),
        played("c", id="at once"),
    ]
    found = await credited(*episodes, step_credit="spare")
    assert found.spared == {"late": 2, "early": 1}
    assert found.trajectories == episodes


async def test_off_looks_at_nothing() -> None:
    found = await credited(played("aba", id="solved"), played("abc", id="late"))
    assert (found.spared, found.metrics) == ({}, {})


async def test_only_episodes_of_one_instance_are_compared_and_failures_with_nobody() -> None:
    solved = played("aba", id="solved")
    broken = replace(played("abc", id="broken"), failure=Failure("engine", "gone"))
    unknown = replace(played("abc", id="unknown"), metrics={})
    others = [played("abc", id="other seed", seed=8), played("abc", id="other group", group="h")]
    found = await credited(solved, broken, unknown, *others, step_credit="spare")
    assert found.spared == {}


class Restless(Corridor):
    """Shows something else each time it is played."""

    times = 0

    def reset(self, seed: int | None = None, task: Task | None = None) -> str:
        Restless.times += 1
        return f"{super().reset(seed, task)} ({Restless.times})"


async def test_what_cannot_be_played_again_counts_only_where_it_is_believed() -> None:
    episodes = [played("aba", id="solved"), played("abc", id="late")]
    refused = await credited(*episodes, environment=Restless(), step_credit="spare")
    assert refused.spared == {}
    assert refused.metrics == {"count/beginnings_found": 1.0, "count/beginnings_refused": 1.0}
    believed = await credited(*episodes, environment=Restless(), step_credit="spare", step_certify="false")
    assert believed.spared == {"late": 2}


class Remembers(Corridor):
    """Opens the last door only to who has said one letter all the way."""

    def reset(self, seed: int | None = None, task: Task | None = None) -> str:
        self.said: list[str] = []
        return super().reset(seed, task)

    def step(self, action: str) -> Any:
        self.said.append(action.strip())
        seen, _, done, info = super().step(action)
        solved = bool(info["success"]) and len(set(self.said)) == 1
        return seen, float(solved), done, {"success": solved}


async def test_a_beginning_from_which_the_solved_way_leads_nowhere_is_refused() -> None:
    """Both show the same screens, yet what has solved the task after an 'a' does not after a 'b'."""
    episodes = [played("aaa", id="solved"), played("bac", id="late")]
    kept = await credited(*episodes, environment=Corridor(), step_credit="spare")
    assert kept.spared == {"late": 2}
    refused = await credited(*episodes, environment=Remembers(), step_credit="spare")
    assert refused.spared == {}
    assert refused.metrics == {"count/beginnings_found": 1.0, "count/beginnings_refused": 1.0}


RUN = [
    *("model.model_name=uirl/tiny-lm", "model.tiny.hidden_size=32", "training.seed=1"),
    *("environment.name=tests.pipelines.corridor:Corridor", "inference.max_tokens=4"),
    *("training.warm_start={steps: 30, batch_size: 16, learning_rate: 0.01, evaluate_every: null}",),
    *("training.warm_start.stop_at_success=null", "training.batch_size=16", "training.num_epochs=1"),
    *("training.num_iters_per_epoch=2", "training.eval_every=null", "training.eval_episodes=4"),
    *("logging.trackers=[]", "logging.run_name=run", "checkpoint.save_interval=null"),
]


def trained(folder: Path, *changes: str) -> tuple[float, list[float]]:
    """The weights after a whole small run, and how many beginnings each update found."""
    trainer = RayPPOTrainer(ConfigStore().override([*RUN, *GROUP, f"logging.runs_dir={folder}", *changes]))
    try:
        trainer.fit()
        assert trainer.run_path is not None
        rows = read_metrics(trainer.run_path / "metrics.jsonl")
        found = [row["count/beginnings_found"] for row in rows if row.get("count/beginnings_found") is not None]
        return digest(trainer.learner.policy), found
    finally:
        trainer.cleanup()


@pytest.mark.slow
def test_every_key_changes_what_a_run_learns(tmp_path: Path) -> None:
    off, none = trained(tmp_path / "off")
    assert none == []
    seen = {off}
    for name, *changes in [
        ("spare", "algorithm.step_credit=spare"),
        ("reward", "algorithm.step_credit=reward"),
        ("right", "algorithm.step_credit=reward", "algorithm.step_right=0.25"),
        ("wrong", "algorithm.step_credit=reward", "algorithm.step_wrong=0.5"),
    ]:
        weights, found = trained(tmp_path / name, *changes)
        assert sum(found) > 0, name
        seen.add(weights)
    assert len(seen) == 5


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["rloo", "turn_level", "gigpo", "reinforce_plus_plus_baseline"])
def test_it_goes_with_every_estimator_that_compares(tmp_path: Path, estimator: str) -> None:
    chosen = f"training.adv_estimator={estimator}"
    off, _ = trained(tmp_path / "off", chosen)
    spared, _ = trained(tmp_path / "on", chosen, "algorithm.step_credit=spare")
    assert torch.isfinite(torch.tensor(spared))
    assert spared != off
