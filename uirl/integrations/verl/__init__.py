"""verl, driving our environments: its trainers, workers and servers, with our episodes as their agent loop.

`pip install 'uirl[verl]'`. Names load when they are first used; none of this is imported by `import uirl`.
"""

from __future__ import annotations

from typing import Any

from uirl.runtime.lazy import lazy_exports

_HOME = {
    "CustomEnvironmentDataset": "uirl.integrations.verl.tasks.dataset",
    "CustomGRPOTrainer": "uirl.integrations.verl.config.grpo",
    "CustomRayPPOTrainer": "uirl.integrations.verl.trainer.trainer",
    "EnvironmentAgentLoop": "uirl.integrations.verl.rollout.agent_loop",
    "EnvironmentRewardWrapper": "uirl.integrations.verl.tasks.reward",
    "MobileWorldAgentLoop": "uirl.integrations.verl.rollout.mobile_world",
    "create_trainer": "uirl.integrations.verl.trainer.trainer",
    "create_verl_config": "uirl.integrations.verl.config.mapping",
    "export_checkpoint": "uirl.integrations.verl.trainer.checkpoints",
    "load_verl_config": "uirl.integrations.verl.config.reading",
}

__all__ = sorted(_HOME)

_load = lazy_exports(__name__, _HOME)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("verl", "ray", "transfer_queue", "tensordict", "omegaconf"):
            raise ImportError(f"{name} needs verl: pip install 'uirl[verl]' ({error})", name=error.name) from error
        raise
