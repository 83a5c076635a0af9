"""Whole runs with actors in real processes, which are killed, frozen and interrupted; then processes are counted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.training.record.ledger import LEDGER
from uirl.training.record.processes import PROCESSES
from uirl.workers.keeper import descendants

pytestmark = pytest.mark.actors

ENVIRONMENT = '''
"""Beside the config, as a user's own: sometimes slow, talkative, blocking or deadly."""
import asyncio, os, sys, time
from pathlib import Path
from uirl import BaseEnvironment


class Own(BaseEnvironment):
    runs_inline = True

    def __init__(self, folder, seconds=0.0, blocks=False, dies=False):
        super().__init__()
        self.folder, self.seconds, self.blocks = Path(folder), seconds, blocks
        learner = self.folder / "learner"
        if not learner.exists():
            learner.write_text(str(os.getpid()))
        elif dies and learner.read_text() != str(os.getpid()):
            print("no licence for this screen", file=sys.stderr)
            os._exit(3)

    def reset(self, seed=0):
        self.turns = 0
        return "say something"

    async def step(self, action):
        self.turns += 1
        print(f"step {self.turns} of {os.getpid()}")
        if self.blocks and self.turns == 2:
            (self.folder / f"blocked-{os.getpid()}").touch()
            time.sleep(1000)  # the whole process: it hears nothing any more
        await asyncio.sleep(self.seconds)
        return "more", float("a" in action), self.turns == 3, {"success": "a" in action}

    def get_state_description(self):
        return "more"
