"""The run: it records, it learns, it survives a kill, it repeats digits, and it keeps failures out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.patience import PATIENCE
from tests.rollout.worlds import Countdown, Fragile
from uirl import (
    Callback,
    ConfigStore,
    EvaluationReport,
    GuessNumberEnvironment,
    RayPPOTrainer,
    RLTrainer,
    TrajectoryStore,
    read_metrics,
)
from uirl.config.sections.training import Estimator
from uirl.errors import CheckpointError, ConfigError, RolloutFailure, StorageError
from uirl.learner import export_hf, load_policy
from uirl.rollout.samples import anchors_of
from uirl.training import measure
from uirl.training.record import record
from uirl.training.record.record import draw_curve
from uirl.types import Trajectory

ROOT = Path(__file__).parents[2]


def settings(folder: Path, **training: Any) -> ConfigStore:
    """A text run of seconds."""
    config = ConfigStore()
    config.model.model_name = "uirl/tiny-lm"
    config.model.tiny.hidden_size = 32
    config.model.tiny.intermediate_size = 64
    config.logging.runs_dir = str(folder)
    config.logging.run_name = "run"
    config.logging.trackers = ()
    config.inference.max_tokens = 4
    config.environment.name = "guess_number"
    config.environment.options = {"n": 4, "guesses": 2, "demonstrator": "random"}
    config.training.batch_size = 16
    config.training.eval_episodes = 16
    config.training.eval_every = None
    config.training.warm_start.steps = 16
    config.training.warm_start.learning_rate = 2e-2
    config.training.warm_start.batch_size = 16
    config.training.warm_start.evaluate_every = None
    config.training.warm_start.stop_at_success = None
    for key, value in training.items():
        setattr(config.training, key, value)
    return config


def digits(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file without what a clock says."""
    clocks = ("time", "tokens_per_second", "screenshots_per_second", "limit/")
    return [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in read_metrics(path)]


def worth(trajectory: Trajectory) -> float:
    """A reward that differs between the episodes of a policy that never learned anything."""
    return float(sum(len(turn.response_ids) + turn.response_ids[0] for turn in trajectory.turns) % 5)


def cold(folder: Path, **training: Any) -> ConfigStore:
    """The same without a warm start."""
    config = settings(folder, **training)
    config.training.warm_start.enabled = False
    return config


def train(config: ConfigStore, updates: int = 5, *given: Any, **options: Any) -> dict[str, Any]:
    """An epoch per update; the trainer is closed afterwards."""
    trainer = RayPPOTrainer(config, *given, **options)
    try:
        return trainer.fit(num_epochs=updates, num_iters_per_epoch=1)
    finally:
        trainer.cleanup()


def saving(folder: Path, **training: Any) -> ConfigStore:
    """Evaluated after every second update, saved after each."""
    config = settings(folder, eval_every=2, **training)
    config.checkpoint.save_interval = 1
    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of five updates."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "draw_curve", draw_curve)
        train(saving(folder))
    return folder / "run"


SUMMARY = """
success_before success_before_interval success_after success_after_interval success_after_corrected
judged_before judged_after evaluated held_out reward_before reward_after controls controls_metric episodes steps
best train_seconds warm_start excluded ledger stopped_because seed algorithm model parameters meter
"""


