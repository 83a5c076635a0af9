"""Ray: the cluster that a run joins, or starts on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uirl.config import RayConfig
from uirl.errors import ConfigError

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What the actors and engines of a run reserve, together. Ray counts the GPUs of a machine itself."""

    cpus: float
    resources: Mapping[str, float]


def demand_of(settings: RayConfig, engines: int = 0) -> Demand:
    """Return what a run with these settings reserves in all, with `engines` of them in Ray."""
    resources = {name: amount * settings.num_actors for name, amount in settings.actor_resources.items()}
    return Demand(settings.actor_cpus * settings.num_actors + settings.engine_cpus * engines, resources)


_users: set[RayCluster] = set()
"""Those that use the cluster that one of them had this process join."""


class RayCluster:
    """The Ray cluster that this process belongs to from now on.

    Where the process is in one already, that is it, and it stays when this is closed. One that was joined for a
    `RayCluster` is left when the last of them is closed, and ends then if it was started here. Raises ConfigError where
    Ray is not installed, or no cluster is at the address. It takes seconds.
    """

    def __init__(self, settings: RayConfig, demand: Demand) -> None:
        ray = import_ray()
        if not ray.is_initialized():
            _users.clear()  # of a cluster that somebody else has left
            address = settings.address or os.environ.get("RAY_ADDRESS")
            if address is None:
                _start(ray, demand)
            else:
                _join(ray, address)
            _users.add(self)
        else:
            here = ray.get_runtime_context().gcs_address
            if settings.address not in (None, "auto", here):
                raise ConfigError(
                    f"ray.address={settings.address}, but this process is in the Ray cluster at {here}; leave the "
                    "address out, or call ray.shutdown() before"
                )
            if _users:
                _users.add(self)
        self.host: str = ray.util.get_node_ip_address()
        """Where the other machines of the cluster reach this one."""
        self.name: str = ray.get_runtime_context().gcs_address
        """Host and port of the cluster's head."""

    def free(self) -> str:
        """Return what of the cluster is not reserved, in words."""
        return describe(import_ray().available_resources())

    def close(self) -> None:
        """Use it no more; the last one leaves it. Calling it twice is fine."""
        if self in _users:
            _users.discard(self)
            if not _users:
                import_ray().shutdown()


def import_ray() -> Any:
    """Return the module. Raises ConfigError where it is not installed."""
    # Ray's handler of fatal signals takes SIGTERM for one, and would end the process that has to save first
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"ray.use_ray=true needs the package ray, and it cannot be imported ({error}); "
            "pip install 'uirl[ray]', or set ray.use_ray=false"
        ) from None
    return ray


def describe(resources: Mapping[str, float]) -> str:
    """Return resources in words: '2 CPU, 0.5 GPU, 4 browser'."""
    shown = {name: amount for name, amount in sorted(resources.items()) if ":" not in name and "memory" not in name}
    return ", ".join(f"{amount:g} {name}" for name, amount in shown.items()) or "nothing"


def _start(ray: Any, demand: Demand) -> None:
    """Start Ray on this machine, with room for the actors and engines of this run: nothing else is to share it."""
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=max(os.cpu_count() or 1, int(demand.cpus + 0.999)),
        resources=dict(demand.resources) or None,
    )


def _join(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"got ray.address={address}, which is for clients outside the cluster; the learner has to be in it, where "
            "its actors can reach it: `ray job submit -- uirl train CONFIG ray.address=auto`, or run it on a machine "
            "of the cluster"
        )
    if address not in ("auto", "local"):
        _require_listener(address)
    try:
        ray.init(address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot join the Ray cluster at ray.address={address}: {str(error).splitlines()[0]} Run `ray start "
            "--head` there and `ray start --address=HOST:6379` on this machine, or set ray.address=null to start Ray "
            "on this machine alone"
        ) from error


def _require_listener(address: str) -> None:
    """Raise ConfigError where nobody listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"nobody answers at ray.address={address} ({error}); expected HOST:PORT of a cluster's head (6379 unless "
            "`ray start --head` was told another port), 'auto', or null to start Ray on this machine"
        ) from None