'''
TINY = {"hidden_size": 16, "intermediate_size": 16, "vision_hidden_size": 16, "num_heads": 2, "num_layers": 1}


def config_of(folder: Path, environment: dict[str, Any], **changes: dict[str, Any]) -> Path:
    """Write the config of a small run, with the environment beside it."""
    (folder / "own_screen.py").write_text(ENVIRONMENT)
    values: dict[str, Any] = {
        "environment": environment,
        "model": {"model_name": "uirl/tiny-lm", "device": "cpu", "tiny": TINY},
        "inference": {"max_tokens": 4},
        "training": {
            "batch_size": 8,
            "num_epochs": 1,
            "num_iters_per_epoch": 3,
            "eval_episodes": 4,
            "eval_every": None,
            "warm_start": {"enabled": False},
        },
        "actors": {"processes": 2},
        "rollout": {"parallel": 8},
        "logging": {"runs_dir": str(folder / "runs"), "run_name": "run", "trackers": []},
    }
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))  # JSON is YAML
    return path


def own(folder: Path, **options: Any) -> dict[str, Any]:
    return {"name": "own_screen:Own", "options": {"folder": str(folder), **options}}


class Run:
    """`uirl train` in a process of its own, and everything that descends from it."""

    def __init__(self, config: Path) -> None:
        self.folder = config.parent / "runs" / "run"
        self.log = config.parent / "log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uirl.cli.main", "train", str(config)],
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.getcwd()},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def actors(self) -> list[dict[str, Any]]:
        try:
            rows = json.loads((self.folder / PROCESSES).read_text())["processes"]
        except (OSError, ValueError):
            return []
        return [row for row in rows if row["role"] == "actor" and row["state"] == "ready"]

    def plays(self) -> bool:
        return len(self.actors()) == 2 and "[actor-" in self.text()

    def text(self) -> str:
        return self.log.read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(int(PATIENCE / 0.1)):
            if condition():
                return
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.text()}"
            time.sleep(0.1)
        raise AssertionError(f"waited {PATIENCE:g} s for {what}:\n{self.text()}")

    def ends(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def ledger(self) -> dict[str, Any]:
        return json.loads((self.folder / LEDGER).read_text())

    def family(self) -> list[int]:
        return descendants(self.process.pid)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(environment: dict[str, Any], **changes: dict[str, Any]) -> Run:
        runs.append(Run(config_of(tmp_path, environment, **changes)))
        return runs[0]

    yield begin
    for run in runs:
        for pid in [run.process.pid, *run.family()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()


def gone(pids: list[int]) -> bool:
    """Whether none of these processes is left, zombies aside."""
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return False
        except OSError:
            continue
    return True


def assert_gone(pids: list[int]) -> None:
    until = time.monotonic() + PATIENCE
    while not gone(pids):
        assert time.monotonic() < until, [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if not gone([pid])]
        time.sleep(0.1)


# -- the same run ---------------------------------------------------------------------------------------------------


def _for_audits(store: TrajectoryStore, id: str) -> list[Any]:
    """What the record says of how an episode was made, and of which tokens an update learned: all of it is there."""
    trajectory, origin = store.get(id, pictures=False), store.origin(id)
    pictures = [turn.pictures for turn in trajectory.turns]
    assert trajectory.sampling is not None
    assert origin is not None
    assert all(len(one) == len(turn.context_images) for one, turn in zip(pictures, trajectory.turns, strict=True))
    assert None not in [transform for one in pictures for transform in one]
    learned = store.learned(id)
    assert bool(learned) == id.startswith("train-")
    figures = [(len(one.advantages), one.log_probs is None) for one in learned.values()]
    return [trajectory.sampling, origin, pictures, figures]


def test_processes_give_the_trajectories_and_losses_of_one_process(tmp_path: Path) -> None:
    seen = []
    for processes in (0, 2):
        changes = {"model": {"model_name": "uirl/tiny-vlm"}, "actors": {"processes": processes}}
        config = ConfigStore.from_yaml(config_of(tmp_path, {"name": "screen"}, **changes))
        config.logging.run_name = f"run-{processes}"
        trainer = RayPPOTrainer(config)
        trainer.fit()
        trainer.cleanup()
        assert trainer.run_path is not None
        with TrajectoryStore(trainer.run_path / "trajectories.sqlite") as store:
            episodes = {
                trajectory.id: [(turn.context_ids, turn.response_ids, turn.reward) for turn in trajectory.turns]
                for trajectory in store
            }
            audit = [_for_audits(store, id) for id in sorted(episodes)]
        seen.append((episodes, audit, read_metrics(trainer.run_path / "metrics.jsonl")))
    (here, audit_here, rows_here), (there, audit_there, rows_there) = seen
    assert here == there
    assert len(here) >= 24
    assert audit_here == audit_there
    for a, b in zip(rows_here, rows_there, strict=True):
        for name in ("policy_loss", "reward", "grad_norm", "entropy"):
            assert a.get(name) == pytest.approx(b.get(name), abs=1e-4), name


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_an_actor_that_is_killed_or_frozen_costs_its_attempts_alone(
    tmp_path: Path, start: Callable[..., Run], blow: signal.Signals
) -> None:
    run = start(own(tmp_path, seconds=1.0), actors={"processes": 2, "silence": 6.0})
    run.until(lambda: run.plays() and "[actor-" in run.text().partition("before reinforcement")[2], "training episodes")
    family, playing = run.family(), re.findall(r"\[(actor-\d)\] step", run.text())[-1]
    (victim,) = (actor for actor in run.actors() if actor["name"] == playing)
    os.kill(victim["pid"], blow)
    assert run.ends() == 0, run.text()
    ledger = run.ledger()
    assert ledger["ordered"] == 24, "the run went on to its end"
    assert not ledger["in_flight"]
    assert f"{victim['name']} is gone" in run.text()
    with TrajectoryStore(run.folder / "trajectories.sqlite") as store:
        failures = [trajectory.failure for trajectory in store]
    assert {failure.kind for failure in failures if failure is not None} == {"actor"}
    assert_gone(family)


def test_an_actor_that_dies_at_every_start_ends_the_run_with_its_words(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    run = start(own(tmp_path, dies=True))
    assert run.ends() == 2
    assert "died 3 times in a row before it could work; the last time: it ended with status 3" in run.text()
    assert "no licence for this screen" in run.text()


def test_nothing_is_left_of_a_run_that_is_killed_while_its_environments_block(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    run = start(own(tmp_path, blocks=True), rollout={"parallel": 4})
    run.until(lambda: len(list(tmp_path.glob("blocked-*"))) == 2, "actors that hear nothing")
    family = run.family()
    assert len(family) >= 5, "the server, two keepers and two actors"
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert_gone(family)


def test_nothing_is_left_of_a_run_that_is_killed_with_browsers(tmp_path: Path, start: Callable[..., Run]) -> None:
    pages = {"name": "miniwob", "options": {"task": "click-test"}}
    run = start(
        pages, model={"model_name": "uirl/tiny-vlm"}, rollout={"parallel": 4}, training={"num_iters_per_epoch": 1000}
    )
    run.until(lambda: len(run.actors()) == 2 and len(browsers(run.family())) >= 2, "browsers of two actors")
    family = run.family()
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert_gone(family)


def browsers(pids: list[int]) -> list[int]:
    """The processes among `pids` that are the head of a Chromium."""
    heads = []
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if "--remote-debugging-pipe" in words and "--type=" not in words:
            heads.append(pid)
    return heads


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_the_learners_affair(tmp_path: Path, start: Callable[..., Run], times: int) -> None:
    run = start(own(tmp_path, seconds=0.3), training={"num_iters_per_epoch": 1000})
    run.until(run.plays, "episodes")
    family = run.family()
    for _ in range(times):
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
        time.sleep(0.05)
    assert run.ends() == 130
    assert "Traceback" not in run.text()
    assert_gone(family)
    if times == 1:
        assert "interrupted at" in run.text()


def test_what_an_environment_prints_comes_with_the_name_of_its_actor(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start(own(tmp_path, seconds=0.05), training={"num_iters_per_epoch": 1000})

    def talkers() -> set[str]:
        return {line.split("]")[0] for line in run.text().splitlines() if "] step 1 of" in line}

    run.until(lambda: len(talkers()) > 1, "both actors spoke")  # a quick one may play some batches alone
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130, run.text()
    assert talkers() == {"[actor-0", "[actor-1"}
    states = {row["name"]: row["state"] for row in json.loads((run.folder / PROCESSES).read_text())["processes"]}
    assert states == {"learner": "stopped", "actor-0": "stopped", "actor-1": "stopped"}