def test_a_run_leaves_a_whole_record(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "trajectories.sqlite", "summary.json", "learning_curve.png"} <= names
    assert (whole / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((whole / "summary.json").read_text())
    assert set(stored) == set(SUMMARY.split())
    assert stored["episodes"] == 80
    assert stored["excluded"]["before"]["episodes"] == stored["excluded"]["after"]["episodes"] == 16
    assert set(stored["controls"]) == {"constant_guess"}
    rows = read_metrics(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert {"success", "reward", "policy_loss", "log_prob_gap_max", "eval/success", "time/collect"} <= rows[1].keys()
    assert max(row["log_prob_gap_max"] for row in rows) < 1e-4
    store = TrajectoryStore(whole / "trajectories.sqlite", read_only=True)
    assert store.count(split="train") == 80
    # before and after on the split 'test', three evaluations in between
    assert (store.count(split="test"), store.count(split="eval")) == (32, 48)
    assert measure(whole, episodes=16).success == stored["success_after"]


@pytest.mark.parametrize("estimator", sorted({*get_args(Estimator)} - {"gae", "grpo", "gigpo", "rloo"}))  # of others
def test_every_estimator_takes_a_step(tmp_path: Path, estimator: str) -> None:
    config = cold(tmp_path, adv_estimator=estimator)
    train(config, 1, reward_fn=worth)
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row["skipped"] == 0


def test_the_states_that_gigpo_compares_are_those_of_the_stored_trajectories(tmp_path: Path) -> None:
    config = cold(tmp_path, adv_estimator="gigpo", group_size=4)
    trainer = RayPPOTrainer(config)
    update, given = trainer.learner.update, {}
    trainer.learner.update = lambda samples, anchors, **_: given.update(anchors) or update(samples, anchors=anchors)
    trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    trainer.cleanup()
    store = TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)
    stored = [t for t in store if t.id.startswith("train")]
    assert anchors_of(stored) == given
    assert {keys[0] for keys in given.values()} == {"key 1-4, 2 left"}, "every episode starts in the same state"
    assert {keys[1] for keys in given.values() if len(keys) > 1} - {"key 1-4, 2 left"}


KILLED = """
import sys, time, torch
from pathlib import Path
torch.set_num_threads(1)
sys.path.insert(0, {root!r})
from tests.training.test_loop import cold, saving, train
train(saving(Path({folder!r}), adv_estimator={estimator!r}))
"""

WAITS = "time.sleep(600)"


@pytest.mark.parametrize("estimator", ["gae", pytest.param("grpo", marks=pytest.mark.slow)])
def test_a_killed_run_that_resumes_repeats_every_digit(whole: Path, tmp_path: Path, estimator: str) -> None:
    """By another process, too: what is compared with it was played here."""
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path), estimator=estimator) + WAITS
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)  # it ends by the kill alone
    run, log = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    if estimator != "gae":
        train(saving(tmp_path / "whole", adv_estimator=estimator))
        whole = tmp_path / "whole" / "run"
    again = saving(tmp_path, adv_estimator=estimator)
    again.checkpoint.resume = True
    train(again)
    assert digits(run / "metrics.jsonl") == digits(whole / "metrics.jsonl")
    stores = [TrajectoryStore(path / "trajectories.sqlite", read_only=True) for path in (run, whole)]
    records = [{t.id: (t.turns, t.total_reward()) for t in store} for store in stores]
    assert records[0] == records[1]


def test_the_same_seed_gives_the_same_run_and_another_another(whole: Path, tmp_path: Path) -> None:
    rows = []
    for name, seed in (("same", 0), ("other", 1)):
        train(settings(tmp_path / name, seed=seed), 1)
        rows.append(digits(tmp_path / name / "run" / "metrics.jsonl")[0])
    first = digits(whole / "metrics.jsonl")[0]
    assert rows[0] | first == first | {"epoch": rows[0]["epoch"]}
    assert rows[1] != rows[0]


