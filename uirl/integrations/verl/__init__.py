"""verl, driving our environments: its trainers, workers and servers, with our episodes as their agent loop.

`pip install 'uirl[verl]'`. Names load when they are first used; none of this is imported by `import uirl`.

- In the driver: `mapping` (our keys and verl's), `settings` (verl's whole config), `placement` (roles, splits, checks),
  `models` (folders of models), `trainer` (`create_trainer`), `task_runner` (starts verl's actor of that name).
- In the task runner: `v1` (verl's trainers), `update` (mini-batches and credit), `tasks` (dataset, reward). Beside it:
  `record` (the coordinator; numbers; what checkpoints hold of ours).
- In the agent-loop workers: `workers`, `agent_loop`; `tool` for verl's own loop. With the models: `vision_outputs`.
"""

from __future__ import annotations

from typing import Any

from uirl.runtime.lazy import lazy_exports

_HOMES = {
    "uirl.integrations.verl.tasks": "CustomEnvironmentDataset EnvironmentRewardWrapper",
    "uirl.integrations.verl.settings": "CustomGRPOTrainer create_verl_config load_verl_config",
    "uirl.integrations.verl.trainer": "CustomRayPPOTrainer create_trainer",
    "uirl.integrations.verl.agent_loop": "EnvironmentAgentLoop MobileWorldAgentLoop",
    "uirl.integrations.verl.models": "export_checkpoint",
}

_load, __all__ = lazy_exports(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("verl", "ray", "transfer_queue", "tensordict", "omegaconf"):
            raise ImportError(f"{name} needs verl: pip install 'uirl[verl]' ({error})", name=error.name) from error
        raise
