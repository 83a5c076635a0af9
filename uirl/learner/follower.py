"""A process that learns with the one that leads: it takes every call of the learner with it, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from uirl.config import ConfigStore
from uirl.errors import ProcessLost
from uirl.images import ImageStore, Screenshot
from uirl.learner.checkpoint import load_checkpoint
from uirl.learner.data_parallel import Begin, Call, End, GatherState, Learn, Ranks, Restore
from uirl.learner.policy import Policy
from uirl.learner.update import Learner


class Follower:
    """The learner of a process that follows."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._images = ImageStore()
        self._learner: Learner | None = None
        self._forgotten = 0.0

    def run(self) -> None:
        """Take calls until the leader ends. Raises ProcessLost where it, or another process, is gone, and what went
        wrong here alone; the others are told why."""
        try:
            while not isinstance(message := self._ranks.hear(), End):
                self._take(message)
        except Exception as error:
            self._ranks.mourn(error)
            raise
        finally:
            self._ranks.close()

    def _take(self, message: Call) -> None:
        try:
            self._ranks.agreed(lambda: self._do(message))
        except ProcessLost:
            raise
        except Exception:
            # of what went wrong everywhere, the leader says what follows
            if self._ranks.lost or self._learner is None:
                raise

    def _do(self, message: Call) -> None:
        if isinstance(message, Begin):
            config = ConfigStore.from_dict(message.config)
            if config.training.threads is not None:
                torch.set_num_threads(config.training.threads)
            torch.manual_seed(config.training.seed + self._ranks.rank)  # what adapters drop
            self._learner = Learner(Policy.from_config(config), config, self._images, ranks=self._ranks)
            return
        learner = self._learner
        assert learner is not None, "the leader begins with Begin"
        if isinstance(message, Restore):
            load_checkpoint(Path(message.folder), learner)
            # the random state in it is the leader's, with which this one would drop the same
            torch.manual_seed(learner.config.training.seed + self._ranks.rank + self._ranks.count * learner.updates)
        elif isinstance(message, GatherState):
            learner.optimizer_state()
        elif isinstance(message, Learn):
            self._learn(learner, message)

    def _learn(self, learner: Learner, message: Learn) -> None:
        begun = time.time()
        with self._images.holding():
            for data in message.pictures.values():
                self._images.put(Screenshot(data))
            learner.run_length = message.run_length
            if message.supervised:
                learner.supervised(message.samples)
                return
            noted = (lambda tokens, version: None) if message.noted else None
            learner.update(message.samples, anchors=message.anchors, spared=message.spared, on_learned=noted)
        self._images.forget_before(begun)
        learner.policy.loaded.forget_pictures(self._forgotten)
        self._forgotten = begun