def test_failures_are_recorded_and_never_learned_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = cold(tmp_path)
    config.rollout.retries = 0

    class Sick(Fragile):
        def step(self, action: str) -> Any:
            if self.seed % 4 == 0:
                raise OSError("the cable was pulled")
            return super().step(action)

        def spawn(self) -> Sick:
            return Sick(set())

    trainer = RayPPOTrainer(config, Sick(set()))
    trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    report = trainer.evaluate()
    trainer.cleanup()
    assert 0 < report.failures < 16
    assert report.episodes + report.failures == 16
    assert "the cable was pulled" in (report.first_failure or "")
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    failed = int(row["count/failed_episodes"])
    assert 0 < failed < 16
    assert row["count/failed_attempts"] == 0
    excluded = json.loads((tmp_path / "run" / "summary.json").read_text())["excluded"]
    assert excluded["training"]["excluded"] == {"environment": failed}
    assert excluded["training"]["episodes"] == 16
    lost = excluded["after"]["excluded"]["environment"]
    assert excluded["after"]["success_if_excluded_were_lost"] == pytest.approx(
        excluded["after"]["success"] * (16 - lost) / 16
    )
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("MORE THAN 5 % OF THE EPISODES ARE EXCLUDED")
    assert f"training: {failed} of 16 ({100 * failed / 16:.1f} %): environment {failed}; success " in last
    assert row["trajectories"] == 16 - failed
    store = TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)
    bad = [t for t in store if t.failure is not None and t.id.startswith("train")]
    assert len(bad) == failed
    assert all("the cable was pulled" in t.failure.message for t in bad)


class Lottery(Countdown):
    """One turn; whether the members of a group differ in reward follows from the instance."""

    def __init__(self, live: int, plays: dict[int, int] | None = None) -> None:
        super().__init__(1)
        self.live, self.plays = live, {} if plays is None else plays

    def step(self, action: str) -> Any:
        self.plays[self.seed] = plays = self.plays.get(self.seed, 0) + 1
        observation, _, done, info = super().step(action)
        return observation, float(plays % 2) if self.seed % self.live == 0 else 0.0, done, info

    def spawn(self) -> Lottery:
        return Lottery(self.live, self.plays)


@pytest.mark.parametrize(("resamples", "alive"), [(0, 5), (9, 8)])
def test_dead_groups_are_replaced_and_stay_on_the_record(tmp_path: Path, resamples: int, alive: int) -> None:
    config = cold(tmp_path, adv_estimator="grpo", group_size=2)
    config.algorithm.max_resamples = resamples
    train(config, 1, Lottery(2))
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    replaced = int(row["count/replaced_groups"])
    assert (replaced > 0) == (resamples > 0)
    assert (row["trajectories"], row["live_groups"], row["skipped"]) == (16, alive / 8, 0)
    assert row["episodes_total"] == 16 + 2 * replaced
    # one of two in each group that lives: the mean over everything that was played, not over a selection
    assert row["reward"] == alive / (16 + 2 * replaced)
    store = TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)
    assert store.count(split="train") == 16 + 2 * replaced


def test_an_update_keeps_its_size_where_nothing_lives(tmp_path: Path) -> None:
    config = cold(tmp_path, adv_estimator="grpo", group_size=2)
    config.algorithm.max_resamples = 2
    train(config, 1, Lottery(1 << 62))
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (row["trajectories"], row["skipped"], row["episodes_total"]) == (16, 1, 48)


def test_an_environment_that_always_fails_stops_the_run_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dead(Countdown):
        def reset(self) -> Any:
            raise OSError("no such device")

    config = cold(tmp_path)
    trainer = RayPPOTrainer(config, Dead())
    with pytest.raises(
        RolloutFailure, match=r"^all 16 episodes of this update.*\. The first, environment:.*no such device"
    ):
        trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    trainer.cleanup()
    assert "16 of these episodes failed. The first, environment: " in capsys.readouterr().out


