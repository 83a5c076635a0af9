"""`Trainer`: one update at a time, on trajectories that somebody else collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from uirl.algorithms import Algorithm
from uirl.config import ConfigStore
from uirl.errors import AlignmentError
from uirl.images import ImageStore
from uirl.inference.messages import Message
from uirl.learner import Learner, VLMWrapper
from uirl.metrics import Metrics
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.types import Trajectory, Turn


class Trainer:
    """Updates `model` with `algorithm` on batches of trajectories.

    Trajectories from an engine are used token for token. Trajectories filled by hand (`states`, `actions`, `rewards`)
    have no tokens; their turns are rendered with the chat template. The log-probs at the start of an update are the
    model's own, so what no engine sampled counts as sampled by the policy as it is then.
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
        """`batch_size`: most trajectories of an update; one group that is larger is an update of its own. `config`:
        everything else; None: the defaults."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.model, self.algorithm, self.batch_size = model, algorithm, batch_size
        self.config = (config or ConfigStore()).model_copy(deep=True)
        self.config.training.learning_rate = learning_rate
        self.config.training.minibatches = 1
        # what was filled by hand has no log-probs of an engine
        self.config.training.old_log_probs = "recompute"
        self.images = ImageStore() if images is None else images  # an empty store is false
        if algorithm.spec.needs_critic:
            model.policy.add_critic()
        self.learner = Learner(model.policy, self.config, self.images, algorithm=algorithm)

    def train_step(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Learn from the trajectories that are evidence (no failure); return the mean of the metrics of the updates.

        An estimator that compares within groups gets whole groups: as many as `batch_size` has room for, in the order
        of their first members. A trajectory that failed keeps its place, so that it moves no other group.
        """
        if all(t.failure is not None for t in trajectories):
            raise AlignmentError(f"none of the {len(trajectories)} trajectories is usable; got failures only, or none")
        metrics = Metrics()
        for batch in cut_at_groups(trajectories, self.batch_size, whole=self.algorithm.spec.needs_group):
            with self.images.holding():
                usable = [self._with_tokens(t) for t in batch if t.failure is None]
                if usable:
                    anchors = anchors_of(usable) if self.algorithm.spec.needs_anchors else None
                    metrics.add_all(self.learner.update(samples_of_all(usable), anchors=anchors))
        return {name: value for name, value in metrics.reduce().items() if value is not None}

    def _with_tokens(self, trajectory: Trajectory) -> Trajectory:
        if trajectory.turns and all(turn.response_ids for turn in trajectory.turns):
            return trajectory
        turns: list[Turn] = []
        for turn in trajectory.turns:
            images = tuple(self.images.put(picture) for picture in turn.observation.images)
            message = Message("user", turn.observation.text, images)
            first = not turns
            ids = self.model.chat.whole([message]) if first else self.model.chat.following([message], after_end=True)
            turns.append(
                replace(
                    turn,
                    context_ids=tuple(ids),
                    response_ids=tuple(self.model.chat.demonstration(turn.action.text)),
                    starts_segment=first,
                    context_images=tuple(image.hash for image in images),
                    policy_version=self.learner.version,
                )
            )
        return replace(trajectory, turns=turns)


def cut_at_groups(trajectories: Sequence[Trajectory], size: int, *, whole: bool = True) -> list[list[Trajectory]]:
    """Return batches of at most `size` trajectories; with `whole` none holds a part of a group, and one that is larger
    than `size` is a batch alone. A trajectory without group_id is a group of its own."""
    groups: dict[str | int, list[Trajectory]] = {}
    for i, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group_id if whole and trajectory.group_id else i, []).append(trajectory)
    batches: list[list[Trajectory]] = []
    for members in groups.values():
        if not batches or len(batches[-1]) + len(members) > size:
            batches.append([])
        batches[-1] += members
    return batches
