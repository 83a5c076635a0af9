"""Learners of the small model, and what can be seen of one update."""

import torch

from tests.learner.worlds import make_config
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, response_view
from uirl.learner.batch import SampleBatches
from uirl.learner.credit import score_samples
from uirl.learner.optimizer import Optimizer

TEXT = "model.model_name=uirl/tiny-lm"


def make_learner(images: ImageStore, *overrides: str, algorithm=None) -> Learner:
    config = make_config(*overrides)
    critic = algorithm.spec.needs_critic if algorithm else None
    return Learner(Policy.from_config(config, critic=critic), config, images, algorithm=algorithm)


def log_probs_of(learner: Learner, samples, *, share: bool = True, unpad: bool = True) -> torch.Tensor:
    """Those of the learner's weights now, [N, R]."""
    batches = SampleBatches(learner.policy.loaded, samples, learner.images, learner.room, share, unpad)
    scores = score_samples(learner.policy, 1.0, response_view(samples), batches, log_probs=True, values=False)
    assert scores.log_probs is not None
    return scores.log_probs


def gradients_of_first_step(learner: Learner, samples, monkeypatch) -> dict[str, torch.Tensor]:
    """The gradients that reach the optimizer in the first step of an update, which is then not taken."""
    seen: list[dict[str, torch.Tensor]] = []

    def note(optimizer: Optimizer, scale: float = 1.0) -> dict[str, float]:
        named = [(name, p) for group in optimizer._groups for name, p in group]
        seen.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        return {}

    monkeypatch.setattr(Optimizer, "step", note)
    learner.update(samples)
    return seen[0]
