"""An environment that is nothing but clicks, light enough for a process of its own."""

from __future__ import annotations

from typing import Any

from uirl.environments.base import BaseEnvironment


class Clicking(BaseEnvironment):
    """Pays 1 per action, without an end, in words alone: a text model can play it."""

    action_format = "json"
    runs_inline = True

    def reset(self, seed: int | None = None) -> Any:
        return f"seed {seed}"

    def step(self, action: Any) -> Any:
        return "clicked", 1.0, False, {"success": False}

    def get_state_description(self) -> str:
        return ""


NAME = f"{__name__}:Clicking"
"""As the table of environments and the command take it."""
