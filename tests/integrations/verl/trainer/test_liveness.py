"""Signs of life of Ray's actors: a busy one is not dead, a dead one is named."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from uirl.errors import ConfigError, ProcessLost
from uirl.integrations.verl.trainer.liveness import Watch, actors_of
from uirl.integrations.verl.trainer.task_runner import watch_over

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("one_ray")]


class Actor:
    """Does nothing, for as long as it is told."""

    def __init__(self) -> None:
        self._free = threading.Event()

    def wait(self) -> None:
        self._free.wait()

    def free(self) -> None:
        self._free.set()

    def die(self) -> None:
        os._exit(1)


def started() -> Any:
    actor = ray.remote(Actor).options(num_cpus=0.1).remote()
    ray.get(actor.__ray_ready__.remote())
    return actor


def killed() -> Any:
    actor = started()
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(actor.die.remote())
    return actor


def test_a_dead_actor_is_named_and_a_busy_one_is_not() -> None:
    busy, idle, dead = started(), started(), killed()
    waiting = busy.wait.remote()
    watch = Watch({"busy": busy, "idle": idle, "gone": dead}, every=0.0)
    found: dict[str, Any] = {}
    while not found:
        found = watch.dead()
    assert set(found) == {"gone"}
    with pytest.raises(ProcessLost, match=r"gone died: .*checkpoint\.resume=true"):
        check_until_told(watch)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(dead.free.remote())
    assert str(watch.lost(caught.value)).startswith("gone died: ")
    assert str(watch.lost(ray.exceptions.WorkerCrashedError())).startswith("a process of the run died: ")
    ray.kill(busy)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(waiting)
    ray.kill(idle)


def test_waiting_for_episodes_ends_where_a_process_died_or_an_error_is_for_the_person() -> None:
    polls: list[str] = []
    sampled: list[str] = []
    complaints: list[Exception] = []

    def wait(partition: str, since: float) -> float:
        polls.append(partition)
        return since

    def sample(partition_id: str) -> int:
        sampled.append(partition_id)
        return 5

    buffer = SimpleNamespace(_wait_for_next_poll=wait, sample=sample)
    alive = started()
    watch = Watch({"the learner": alive}, every=0.0)
    watch_over(SimpleNamespace(replay_buffer=buffer), watch, lambda: next(iter(complaints), None))
    assert buffer._wait_for_next_poll("train", 1.0) == 1.0
    assert buffer.sample(partition_id="train") == 5
    ray.kill(alive)
    with pytest.raises(ProcessLost, match="the learner died"):
        poll_until_told(buffer)
    assert polls[0] == "train"
    complaints.append(ConfigError("no such picture"))
    with pytest.raises(ConfigError, match="no such picture"):
        buffer.sample(partition_id="val")
    assert sampled == ["train", "val"]


def check_until_told(watch: Watch) -> None:
    while True:
        watch.check()


def poll_until_told(buffer: Any) -> None:
    while True:
        buffer._wait_for_next_poll("val", 1.0)


def test_the_actors_of_a_step_are_found_once_each() -> None:
    group = SimpleNamespace(workers=["a", "b"])
    both = SimpleNamespace(actor_rollout_wg=group, critic_wg=group, get_reward_handles=lambda: ["r"])
    assert actors_of(both, SimpleNamespace(agent_loop_workers=["w"])) == {
        "agent-loop worker 0": "w",
        "learner rank 0": "a",
        "learner rank 1": "b",
        "reward worker 0": "r",
    }
