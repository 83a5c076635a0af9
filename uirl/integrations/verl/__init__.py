"""verl, driving our environments: its trainers, workers and servers, with our episodes as their agent loop.

`pip install 'uirl[verl]'`. Names load when they are first used; none of this is imported by `import uirl`.
"""

from __future__ import annotations

from typing import Any

from uirl.runtime.lazy import lazy_exports

_HOMES = {
    "uirl.integrations.verl.tasks.dataset": "CustomEnvironmentDataset",
    "uirl.integrations.verl.config.grpo": "CustomGRPOTrainer",
    "uirl.integrations.verl.trainer.trainer": "CustomRayPPOTrainer create_trainer",
    "uirl.integrations.verl.rollout.agent_loop": "EnvironmentAgentLoop",
    "uirl.integrations.verl.tasks.reward": "EnvironmentRewardWrapper",
    "uirl.integrations.verl.rollout.mobile_world": "MobileWorldAgentLoop",
    "uirl.integrations.verl.config.mapping": "create_verl_config",
    "uirl.integrations.verl.trainer.checkpoints": "export_checkpoint",
    "uirl.integrations.verl.config.reading": "load_verl_config",
}

_load, __all__ = lazy_exports(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("verl", "ray", "transfer_queue", "tensordict", "omegaconf"):
            raise ImportError(f"{name} needs verl: pip install 'uirl[verl]' ({error})", name=error.name) from error
        raise
