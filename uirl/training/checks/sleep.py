"""Whether an engine that gives its memory to the learner comes back with the learner's weights, and once."""

from __future__ import annotations

from collections.abc import Sequence

from uirl.errors import EngineFailure
from uirl.training.assembly import Assembly
from uirl.training.checks.agreement import update_reaches_engine
from uirl.types import Trajectory

REMEDY = "set inference.sleep=off, or run the engine on a GPU of its own (inference.server_url)"


async def check_sleep(parts: Assembly, played: Sequence[Trajectory]) -> list[tuple[str, bool, str]]:
    """Return (what, ok, detail) of each check; none where the engine does not sleep.

    An update is taken while it sleeps. Afterwards its log-probs are those of the learner's new weights, which they are
    not where old weights woke up, where the weights under adapters were lost, or where only a part was loaded again.
    And its memory was free while the learner worked, and holds everything once again.
    """
    if not parts.engine.sleeps:
        return []
    try:
        ok, detail = await update_reaches_engine(parts, played, asleep=True)
    except EngineFailure as error:  # it does not wake up, or its lost weights make NaN
        ok, detail = False, str(error)
    found = [("weights after a sleep of the engine", ok, detail if ok else f"{detail}; {REMEDY}")]
    if not ok:
        return found
    footprint, what = parts.engine.footprint, "memory of a sleep of the engine"
    if footprint is None:
        return [*found, (what, True, "not measured: the engine does not tell what it holds")]
    problems = "; ".join(footprint.problems())
    return [*found, (what, not problems, f"{problems}; {REMEDY}" if problems else str(footprint))]
