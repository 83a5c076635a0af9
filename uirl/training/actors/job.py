"""What an actor is told to do."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from uirl.config import ConfigStore
from uirl.environments.base import BaseEnvironment
from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.peers.objects import pack, unpack
from uirl.rollout.reward import RewardFunction
from uirl.runtime.limits import shown
from uirl.types import JSON, Observation, Trajectory
from uirl.verification.hybrid import HybridVerifier

_PROBE = (Message("system", "Answer briefly."), Message("user", "Which template is yours, and which tools?"))


@dataclass(frozen=True, slots=True)
class ActorJob:
    """Everything an actor needs besides the way to the learner."""

    config: JSON
    """`ConfigStore.to_dict`."""
    places: dict[str, int]
    """Split -> episodes that this actor plays at the same time."""
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
    stuck: int = 0
    """Calls of environments that the actor gave up and that have not come back."""

    def __post_init__(self) -> None:
        observed = [*(turn.observation for turn in self.trajectory.turns), self.trajectory.final or Observation()]
        if strangers := [one for seen in observed for one in seen.images if type(one) is not str]:
            raise TypeError(f"a picture of an episode goes by its hash, got {shown(strangers[0])}")


@dataclass(frozen=True, slots=True)
class Ready:
    """What an actor says when it can play."""

    places: int
    """Episodes at the same time, of all splits."""
    probe: tuple[int, ...] = field(default=(), repr=False)
    """A prompt as its chat template writes it: the learner's must write the same."""


def job_for(
    config: ConfigStore,
    places: dict[str, int],
    *,
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFunction | None = None,
) -> tuple[ActorJob, bytes | None]:
    """Return the job of each of the actors of a run, and the objects that they are handed for it (`made_of`).

    `environment`: the one that was handed over in code; None: actors make the one that the config names. Each actor
    has copies of its own of both objects. Raises ConfigError where one cannot be copied.
    """
    described = isinstance(reward_fn, HybridVerifier) and reward_fn.from_config
    if isinstance(reward_fn, HybridVerifier) and described and reward_fn.judge is not None:
        config = config.model_copy(deep=True)  # actors book what the judge costs on the same run
        config.logging.run_name = reward_fn.judge.client.budget
    reward = None if described else reward_fn
    given = {"the environment": environment, "the reward function": reward}
    made = {name: value for name, value in given.items() if value is not None}
    job = ActorJob(
        config=config.to_dict(),
        places=places,
        search_path=tuple(os.path.abspath(folder) for folder in sys.path),
        folder=os.path.abspath(config.logging.at(".")),
    )
    return job, pack(made) if made else None


def made_of(packed: bytes | None) -> tuple[BaseEnvironment | None, RewardFunction | None]:
    """Return (environment, reward function) that were handed over in code; None: it was not. Raises ConfigError where
    they cannot be made here."""
    made = {} if packed is None else unpack(packed)
    return made.get("the environment"), made.get("the reward function")


def probe_of(chat: ChatRenderer) -> tuple[int, ...]:
    """Return a prompt as `chat` writes it, to be compared with that of another process."""
    return tuple(chat.whole(_PROBE))
