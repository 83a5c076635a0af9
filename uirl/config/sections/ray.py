"""Several machines: Ray, and the GPUs that verl divides among its workers."""

from __future__ import annotations

from typing import ClassVar

from uirl.config.section import Count, Section


class RayConfig(Section):
    """Ray, for actors outside this process."""

    key: ClassVar[str] = "ray"

    use_ray: bool = False
    """Play episodes in Ray actors: not in this version, which refuses true; false: in this process."""
    num_actors: Count = 1
    """Actors that play episodes where `use_ray` is true."""
    address: str | None = None
    """Address of a Ray cluster, 'auto' for the one this machine belongs to; None: start one on this machine."""
    nnodes: Count = 1
    """Machines that verl trains on."""
    gpus_per_node: Count = 8
    """GPUs of each of them."""
