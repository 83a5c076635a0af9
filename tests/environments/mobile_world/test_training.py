"""configs/mobile_world.yaml, with a tiny model and two phones in place of the real ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import yaml

from tests.environments.mobile_world.playing import phones
from uirl.cli.main import main
from uirl.config import load_config
from uirl.environments import MobileWorldEnvironment, create_environment
from uirl.storage import TrajectoryStore

CONFIG = Path(__file__).parents[3] / "configs" / "mobile_world.yaml"
TINY = [
    "model.model_name=uirl/tiny-vlm",
    "model.tiny.hidden_size=32",
    "inference.max_tokens=6",
    "inference.max_turns=2",
    "training.batch_size=8",
    "training.group_size=4",
    "training.num_epochs=1",
    "training.num_iters_per_epoch=1",
    "training.eval_every=null",
    "training.eval_episodes=2",
    "training.learning_rate=1.0e-3",
    "environment.eval_options={}",
    "logging.trackers=[]",
    "logging.run_name=phones",
]


def test_the_config_fits() -> None:
    store = load_config(str(CONFIG))
    # a checkpoint of 2 B, long sequences: not what suits the tiny model
    assert store.model.dtype == "bfloat16"
    assert store.model.gradient_checkpointing is True
    for split in ("train", "eval"):
        env = create_environment(store.environment.name, store.environment.options_for(split), store.environment)
        assert isinstance(env, MobileWorldEnvironment)
        # a phone asks for its score before the run cuts the episode
        assert env.max_turns is not None
        assert env.max_turns <= store.turn_limit
        assert len(env.pool.servers) == store.rollout.parallel
        # the last step acts, looks, asks for the score and tears down
        limits = env.options
        assert store.environment.step_timeout is not None
        assert (
            store.environment.step_timeout >= 2 * limits.step_timeout + limits.task_timeout + limits.tear_down_timeout
        )
        assert store.environment.reset_timeout is not None
        assert store.environment.reset_timeout > env.pool.acquire_timeout + 2 * limits.task_timeout


def test_a_run_on_two_phones(tmp_path: Path) -> None:
    scores = itertools.cycle([{"score": 1.0}, {"score": 0.0, "reason": "no"}, {"score": 0.0}])
    with phones(2) as served:
        for phone in served:
            phone.double.spoil["score"] = lambda: next(scores)
        options = yaml.safe_load(CONFIG.read_text())["environment"]["options"] | {
            "urls": [phone.url for phone in served],
            "image_size": [28, 56],
            "max_turns": 2,
            "step_wait_time": 0,
        }
        where = [f"logging.runs_dir={tmp_path}", f"environment.options={json.dumps(options)}"]
        assert main(["train", str(CONFIG), *TINY, *where]) == 0
        assert all(phone.idle for phone in served)
        assert all(phone.double.begun for phone in served)
        tasks = {task for phone in served for path, task in phone.double.told if path == "/task/init"}
        assert tasks <= {"OpenSettingsTask", "SendMessageTask", "ReadClockTask", "FindZoeTask"}
    summary = json.loads((tmp_path / "phones" / "summary.json").read_text())
    assert (summary["episodes"], summary["steps"]) == (8, 1)
    row = json.loads((tmp_path / "phones" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["grad_norm"] > 0
    with TrajectoryStore(tmp_path / "phones" / "trajectories.sqlite", read_only=True) as store:
        episodes = list(store)
    assert len(episodes) >= 8
    for episode in episodes:
        assert (episode.failure, episode.stop_reason, len(episode)) == (None, "terminated", 2)
        assert [len(turn.observation.images) for turn in episode.turns] == [1, 0]
        assert episode.success == (episode.total_reward() == 1.0)
    assert {episode.total_reward() for episode in episodes} == {0.0, 1.0}
