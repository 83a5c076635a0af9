"""A Ray cluster of several nodes on this machine, of which chaos may kill all but the head, and starts them again."""

from __future__ import annotations

import os
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.training.chaos.processes import MARK, RunProcess
from uirl.workers.ray import import_ray


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

        os.environ[MARK] = mark  # what Ray starts inherits it
        try:
            self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
            for number in range(self._count):
                self.start_node(f"node-{number}")
        finally:
            del os.environ[MARK]
        return str(self._cluster.address)

    def start_node(self, name: str) -> None:
        """Start a node, in the place of one of the same name that was killed."""
        dead = self._nodes.pop(name, None)
        if dead is not None:
            self._cluster.remove_node(dead, allow_graceful=False)
        self._nodes[name] = self._cluster.add_node(wait=False, **self._resources)

    def start_again(self, name: str, mark: str) -> None:
        """Start a node that was killed again."""
        os.environ[MARK] = mark
        try:
            self.start_node(name)
        finally:
            del os.environ[MARK]

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
