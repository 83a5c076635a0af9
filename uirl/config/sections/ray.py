"""Several machines: Ray, and the GPUs that verl divides among its workers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from uirl.config.section import Address, Count, NonNegative, Positive, Section


class RayConfig(Section):
    """Ray, for actors and engines outside this process."""

    key: ClassVar[str] = "ray"

    use_ray: bool = False
    """Play episodes in Ray actors, on all machines of a cluster; false: in this process, or in `actors.processes`."""
    num_actors: Count = 1
    """Actors that play episodes where `use_ray` is true."""
    address: Address | None = None
    """Address of a Ray cluster, 'auto' for the one this machine belongs to; None: the one that RAY_ADDRESS names, as in
    a job of Ray's, else one is started on this machine for this run."""
    actor_cpus: NonNegative = 1.0
    """CPUs of a machine that Ray reserves for an actor: 0.25 puts four on one CPU. It limits no actor."""
    actor_resources: dict[str, Positive] = Field(default_factory=dict)
    """Resources of a machine's own that Ray reserves for an actor besides: `{browser: 1}` puts as many on a machine as
    it was started with (`ray start --resources='{"browser": 8}'`)."""
    start_seconds: Positive = 300.0
    """How long actors and engines may take until they have a place in the cluster, and actors until they play."""
    engine_cpus: NonNegative = 1.0
    """CPUs of a machine that Ray reserves for each of `actors.engines`."""
    engine_gpus: NonNegative = 0.0
    """GPUs of a machine that Ray reserves for each of them, and on which it computes; 0: on CPUs."""
    nnodes: Count = 1
    """Machines that verl trains on."""
    gpus_per_node: Count = 8
    """GPUs of each of them."""
