"""Real verl on real Ray: whole runs of tiny models, from the first prompt to the checkpoint that is continued."""

from __future__ import annotations

import faulthandler
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import BROKEN, Ladder, OneBrokenTask, Reaper, TwoLooks
from uirl.cli.main import main
from uirl.config import ConfigStore
from uirl.errors import ProcessLost
from uirl.images import ImageStore
from uirl.integrations.verl.models import export_checkpoint
from uirl.learner import Learner, Policy, collate, save_checkpoint
from uirl.metrics import read_metrics
from uirl.rollout import samples_of
from uirl.runtime.event_loop import EventLoopThread
from uirl.storage import TrajectoryStore
from uirl.training.assembly import assemble
from uirl.training.channels.choose import local_channel
from uirl.training.evaluation.measure import measure
from uirl.training.interrupt import Interrupt
from uirl.training.record.tally import tally_of
from uirl.training.warm_start import WarmStart
from uirl.types import Trajectory

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("one_ray", "no_hanging")]


TEXT = "model.model_name=uirl/tiny-lm"


@pytest.fixture
def no_hanging() -> Iterator[None]:
    """Ends the session where a run waits for a dead process for ever, in a call of Ray's that no exception reaches."""
    faulthandler.dump_traceback_later(1800, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def episodes(run: Path, step: int | None = None) -> list[Trajectory]:
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        return sorted((store.get(s.id) for s in store.list(step=step)), key=lambda t: t.id)


def digits(run: Path, step: int) -> list[Any]:
    """Everything of a step that must not depend on whether the run was stopped."""
    return [
        (t.id, t.task.id, t.seed, t.rewards, [(u.context_ids, u.response_ids) for u in t.turns])
        for t in episodes(run, step)
    ]


def steps_of_the_optimizer(folder: Path) -> set[int]:
    """How many steps Adam has taken with each parameter, as a checkpoint of verl's says."""
    states = torch.load(folder / "optim_world_size_1_rank_0.pt", weights_only=False)["state"]
    return {int(state["step"]) for state in states.values()}


def log_probs(run: Path, step: int) -> list[float]:
    return [p for t in episodes(run, step) for turn in t.turns for p in turn.rollout_log_probs]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the local trainer: a vision model that has learned to answer with one of eight letters."""
    folder = tmp_path_factory.mktemp("warm")
    steps = ["steps=40", "batch_size=16", "learning_rate=3e-3", "evaluate_every=null", "stop_at_success=null"]
    store = config(folder, *(f"training.warm_start.{key}" for key in steps))
    parts = assemble(store, TwoLooks())
    loop = EventLoopThread()
    loop.run(WarmStart(parts, local_channel(parts), Interrupt(), lambda step, row: None).run(lambda: None))
    loop.run(parts.close())
    loop.close()
    return save_checkpoint(folder / "step_000001", parts.learner, {})


@pytest.fixture(scope="module")
def long_run(one_ray: None, warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four GRPO updates of that model, with pictures in the second turn: two epochs of two, a curriculum, a checkpoint
    after each epoch."""
    folder = tmp_path_factory.mktemp("long")
    epochs = ("training.num_epochs=2", "training.num_iters_per_epoch=2")
    store = config(folder, *epochs, "training.learning_rate=5e-3", f"model.local_path={warm}")
    last = trainer(store, TwoLooks(), curriculum=Ladder()).fit()
    assert last["step"] == 4
    return folder / "run"


def test_the_reward_rises(long_run: Path) -> None:
    rows = read_metrics(long_run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.2, [row["reward"] for row in rows]
    assert rows[-1]["episodes_total"] == 64
    summary = json.loads((long_run / "summary.json").read_text())
    assert (summary["steps"], summary["episodes"]) == (4, 64)
    assert summary["excluded"]["training"] == tally_of(episodes(long_run)).to_dict()


def test_weights_reach_the_rollout(long_run: Path) -> None:
    """verl's actor gives every sampled token the log-prob the server gave it, after every update."""
    for row in read_metrics(long_run / "metrics.jsonl"):
        assert row["log_prob_gap_max"] < 1e-5
        assert row["grad_norm"] > 0
    versions = {step: {u.policy_version for t in episodes(long_run, step) for u in t.turns} for step in (1, 2, 3, 4)}
    assert versions == {1: {0}, 2: {1}, 3: {2}, 4: {3}}


def test_every_episode_is_on_the_record(long_run: Path) -> None:
    played = episodes(long_run)
    assert Counter(t.group_id for t in played) == {f"train-{i:06d}": 4 for i in range(16)}
    for trajectory in played:
        first, second = trajectory.turns
        assert first.context_images == ()
        assert len(second.context_images) == 1 + (trajectory.seed or 0) % 2
        assert not second.starts_segment
        assert second.observation.images[0].data.startswith(b"\x89PNG")


def test_the_exported_policy_explains_what_it_sampled(long_run: Path, tmp_path: Path) -> None:
    """The checkpoint of step 2, read by our own learner, gives the episodes of step 3 the log-probs on the record:
    tokens, masks, pictures and weights are all in their places."""
    folder = export_checkpoint(long_run / "checkpoints" / "global_step_2", tmp_path / "step_000002")
    store = ConfigStore.from_yaml(long_run / "config.yaml").override([f"model.local_path={folder}"])
    policy = Policy.from_config(store, critic=False)
    policy.loaded.banned_ids = ()  # verl's actor knows of no ban
    images, played = ImageStore(), episodes(long_run, 3)
    for trajectory in played:
        for turn in trajectory.turns:
            for shot in turn.observation.images:
                images.put(shot)
    for trajectory in played[:4]:
        (sample,) = samples_of(trajectory)
        batch = collate(policy.loaded, [sample], images)
        with torch.no_grad():
            scores = policy.log_probs_and_values(batch, 1.0)
        assert scores.log_probs is not None
        own = [i for i, mine in enumerate(sample.response_mask) if mine]
        for i in own:
            assert float(scores.log_probs[0, i]) == pytest.approx(sample.rollout_log_probs[i], abs=1e-4)


def test_evaluation_opens_what_was_exported(long_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verl", "--export", str(long_run)]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder == long_run / "checkpoints" / "step_000004"
    report = measure(long_run, episodes=4, environment=TwoLooks())
    assert report.episodes == 4
    shutil.rmtree(folder)


def test_the_curriculum_heard_of_every_episode_before_the_checkpoint(long_run: Path) -> None:
    state = json.loads((long_run / "checkpoints" / "global_step_2" / "uirl.json").read_text())["dataset"]["source"]
    assert state["position"] == 8
    reports = state["curriculum"]["reports"]
    told = Counter((name, step) for name, _, step in reports)
    played = Counter((t.task.id, step) for step in (1, 2) for t in episodes(long_run, step))
    assert told == played


def test_a_run_continues_at_the_end_of_an_epoch_with_the_same_episodes(long_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(long_run, run)
    shutil.rmtree(run / "checkpoints" / "global_step_4")
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    store = ConfigStore.from_yaml(run / "config.yaml").override(
        [f"logging.runs_dir={tmp_path}", "checkpoint.resume=true"]
    )
    trainer(store, TwoLooks(), curriculum=Ladder()).fit()
    for step in (1, 2, 3, 4):
        assert digits(run, step) == digits(long_run, step)
        assert log_probs(run, step) == pytest.approx(log_probs(long_run, step), abs=1e-5)
    rows, expected = (read_metrics(path / "metrics.jsonl") for path in (run, long_run))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    # verl adds gradients up in the order in which episodes ended, so the last digits of a float are its own
    for name in ("reward", "entropy", "grad_norm"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected], rel=1e-5)
    assert rows[-1]["episodes_total"] == 64


def test_ppo_with_a_critic_continues_a_local_checkpoint(tmp_path: Path) -> None:
    """The policy of a local run's checkpoint, two updates under verl with GAE, then a validation. Some of the episodes
    outgrow the window and are two sequences each; the updates are two mini-batches each nevertheless."""
    gae = ("training.adv_estimator=gae", "training.group_size=1", "training.num_iters_per_epoch=2")
    store = config(tmp_path, TEXT, *gae, "rollout.token_budget=27", "training.minibatches=2")
    plain = config(tmp_path, TEXT)
    learner = Learner(Policy.from_config(plain), plain, ImageStore())
    with torch.no_grad():
        learner.policy.model.get_parameter("model.norm.weight").mul_(1.5)  # type: ignore[attr-defined]
    local = save_checkpoint(tmp_path / "local" / "step_000001", learner, {})
    own = store.override([f"model.local_path={local}"])
    keys = {"trainer.test_freq": 2, "critic.optim.lr": 1e-2}
    (leases := tmp_path / "leases").mkdir()
    last = trainer(own, TwoLooks(pictures=False, leases=leases), verl=keys).fit()
    assert [path.name for path in leases.iterdir()] == ["ever"], "instances were opened, and all were closed"
    assert last["step"] == 2
    assert math.isfinite(last["value_loss"])
    assert last["eval/turns"] == 2
    assert last["log_prob_gap_max"] < 1e-5
    run = tmp_path / "run"
    assert {t.turns[1].starts_segment for t in episodes(run, 1)} == {True, False}
    for network in ("actor", "critic"):
        assert steps_of_the_optimizer(run / "checkpoints" / "global_step_2" / network) == {2 * 2}
    for row in read_metrics(run / "metrics.jsonl"):
        trained = [t for t in episodes(run, row["step"]) if t.group_id.startswith("train-")]
        rows = sum(turn.starts_segment for t in trained for turn in t.turns)
        assert rows > 16
        # every mini-batch is padded to whole micro-batches of 8 and of 16 rows
        assert row["count/padding_rows"] == 32 - rows
        assert row["count/optimizer_steps"] == 2
    first = episodes(run, 1)[0].turns[0]
    (sample,) = samples_of(Trajectory(turns=[first]))
    learner.policy.loaded.banned_ids = ()  # verl's actor knows of no ban
    scores = learner.policy.log_probs_and_values(collate(learner.policy.loaded, [sample], ImageStore()), 1.0)
    assert scores.log_probs is not None
    at = sample.response_mask.index(True)
    assert float(scores.log_probs[0, at]) == pytest.approx(sample.rollout_log_probs[at], abs=1e-4)
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as stored:
        held_out = [stored.get(summary.id) for summary in stored.list(split="eval")]
    assert len(held_out) == 4
    assert last["eval/reward"] == pytest.approx(sum(t.total_reward() for t in held_out) / 4)


def test_groups_that_fail_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One group of four fails in every step."""
    (leases := tmp_path / "leases").mkdir()
    world = OneBrokenTask(pictures=False, leases=leases)
    trainer(config(tmp_path, TEXT, "rollout.retries=1", "training.num_iters_per_epoch=2"), world).fit()
    assert [path.name for path in leases.iterdir()] == ["ever"], "instances were opened, and all were closed"
    run = tmp_path / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        played = episodes(run, row["step"])
        failed = [t for t in played if t.failure is not None]
        assert {(t.task.id, t.failure.kind) for t in failed if t.failure} == {(BROKEN, "environment")}
        assert len(failed) == 4 * 2, "four members, each played again once"
        assert (row["count/failed_episodes"], row["count/failed_attempts"]) == (4, 4)
        usable = [t.total_reward() for t in played if t.failure is None]
        assert row["reward"] == pytest.approx(sum(usable) / len(usable)), "a failure is no zero"
        assert row["count/learned_episodes"] == len(usable) == 12
    excluded = json.loads((run / "summary.json").read_text())["excluded"]["training"]
    assert (excluded["episodes"], excluded["excluded"]) == (32, {"environment": 8})
    # Ray passes on what its processes print whenever it arrives
    told = [line for line in capsys.readouterr().out.splitlines() if "pid=" not in line][-1]
    assert told.startswith("MORE THAN 5 % OF THE EPISODES ARE EXCLUDED")
    assert "environment 8" in told


def test_the_legacy_trainer_stands_behind_the_same_interface(tmp_path: Path) -> None:
    store = config(tmp_path, TEXT, "training.num_iters_per_epoch=1", "rollout.retries=0")
    last = trainer(store, OneBrokenTask(pictures=False), curriculum=Ladder(), use_v1=False).fit()
    assert last["step"] == 1
    run = tmp_path / "run"
    judged = [t for t in episodes(run) if t.failure is None]
    assert (len(episodes(run)), len(judged)) == (16, 12)
    state = json.loads((run / "checkpoints" / "global_step_1" / "uirl.json").read_text())["dataset"]["source"]
    assert len(state["curriculum"]["reports"]) == len(judged)


def test_a_run_ends_where_a_process_dies_and_continues(tmp_path: Path) -> None:
    """Of two servers one dies in step 2: the other takes its requests, and the run ends after the step, because weights
    cannot be brought to a dead server. Then a worker dies in step 3, and when that is played again, a learner."""
    store = config(tmp_path, TEXT, "training.num_iters_per_epoch=1", "training.num_epochs=3", "checkpoint.resume=true")

    def ended(whom: str, fatal_step: int, said: str) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`. Steps are counted from where the run continues."""
        world = Reaper(whom=whom, mark=tmp_path / whom, fatal_step=fatal_step)
        with pytest.raises(ProcessLost, match=said) as caught:
            trainer(store, world, verl={"trainer.n_gpus_per_node": 2}).fit()
        assert "checkpoint.resume=true" in str(caught.value)
        assert (tmp_path / whom).exists()
        return read_metrics(tmp_path / "run" / "metrics.jsonl")

    rows = ended("server 0", 2, "rollout server 0 died in step 2, which was finished and saved")
    assert [row["step"] for row in rows] == [1, 2]
    assert (rows[1]["count/failed_episodes"], rows[1]["count/learned_episodes"]) == (0, 16)
    assert (tmp_path / "run" / "checkpoints" / "global_step_2" / "uirl.json").is_file()
    assert ended("worker", 1, "agent-loop worker 0 died") == rows
    assert ended("learner", 1, r"learner rank \d died") == rows
    assert {t.group_id for t in episodes(tmp_path / "run", 3)} <= {f"train-{i:06d}" for i in range(8, 12)}
