"""One exception per boundary, and the policy on one screen.

| what went wrong | who is told | what happens |
|---|---|---|
| the model's own mistake: bad JSON, unknown action, click outside | the model, in the next observation | the episode goes on |
| the model's own length: turns, tokens, a context that is full | `stop_reason` | the episode ends and is learned from |
| `EnvironmentFailure`, `EngineFailure`, `ActorFailure`, `JudgeFailure`, `EpisodeTimeout` | the trajectory's `failure` | the episode is excluded from every advantage, its group is repaired |
| `ConfigError`, `ContractError`, `CheckpointError`, `StorageError`, `AlignmentError`, `NonFiniteError`, `OutOfMemory`, `LedgerError` | the person | the run stops and names the place; what was written stays readable |
| `ProcessLost` | the person | the run stops and says which process; it continues from its last checkpoint |

A failure is never a reward of zero. docs/failures.md lists what raises which, and who can cause it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,16}")


def without_addresses(text: str) -> str:
    """Return `text` without the places of objects in memory (`<Foo object at 0x7f...>`): they differ from run to run,
    so that a policy which reads one cannot be repeated, and they are nobody's business on the other side of a wire."""
    return _ADDRESS.sub("", text)


class UirlError(Exception):
    """Base of all errors this package raises on purpose. Its words hold no addresses of objects, whoever wrote them."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_addresses(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(UirlError):
    """A config key or value that does not exist or does not fit."""


class ContractError(UirlError):
    """An environment, engine or parser breaks its contract."""


class AlignmentError(UirlError):
    """Tokens, masks, log-probs or images that must line up do not."""


class CheckpointError(UirlError):
    """A checkpoint is missing, incomplete or damaged."""


class StorageError(UirlError):
    """The run directory cannot be written or read."""


class NonFiniteError(UirlError):
    """A loss, a gradient or a log-prob is NaN or infinite; the step was refused."""


class OutOfMemory(UirlError):
    """Something does not fit in memory, and nothing smaller is left to try."""


class ProcessLost(UirlError):
    """A process that the run needs is gone: killed, out of memory, or its machine is."""


class LedgerError(UirlError):
    """Episodes were lost or booked twice: what the run says of itself cannot be believed."""


class RolloutFailure(UirlError):
    """An episode cannot be used. `kind` goes into the trajectory's `Failure`."""

    kind = "rollout"


class EnvironmentFailure(RolloutFailure):
    """The environment raised, hung or returned nonsense."""

    kind = "environment"


class EngineFailure(RolloutFailure):
    """The engine could not generate."""

    kind = "engine"


class EngineLost(EngineFailure):
    """The engine's process or server is gone, or answers nothing any more. Another one can answer in its place."""


class PromptTooLong(EngineFailure):
    """A prompt leaves no room for a reply. Where the policy replied before, its own words filled the context and the
    episode ends as 'token_budget', which is evidence; before the first reply nobody's words did, and it is a failure.
    """

    kind = "prompt"


class SamplingRefused(EngineFailure):
    """The engine cannot sample as it is asked: the config is wrong, or a client of the endpoint, which is told so."""


class ActorFailure(RolloutFailure):
    """The actor that played the episode is gone or does not answer."""

    kind = "actor"


class JudgeFailure(RolloutFailure):
    """The verifier could not judge."""

    kind = "judge"


class EpisodeTimeout(RolloutFailure):
    """A call exceeded its time limit."""

    kind = "timeout"


def did_you_mean(got: str, names: Iterable[str]) -> str:
    """Return a clause 'did you mean ...?' for error messages; where nothing is near, what is known (the first 100).

    It costs little whatever a policy wrote: names are compared by their beginnings, and not with thousands of others.
    """
    names = sorted(set(names))
    near = get_close_matches(got[:100], names, n=1, cutoff=0.5) if len(names) <= 1000 else []
    if near:
        return f"did you mean {near[0]!r}?"
    return "known: " + ", ".join(names[:100]) + (f", and {len(names) - 100} more" if len(names) > 100 else "")


def is_round(count: int) -> bool:
    """Return whether a count is 1, 10, 100 and so on: when to say once more what happens often."""
    return str(count).rstrip("0") == "1"
