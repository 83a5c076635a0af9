"""Joining and starting Ray, against a stand-in of its module; `test_ray_runs.py` uses Ray itself."""

from __future__ import annotations

import builtins
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from uirl.config import RayConfig
from uirl.errors import ConfigError
from uirl.inference.workers import demand_of
from uirl.workers.ray import Demand, RayCluster, describe

NOTHING = Demand(0, {})


class StandIn(SimpleNamespace):
    """What `RayCluster` uses of the module."""

    def __init__(self) -> None:
        super().__init__(inits=[], inside=False, error=None)

    def is_initialized(self) -> bool:
        return self.inside

    def init(self, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.inits.append(options)
        self.inside = True

    def shutdown(self) -> None:
        self.inside = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.5, "browser": 2.0, "memory": 1e9, "node:10.0.0.7": 1.0, "object_store_memory": 1e9}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "ray", stand_in)  # type: ignore[arg-type]
    return stand_in


def test_what_a_run_reserves_is_that_of_each_actor_times_their_number() -> None:
    settings = RayConfig(num_actors=6, actor_cpus=0.25, actor_resources={"browser": 2, "disk": 0.5})
    assert demand_of(settings) == Demand(1.5, {"browser": 12, "disk": 3})


def test_without_an_address_ray_is_started_with_room_for_the_run_and_ended_with_it(ray: StandIn) -> None:
    cluster = RayCluster(None, Demand(1000.5, {"browser": 4}))
    assert ray.inits == [
        {"address": "local", "include_dashboard": False, "num_cpus": 1001, "resources": {"browser": 4}}
    ]
    assert cluster.name == "10.0.0.1:6379"
    assert cluster.free() == "1.5 CPU, 2 browser"
    cluster.close()
    cluster.close()
    assert not ray.inside


def test_a_small_run_leaves_the_machine_its_cpus(ray: StandIn) -> None:
    RayCluster(None, Demand(0.5, {}))
    assert ray.inits[0]["num_cpus"] == os.cpu_count()
    assert ray.inits[0]["resources"] is None


@pytest.mark.parametrize(("late", "starts"), [(1, True), (2, False)])
def test_a_node_that_is_late_is_started_once_more(ray: StandIn, late: int, starts: bool) -> None:
    errors = [Exception("The current node timed out during startup. This could happen because ...")] * late
    init = ray.init

    def start(**options: Any) -> None:
        if errors:
            raise errors.pop()
        init(**options)

    ray.init = start
    with nullcontext() if starts else pytest.raises(Exception, match="timed out during startup"):
        RayCluster(None, NOTHING)
    assert ray.inside == starts


def test_ray_need_not_say_that_sigterm_stays_ours(ray: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    log, init = logging.getLogger("ray._private.worker"), ray.init

    def says(**options: Any) -> None:
        log.warning("SIGTERM handler is not set because current thread is not the main thread.")
        log.warning("the disk is full")
        init(**options)

    ray.init = says
    log.addHandler(caplog.handler)  # Ray's loggers hand nothing on
    try:
        RayCluster(None, NOTHING)
    finally:
        log.removeHandler(caplog.handler)
    assert {record.message for record in caplog.records} == {"the disk is full"}


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_cluster_is_joined_by_its_address_or_that_of_the_environment(
    ray: StandIn, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    RayCluster(listener, NOTHING).close()
    RayCluster("auto", NOTHING).close()
    monkeypatch.setenv("RAY_ADDRESS", listener)
    RayCluster(None, NOTHING).close()
    assert ray.inits == [{"address": listener}, {"address": "auto"}, {"address": listener}]


def test_a_cluster_that_this_process_is_in_is_taken_and_stays(ray: StandIn) -> None:
    ray.inside = True
    for address in (None, "auto", "10.0.0.1:6379"):
        RayCluster(address, NOTHING).close()
    assert ray.inside
    assert ray.inits == []
    with pytest.raises(
        ConfigError, match=r"10\.0\.0\.9:6379, but this process is in the Ray cluster at 10\.0\.0\.1:63"
    ):
        RayCluster("10.0.0.9:6379", NOTHING)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://head:10001", "ray job submit"),
        ("nonsense", r"nobody answers at ray.address=nonsense .*expected HOST:PORT"),
        ("127.0.0.1:1", "nobody answers at ray.address=127.0.0.1:1 .*refused"),
        ("127.0.0.1:99999999", "nobody answers"),
    ],
)
def test_addresses_without_a_cluster_are_refused_at_once(ray: StandIn, address: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RayCluster(address, NOTHING)
    assert ray.inits == []


@pytest.mark.parametrize("error", [ConnectionError("no cluster\nmore"), ValueError("odd."), RuntimeError("versions.")])
def test_what_ray_says_is_passed_on_with_a_remedy(ray: StandIn, error: Exception) -> None:
    ray.error = error
    words = str(error).splitlines()[0]
    with pytest.raises(ConfigError, match=f"cannot join the Ray cluster at ray.address=auto: {words} Run `ray start"):
        RayCluster("auto", NOTHING)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def no_ray(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_ray)
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[ray\]'"):
        RayCluster(None, NOTHING)


def test_resources_in_words() -> None:
    assert describe({}) == "nothing"
    assert describe({"CPU": 2.0, "browser": 0.5}) == "2 CPU, 0.5 browser"
