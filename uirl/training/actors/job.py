"""What an actor is told to do, as plain data; and what of a run cannot be told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.rollout.reward import RewardFunction
from uirl.runtime.lazy import load
from uirl.types import Trajectory

_PROBE = (Message("system", "Answer briefly."), Message("user", "Which template is yours, and which tools?"))


@dataclass(frozen=True, slots=True)
class ActorJob:
    """Everything an actor needs besides the way to the learner."""

    config: ConfigStore
    places: dict[str, int]
    """Split -> episodes that this actor plays at the same time."""
    reward: str | None = None
    """'module:name' of the reward function."""
    search_path: tuple[str, ...] = ()
    """Where the learner finds modules, environments of one's own among them."""
    folder: str = ""
    """The learner's current folder."""


@dataclass(frozen=True, slots=True)
class Played:
    """One attempt at one episode."""

    trajectory: Trajectory
    pictures: tuple[Screenshot, ...] = ()
    """Those that it names, where the learner cannot read the actor's store."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What an actor says when it can play."""

    places: int
    """Episodes at the same time, of all splits."""
    probe: tuple[int, ...] = field(default=(), repr=False)
    """A prompt as its chat template writes it: the learner's must write the same."""


def job_for(config: ConfigStore, reward_fn: RewardFunction | None, places: dict[str, int]) -> ActorJob:
    """Return the job of each of the actors of a run. Raises ConfigError where it needs an object that another process
    cannot make from its name."""
    if config.environment.is_object:
        raise ConfigError(
            f"{config.environment.name} was handed over as an object, and actors in other processes make their own "
            "environments; name it in the config (environment.name=package.module:Class environment.options={...}), "
            "or play in this process (actors.processes=0, ray.use_ray=false)"
        )
    return ActorJob(
        config=config,
        places=places,
        reward=None if reward_fn is None else name_of(reward_fn),
        search_path=tuple(os.path.abspath(folder) for folder in sys.path),
        folder=os.getcwd(),
    )


def name_of(function: Callable[..., object]) -> str:
    """Return 'module:name' of a function that another process can import. Raises ConfigError."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is not None and name is not None and module != "__main__":
        try:
            if load(f"{module}:{name}") is function:
                return f"{module}:{name}"
        except (ImportError, AttributeError, ValueError):
            pass
    raise ConfigError(
        f"got the reward function {module}:{name}, which another process cannot import; expected a function at the top "
        "of a module other than the script that is run (no lambda, no method, nothing inside a function). Move it to "
        "a file beside the config, or play in this process (actors.processes=0, ray.use_ray=false)"
    )


def probe_of(chat: ChatRenderer) -> tuple[int, ...]:
    """Return a prompt as `chat` writes it, to be compared with that of another process."""
    return tuple(chat.whole(_PROBE))
