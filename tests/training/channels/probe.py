"""An environment and an engine that tell what a channel does with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine
from uirl.types import Action, Task


class ProbeEnvironment(BaseEnvironment):
    """Does what its task says: 'plays', 'fails once', 'fails', 'hangs' or 'breaks'.

    It ends after two replies. A file in `folder` stands for every instance that is open, so that who is left behind can
    be counted from any process.
    """

    def __init__(self, folder: str, split: str = "train") -> None:
        super().__init__()
        self._folder, self._split = Path(folder), split
        self._open: Path | None = None
        self._task = Task(id="none")
        self._seed = 0
        self._turns = 0

    async def reset(self, task: Task | None = None, seed: int = 0) -> str:
        """Begin, or break where the task says so."""
        assert task is not None
        if self._open is None:
            self._open = self._folder / f"open-{os.getpid()}-{id(self)}"
            self._open.touch()
        self._task, self._seed, self._turns = task, seed, 0
        if task.goal == "breaks":
            raise ConfigError("the probe was told to break: this is for the person")
        return self.get_state_description()

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take a reply; the second one ends the episode."""
        self._turns += 1
        if self._task.goal == "hangs":
            (self._folder / f"hangs-{self._seed}").touch()
            await asyncio.sleep(10 * PATIENCE)
        failed = self._folder / f"failed-{self._seed}"
        if self._task.goal == "fails" or (self._task.goal == "fails once" and not failed.exists()):
            failed.touch()
            raise RuntimeError("the probe was told to fail")
        done = self._turns == 2
        return self.get_state_description(), float(len(action)), done, {"success": done, "split": self._split}

    def get_state_description(self) -> str:
        """Return task, seed and turn."""
        return f"{self._task.goal} {self._seed} {self._turns}"

    def expert_action(self) -> str:
        """Return the same words every time."""
        return "expert"

    def controls(self) -> Mapping[str, BaseEnvironment | Action | str]:
        """Return a reply, and a variant that tells what it is."""
        return {"a reply": "nothing", "a variant": ProbeEnvironment(str(self._folder), "variant")}

    def tasks(self) -> Sequence[Task]:
        """Return one task."""
        return [Task(id="plays", goal="plays")]

    def close(self) -> None:
        """Take the file away."""
        if self._open is not None:
            self._open.unlink(missing_ok=True)
            self._open = None


class CountedEngine(InferenceEngine):
    """Counts the episodes that were not released."""

    def __init__(self, inner: InferenceEngine) -> None:
        self.inner = inner
        self.kept: set[str] = set()
        self.shares_weights, self.takes_weights = inner.shares_weights, inner.takes_weights

    async def generate(self, request: GenerationRequest) -> Generation:
        if request.session_id is not None:
            self.kept.add(request.session_id)
        return await self.inner.generate(request)

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        await self.inner.update_weights(weights, version, adapter=adapter)
        self.policy_version = version

    def release(self, session_id: str) -> None:
        self.kept.discard(session_id)
        self.inner.release(session_id)

    async def close(self) -> None:
        await self.inner.close()


def probe_config(folder: Path, **changes: Any) -> ConfigStore:
    """Return the config of a run in `ProbeEnvironment`; `changes`: section -> keys."""
    values: dict[str, Any] = {
        "environment": {
            "name": f"{ProbeEnvironment.__module__}:{ProbeEnvironment.__name__}",
            "options": {"folder": str(folder)},
            "eval_options": {"split": "eval"},
        },
        "model": {
            "model_name": "uirl/tiny-lm",
            "device": "cpu",
            "tiny": {"hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "num_layers": 1},
        },
        "inference": {"max_tokens": 6},
        "training": {"batch_size": 8, "group_size": 4},
        "rollout": {"parallel": 8},
    }
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    return ConfigStore.from_dict(values)
