"""verl on a machine without an accelerator: for tests alone.

verl imports this package in every process (`VERL_USE_EXTERNAL_MODULES`), where it registers a platform, its own FSDP2
engines for the CPU, a rollout server around our embedded engine, and a processor that needs no torchvision. The test
of verl's hooks holds it to the registries it enters.
"""

from __future__ import annotations

import importlib.util
import os

from tests.integrations.verl.cpu import platform  # noqa: F401  (before verl asks for its platform)

ROLLOUT = "cpu"
"""`actor_rollout_ref.rollout.name` of the server below."""


def register() -> None:
    """Enters what this process can need. Training engines are heavy and only workers need them."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def replica() -> type:
        from tests.integrations.verl.cpu.rollout import CPUReplica

        return CPUReplica

    RolloutReplicaRegistry.register(ROLLOUT, replica)
    _ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "tests.integrations.verl.cpu.rollout.WeightCourier"
    if importlib.util.find_spec("torchvision") is None:
        from tests.inference import processors

        processors.register()
    if os.environ.get("WG_BACKEND") == "ray":  # set by verl in the processes of its worker groups
        from tests.integrations.verl.cpu import engine  # noqa: F401


register()
