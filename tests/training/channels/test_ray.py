"""Ray actors play what one process plays, whatever happens to them. On Ray itself, with a small store of objects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import PATIENCE
from tests.training.channels.probe import ProbeEnvironment, probe_config
from tests.training.channels.test_contract import check_channel, specs, tokens, until, within
from uirl.errors import ConfigError
from uirl.rollout.episode import EpisodeSpec
from uirl.training.assembly import assemble
from uirl.training.channels.base import GroupRules, LocalChannel
from uirl.training.channels.workers import WorkerChannel, process_channel, ray_channel
from uirl.types import Task

pytestmark = pytest.mark.actors
RAY = {"use_ray": True, "num_actors": 2, "actor_cpus": 0.25}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process of Ray or of ours outlives a test, and no picture."""
    import ray

    home = tmp_path / "ram"  # other runs of this machine have pictures on its RAM disk
    home.mkdir()
    monkeypatch.setattr("uirl.runtime.scratch.RAM_DISK", home)
    before = {process.pid for process in psutil.process_iter()}
    yield
    ray.shutdown()
    mine: list[str] = []
    for _ in range(200):
        mine = [p for p in map(command, psutil.process_iter()) if p and "ray" in p and str(os.getpid()) in p]
        fresh = [p for p in psutil.process_iter() if p.pid not in before and os.getpid() in ancestors(p)]
        if not fresh:
            break
        time.sleep(0.1)
    assert not fresh, [command(process) for process in fresh]
    assert not mine
    assert not list(home.glob("uirl-pictures-*"))


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def descended(test: Path) -> list[str]:
    """Return the commands of all that the learner of a test started, whoever adopted them: other clusters run here."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TEST_OF") == str(test) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def ancestors(process: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [parent.pid for parent in process.parents()]
    return []


@contextlib.contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """Yield a cluster of one machine, of which this process is a part; more can be added."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, **head},
    )
    try:
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@contextlib.asynccontextmanager
async def channel_in(folder: Path, **changes: Any) -> AsyncIterator[WorkerChannel]:
    parts = assemble(probe_config(folder, **changes))
    channel = ray_channel(parts, GroupRules(retries=3))
    try:
        yield channel
    finally:
        await within(channel.close())
        await parts.close()


def group(name: str, goal: str, size: int = 4) -> list[EpisodeSpec]:
    return specs(name, [goal] * size)


async def test_ray_actors_play_what_one_process_plays(tmp_path: Path) -> None:
    folders = tmp_path / "local", tmp_path / "ray"
    for folder in folders:
        folder.mkdir()
    here = await check_channel(LocalChannel, folders[0])
    there = await check_channel(ray_channel, folders[1], ray=RAY)
    assert tokens(there) == tokens(here)


def listening() -> set[tuple[int, Any]]:
    """The addresses at which this process and its descendants listen."""
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            here = process.net_connections("inet")
            found |= {(process.pid, one.laddr) for one in here if one.status == psutil.CONN_LISTEN}
    return found


async def test_children_are_talked_to_without_a_socket_that_listens(tmp_path: Path) -> None:
    before = listening()
    parts = assemble(probe_config(tmp_path, actors={"processes": 2, "engines": 1}))
    channel = process_channel(parts, GroupRules(retries=3))
    try:
        await within(parts.publish())
        await within(channel.exchange([group("first", "plays")]))
        await until(lambda: all(actor.state == "ready" for actor in channel.pool.actors))
        assert listening() == before
    finally:
        await within(channel.close())
        await parts.close()


class Mother(ProbeEnvironment):
    """Starts a process that starts one in a session of its own, as browsers do."""

    async def reset(self, task: Task, seed: int = 0) -> str:
        subprocess.Popen(["sh", "-c", f"setsid sleep {self._folder.name} & wait"])
        return await super().reset(task, seed)


def sleepers(tmp_path: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if command(p) == f"sleep {tmp_path.name}"]


