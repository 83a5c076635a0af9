"""What is noted at the end of an episode."""

from __future__ import annotations

from typing import Any

from uirl.environments.mobile_world import mai_ui
from uirl.environments.mobile_world.actions import PhoneAction, Terminate
from uirl.environments.mobile_world.server import Score


def notes_of(score: Score, meant: PhoneAction | mai_ui.Instead | str | None, over: bool) -> dict[str, Any]:
    """Return the info of the last observation.

    `meant`: the last action, None where the run ended the episode; `over`: that action ended it, and not a limit.
    """
    reason = score.reason if isinstance(score.reason, str) else ""
    info: dict[str, Any] = {"success": score.success, "score": score.score, "reason": reason}
    if isinstance(meant, Terminate):
        info["claimed"] = meant.status
    elif isinstance(meant, mai_ui.Unknown):
        info["unknown"] = meant.why
    elif not over and meant is not None:
        info["out_of_turns"] = True
    return info
