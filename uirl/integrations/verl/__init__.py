"""verl, driving our environments: its trainers, workers and servers, with our episodes as their agent loop.

`pip install 'uirl[verl]'`. Names load when they are first used; none of this is imported by `import uirl`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "CustomEnvironmentDataset": "tasks.dataset",
    "CustomGRPOTrainer": "config.grpo",
    "CustomRayPPOTrainer": "trainer.trainer",
    "EnvironmentAgentLoop": "rollout.agent_loop",
    "EnvironmentRewardWrapper": "tasks.reward",
    "MobileWorldAgentLoop": "rollout.mobile_world",
    "create_trainer": "trainer.trainer",
    "create_verl_config": "config.mapping",
    "export_checkpoint": "trainer.checkpoints",
    "load_verl_config": "config.reading",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("verl", "ray", "transfer_queue", "tensordict", "omegaconf"):
            raise ImportError(f"{name} needs verl: pip install 'uirl[verl]' ({error})", name=error.name) from error
        raise