def test_a_warm_start_whose_evaluation_fails_stops_with_the_reason(tmp_path: Path) -> None:
    class Picky(Countdown):
        def expert_action(self) -> str:
            return "go"

        def step(self, action: str) -> Any:
            if action != "go":
                raise OSError("the cable was pulled")
            return super().step(action)

    config = settings(tmp_path)
    config.rollout.retries = 0
    config.training.warm_start.steps = config.training.warm_start.evaluate_every = 1
    config.training.warm_start.evaluate_episodes = 4
    trainer = RayPPOTrainer(config, Picky())
    with pytest.raises(RolloutFailure, match=r"^all 4 episodes .* warm start failed\. .*the cable was pulled"):
        trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    trainer.cleanup()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"config": {"training": {}}}, "got dict as the config; expected a ConfigStore"),
        ({"environment": Countdown}, "got the class Countdown as the environment; expected an instance"),
        ({"environment": "screen"}, "got 'screen' as the environment; expected an instance"),
    ],
)
def test_what_is_no_config_and_no_environment_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RayPPOTrainer(**{"config": ConfigStore(), **given})


def test_a_second_run_of_the_same_name_is_refused(whole: Path) -> None:
    with pytest.raises(StorageError, match="resume"):
        train(settings(whole.parent), 0)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path), estimator="gae")
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));" + code
    done = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode != 0
    assert "ulimit" in done.stderr or "disk" in done.stderr
    store = TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True)
    assert store.count() > 0
    again = saving(tmp_path)
    again.checkpoint.resume = True
    assert train(again)["steps"] == 5


def test_an_exported_folder_is_measured_though_its_critic_stayed_behind(whole: Path) -> None:
    policy = load_policy(whole / "checkpoints" / "step_000005")
    assert policy.value_head is not None
    folder = export_hf(whole / "exports" / "first", policy)
    stored = json.loads((whole / "summary.json").read_text())
    assert measure(folder, episodes=16).success == stored["success_after"]


def test_an_environment_that_was_an_object_is_not_mistaken_for_the_one_that_is_named(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.environment.name = "screen"
    game = GuessNumberEnvironment(n=3, guesses=2)
    summary = train(config, 1, game)
    assert config.environment.name == "screen", "the config of the caller stays as it is"
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step_000001"):
        with pytest.raises(ConfigError, match=r"an object of uirl\..*:GuessNumberEnvironment"):
            measure(path, episodes=16)
    assert measure(tmp_path / "run", episodes=16, environment=game).success == summary["success_after"]
    named = ["environment.name=guess_number", "environment.options={n: 3, guesses: 2}"]
    assert measure(tmp_path / "run", episodes=16, overrides=named).success == summary["success_after"]


def test_a_callback_sees_what_happens_and_ends_the_run(tmp_path: Path) -> None:
    class Told(Callback):
        enough = 2

        def __init__(self) -> None:
            self.of: list[Any] = []

        def on_evaluate(self, trainer: RLTrainer, label: str, report: EvaluationReport) -> None:
            self.of.append((label, report.episodes))

        def on_save(self, trainer: RLTrainer, folder: Path) -> None:
            assert any(folder.iterdir())
            self.of.append(folder.name)

        def on_step(self, trainer: RLTrainer, step: int, row: Mapping[str, float | None]) -> str | None:
            assert trainer.run_path is not None
            assert read_metrics(trainer.run_path / "metrics.jsonl")[-1]["reward"] == row["reward"]
            self.of.append(step)
            return "enough" if step == self.enough else None

    told = Told()
    config = settings(tmp_path, eval_every=2).override(
        ["checkpoint.save_interval=null", "checkpoint.save_seconds=null"]
    )
    trainer = RayPPOTrainer(config, callbacks=[told])
    summary = trainer.fit(9, 1)
    assert (summary["stopped_because"], summary["steps"]) == ("enough", 2)
    assert told.of == [("before", 16), "step_000000", 1, ("eval@2", 16), 2, ("after@2", 16), "step_000002"]
    told.enough = 0
    assert trainer.fit(3, 1)["steps"] == 3
    trainer.cleanup()


def test_nothing_to_measure_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        measure(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="neither"):
        measure(tmp_path)
    with pytest.raises(ConfigError, match="expected 1 <= tries <= episodes, got tries=3 and episodes=2"):
        measure(tmp_path, episodes=2, tries=3)
