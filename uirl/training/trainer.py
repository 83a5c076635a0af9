"""`Trainer`: one update at a time, on trajectories that somebody else collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from uirl.algorithms import Algorithm
from uirl.config import ConfigStore
from uirl.errors import AlignmentError
from uirl.images import ImageStore
from uirl.inference.chat import ChatRenderer, Message
from uirl.learner import Learner, VLMWrapper
from uirl.rollout.samples import samples_of_all
from uirl.types import Trajectory, Turn


class Trainer:
    """Updates `model` with `algorithm` on batches of trajectories.

    Trajectories from an engine are used token for token. Trajectories filled by hand (`states`, `actions`, `rewards`)
    have no tokens; their turns are rendered with the chat template, and log-probs are those of the model as it is
    now: what was not sampled by an engine counts as sampled by the current policy.
    """

    def __init__(
        self,
        model: VLMWrapper,
        algorithm: Algorithm,
        batch_size: int = 32,
        learning_rate: float = 1e-5,
        *,
        config: ConfigStore | None = None,
        images: ImageStore | None = None,
    ) -> None:
        """`batch_size`: trajectories per minibatch. `config`: everything else; None: the defaults."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.model, self.algorithm, self.batch_size = model, algorithm, batch_size
        self.config = config or ConfigStore()
        self.config.training.learning_rate = learning_rate
        self.images = images or ImageStore()
        policy = model.policy_for(algorithm)
        self._chat = ChatRenderer(policy.loaded)
        self.learner = Learner(policy, self.config, self.images, algorithm=algorithm)

    def train_step(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """One update on the trajectories that are evidence (no failure); its metrics."""
        usable = [self._with_tokens(t) for t in trajectories if t.failure is None]
        if not usable:
            raise AlignmentError(f"none of the {len(trajectories)} trajectories is usable; got failures only, or none")
        return self.learner.update(samples_of_all(usable), minibatches=-(-len(usable) // self.batch_size))

    def _with_tokens(self, trajectory: Trajectory) -> Trajectory:
        if trajectory.turns and all(turn.response_ids for turn in trajectory.turns):
            return trajectory
        turns: list[Turn] = []
        for turn in trajectory.turns:
            shots = tuple(self.images.put(picture) for picture in turn.observation.images)
            message = Message("user", turn.observation.text, shots)
            first = not turns
            ids = self._chat.whole([message]) if first else self._chat.following([message], after_end=True)
            turns.append(
                replace(
                    turn,
                    context_ids=tuple(ids),
                    response_ids=tuple(self._chat.demonstration(turn.action.text)),
                    starts_segment=first,
                    context_images=tuple(shot.hash for shot in shots),
                    policy_version=self.learner.version,
                )
            )
        return replace(trajectory, turns=turns)

