"""A run writes down what its updates made of the tokens of every episode that they learned from."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_asynchrony import ahead
from tests.training.test_loop import cold, train, worth
from uirl import ConfigStore, TrajectoryStore, read_metrics
from uirl.types import Trajectory


def fit(config: ConfigStore, updates: int = 2) -> TrajectoryStore:
    train(config, updates, reward_fn=worth)
    return TrajectoryStore(Path(config.logging.runs_dir) / "run" / "trajectories.sqlite", read_only=True)


def text_run(folder: Path, **training: Any) -> ConfigStore:
    config = cold(folder, **{"adv_estimator": "grpo", "group_size": 4, **training})
    return config


def check_aligned(trajectory: Trajectory, store: TrajectoryStore) -> None:
    learned = store.learned(trajectory.id)
    assert list(learned) == list(range(len(trajectory.turns)))
    for turn, one in zip(trajectory.turns, learned.values(), strict=True):
        assert len(one.advantages) == len(turn.response_ids)
        ratio, gap = one.ratio(turn), one.gap(turn)
        assert (ratio is None) == (one.log_probs is None)
        if gap is not None and one.old_log_probs is not None:
            assert max(map(abs, gap)) < 1.0


def test_every_episode_of_an_update_has_its_figures_and_no_other(tmp_path: Path) -> None:
    with fit(text_run(tmp_path)) as store:
        for summary in store.list():
            trajectory = store.get(summary.id)
            if summary.split != "train":
                assert store.learned(summary.id) == {}
                continue
            check_aligned(trajectory, store)
            assert {one.step for one in store.learned(summary.id).values()} == {summary.step}
            assert {one.version for one in store.learned(summary.id).values()} == {trajectory.turns[0].policy_version}
        by_group = defaultdict(set)
        for summary in store.list(split="train"):
            first = store.learned(summary.id)[0]
            by_group[summary.group_id].add((first.advantages[0], first.log_probs is None))
        # of a group without a signal nobody made a pass, and its advantages are all 0
        for group in by_group.values():
            assert any(dead for _, dead in group) == (group == {(0.0, True)})
        assert any(len(group) > 1 for group in by_group.values())


def test_episodes_say_how_they_were_sampled_and_by_what(tmp_path: Path) -> None:
    config = text_run(tmp_path)
    config.inference.temperature, config.inference.top_k, config.training.eval_temperature = 0.9, 50, 0.5
    with fit(config, 1) as store:
        sampled, greedy = (store.get(store.list(split=split)[0].id) for split in ("train", "test"))
        assert sampled.sampling is not None
        assert greedy.sampling is not None
        named = {"temperature": 0.9, "top_p": 1.0, "top_k": 50, "max_tokens": 4}
        assert sampled.sampling == {**named, "seed": sampled.sampling["seed"]}
        assert isinstance(sampled.sampling["seed"], int)
        assert greedy.sampling["temperature"] == config.training.eval_temperature
        (origin,) = store.origins()
        assert store.origin(sampled.id) == origin
        assert origin["model"]["name"] == "uirl/tiny-lm"
        assert origin["engine"] == "transformers"
        assert {"uirl", "torch", "python", "transformers"} <= origin["software"].keys()


def test_an_update_behind_the_actors_writes_figures_of_older_episodes(tmp_path: Path) -> None:
    with fit(ahead(tmp_path, 2), 4) as store:
        learned = {one.id: store.learned(one.id) for one in store.list(split="train")}
        behind = [figures[0].step for figures in learned.values() if figures]
        assert sorted(set(behind)) == [1, 2, 3, 4]
        assert len(behind) == 4 * 16
        for summary in store.list(split="train"):
            if learned[summary.id]:
                check_aligned(store.get(summary.id), store)
        ages = {learned[t.id][0].version - t.turns[0].policy_version for t in store if learned.get(t.id)}
        assert max(ages) > 0, "some were sampled by older weights"


def test_groups_that_are_played_again_have_no_figures(tmp_path: Path) -> None:
    config = text_run(tmp_path, group_size=2)
    config.algorithm.max_resamples = 2
    with fit(config, 2) as store:
        replaced = sum(row["count/replaced_groups"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))
        assert replaced > 0
        without = [one.id for one in store.list(split="train") if not store.learned(one.id)]
        assert len(without) == 2 * replaced


def test_a_run_that_goes_back_forgets_what_later_updates_learned(tmp_path: Path) -> None:
    config = text_run(tmp_path)
    config.checkpoint.save_interval = 1
    fit(config, 3).close()
    config.checkpoint.resume, config.checkpoint.from_step = True, 1
    with fit(config, 2) as store:
        steps = {figures[0].step for one in store.list(split="train") if (figures := store.learned(one.id))}
        assert steps == {1, 2}
        assert store._connection.execute("SELECT count(DISTINCT step) FROM learned").fetchone() == (2,)


@pytest.mark.parametrize("key", ["store_learner_figures", "store_trajectories"])
def test_figures_are_left_out_where_nobody_wants_them(tmp_path: Path, key: str) -> None:
    config = text_run(tmp_path)
    setattr(config.logging, key, False)
    if key == "store_trajectories":
        train(config, 1, reward_fn=worth)
        assert not (tmp_path / "run" / "trajectories.sqlite").exists()
        return
    with fit(config, 1) as store:
        assert not any(store.learned(one.id) for one in store.list())


def test_a_curriculum_says_from_which_level_a_task_was_drawn(tmp_path: Path) -> None:
    config = text_run(tmp_path)
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"id": f"t{i}", "seed": i} for i in range(4)]))
    config.environment.tasks = str(tasks)
    config.curriculum.enabled, config.curriculum.min_attempts_per_task = True, 4
    with fit(config, 3) as store:
        levels = [one.level for one in store.list(split="train")]
        assert set(levels) > {"new"}
        assert None not in levels
        assert {one.level for one in store.list(split="test")} == {None}