async def test_an_actor_that_is_killed_is_replaced_and_what_it_started_goes(tmp_path: Path) -> None:
    folder = tmp_path / str(10_000_000 + os.getpid())
    folder.mkdir()
    name = f"{Mother.__module__}:{Mother.__name__}"
    async with channel_in(folder, ray=RAY, environment={"name": name}) as channel:
        await channel.publish(None, 1)
        (first,) = await within(channel.exchange([group("first", "plays")]))
        channel.submit(group("hanging", "hangs", 2))
        await until(lambda: (folder / "hangs-0").exists())
        busy = [actor.pid for actor in channel.pool.actors if actor.life.active]
        assert busy[0] is not None
        os.kill(busy[0], signal.SIGKILL)
        await until(lambda: channel.pool.deaths == 1)
        await channel.give_up()
        (second,) = await within(channel.exchange([group("second", "plays")]))
        assert all(t.failure is None for t in [*first.trajectories, *second.trajectories])
        await until(lambda: all(actor.state == "ready" for actor in channel.pool.actors))
        assert sorted(actor.incarnation for actor in channel.pool.actors) == [1, 2]
    await until(lambda: not sleepers(folder))


async def test_a_machine_is_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    with cluster(resources={"browser": 1}) as made:
        second = made.add_node(num_cpus=1, resources={"browser": 1}, object_store_memory=80 * 2**20)
        settings = {**RAY, "address": made.address, "actor_resources": {"browser": 1}}
        async with channel_in(tmp_path, ray=settings) as channel:
            await channel.publish(None, 1)
            await within(channel.exchange([group("first", "plays", 8)]))
            await until(lambda: all(actor.state == "ready" for actor in channel.pool.actors))
            channel.submit(group("hanging", "hangs", 8))
            await until(lambda: sum(actor.life.active for actor in channel.pool.actors) == 8)
            await asyncio.to_thread(made.remove_node, second)
            await until(lambda: channel.pool.deaths >= 1)
            await channel.give_up()
            groups = await within(channel.exchange([group(f"g{i}", "plays", 8) for i in range(3)]))
            assert all(t.failure is None for g in groups for t in g.trajectories)
            assert sum(actor.state == "ready" for actor in channel.pool.actors) == 1
            # the other waits for a machine, and takes the next one
            made.add_node(num_cpus=1, resources={"browser": 1}, object_store_memory=80 * 2**20)
            await until(lambda: all(actor.state == "ready" for actor in channel.pool.actors))


async def test_a_cluster_without_a_place_is_told_with_what_is_free(tmp_path: Path) -> None:
    with cluster() as made:
        settings = {**RAY, "address": made.address, "actor_resources": {"browser": 1}, "start_seconds": 2.0}
        async with channel_in(tmp_path, ray=settings) as channel:
            await channel.publish(None, 1)
            with pytest.raises(ConfigError, match=r"needs 0\.25 CPU, 1 browser on one machine.*are free: 1 CPU\."):
                await within(channel.exchange([group("first", "plays")]))


RUN = """
import sys
from uirl import RayPPOTrainer
from tests.training.channels.probe import probe_config
config = probe_config(sys.argv[1], ray={"use_ray": True, "num_actors": 2, "actor_cpus": 0.25})
config.training.num_epochs, config.training.num_iters_per_epoch = 1, 1000
config.training.eval_episodes, config.training.eval_every = 2, None
config.logging.runs_dir, config.logging.trackers = sys.argv[1] + "/runs", ()
RayPPOTrainer(config).fit()
"""


def test_a_learner_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    learner = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], start_new_session=True, env=os.environ | {"TEST_OF": str(tmp_path)}
    )
    try:
        for _ in range(int(PATIENCE / 0.1)):
            if list(tmp_path.glob("open-*")):
                break
            time.sleep(0.1)
        assert list(tmp_path.glob("open-*"))
        assert len(descended(tmp_path)) > 5
    finally:
        learner.kill()
        learner.wait()
    # two small agents of Ray's own may stay for minutes after a cluster that was killed; they hold nothing of a run
    agents = ("dashboard/agent.py", "runtime_env/agent")
    for _ in range(int(PATIENCE / 0.1)):
        left = [line for line in descended(tmp_path) if not any(agent in line for agent in agents)]
        if not left:
            break
        time.sleep(0.1)
    assert not left, left
