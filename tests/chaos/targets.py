"""What chaos serves beside the run, kills and starts again: environment servers, and the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.processes import MARK, RunProcess
from uirl.config import ConfigStore
from uirl.errors import ConfigError, ProcessLost
from uirl.workers.ray import import_ray

LEASE = 15.0
"""Seconds after which a server ends a session whose player was killed."""
_START = 120.0
"""Seconds that a server may take to listen."""
_ACTIVE = re.compile(r"^uirl_sessions_active (\d+)", re.MULTILINE)


@dataclass(slots=True)
class LocalServer:
    """One `uirl serve` process."""

    name: str
    port: int
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, mark: str) -> None:
        """Start it, and return at once."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # an environment of one's own is found where the config was
                env={**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )

    def answers(self) -> bool:
        """Return whether it serves."""
        return self._get("/health") is not None

    def wait(self) -> None:
        """Wait until it serves. Raises ProcessLost with its last words where it does not."""
        until = time.monotonic() + _START
        while not self.answers():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > until:
                how = "ended at its start" if ended else f"did not start within {_START:g} s"
                raise ProcessLost(
                    f"the environment server on port {self.port} {how}; it said: "
                    f"{self.log.read_text(errors='replace')[-2000:].strip() or 'nothing'}"
                )
            time.sleep(0.1)

    def sessions(self) -> int | None:
        """Return how many sessions it holds; None: it does not answer."""
        text = self._get("/metrics")
        found = None if text is None else _ACTIVE.search(text)
        return None if found is None else int(found[1])

    def stop(self) -> None:
        """End it, and wait."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20.0)

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5.0) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return None


def servers_of(config: ConfigStore, count: int, folder: Path, uirl: Sequence[str]) -> list[LocalServer]:
    """Return `count` servers of the environment that the config names, not started. `uirl`: how that program is called.
    Raises ConfigError for one that is served elsewhere, or that differs in evaluations."""
    settings = config.environment
    settings.require_named()
    if {"url", "urls"} & settings.options.keys():
        raise ConfigError(f"--servers: {settings.name} plays on servers already, and chaos starts none for it")
    if settings.eval_options:
        raise ConfigError(
            "--servers: environment.eval_options would need servers of their own; put them into options, or play the "
            "environment in the actors"
        )
    sessions = 2 * config.rollout.parallel_limit  # all episodes may come to one server, and evaluations after them
    found = []
    for number in range(count):
        port = _free_port()
        options = [f"--option={key}={json.dumps(value)}" for key, value in settings.options.items()]
        command = [*uirl, "serve", "--env", settings.name, *options]
        command += ["--port", str(port), "--sessions", str(sessions), "--lease", str(LEASE)]
        found.append(LocalServer(f"server-{number}", port, command, folder / f"server-{number}.log"))
    return found


def changes_for(servers: list[LocalServer]) -> list[str]:
    """Return the changes to a config with which it plays on the servers."""
    options = json.dumps({"urls": [server.url for server in servers]})
    return ["environment.name=remote", f"environment.options={options}"]


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@contextlib.contextmanager
def _marked(mark: str) -> Iterator[None]:
    """What Ray starts meanwhile inherits the mark."""
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


class RayNodes:
    """`count` nodes beside a head that has no place for actors; any one of them has places for all."""

    def __init__(self, config: ConfigStore, count: int) -> None:
        """Raise ConfigError where the run does not start a cluster of its own."""
        if not config.ray.use_ray or config.ray.address is not None:
            raise ConfigError(
                f"--ray-nodes: got ray.use_ray={config.ray.use_ray}, ray.address={config.ray.address}; expected "
                "use_ray=true and no address: chaos starts the cluster itself"
            )
        import_ray()
        actors = config.ray.num_actors
        self._resources = {
            "num_cpus": max(1, round(actors * config.ray.actor_cpus + 0.5)),
            "resources": {name: amount * actors for name, amount in config.ray.actor_resources.items()},
        }
        self._count = count
        self._cluster: Any = None
        self._nodes: dict[str, Any] = {}

    def start(self, mark: str) -> str:
        """Start the head and the nodes; return the cluster's address."""
        from ray.cluster_utils import Cluster

        with _marked(mark):
            self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for number in range(self._count):
            self.start_node(f"node-{number}", mark)
        return str(self._cluster.address)

    def start_node(self, name: str, mark: str) -> None:
        """Start a node, in the place of one of the same name that was killed."""
        dead = self._nodes.pop(name, None)
        with _marked(mark):
            if dead is not None:
                self._cluster.remove_node(dead, allow_graceful=False)
            self._nodes[name] = self._cluster.add_node(wait=False, **self._resources)

    def processes(self) -> list[RunProcess]:
        """Return the process of every node without which it is none: Ray's raylet."""
        found = []
        for name, node in sorted(self._nodes.items()):
            for one in node.all_processes.get("raylet", []):
                if one.process.poll() is None:
                    found.append(RunProcess(name, "node", one.process.pid))
        return found

    def stop(self) -> None:
        """End the cluster."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.shutdown()
            self._nodes = {}
