"""Full fine-tuning that leaves the vision tower as it was loaded."""

import pytest
import torch

from tests.learner.updates import make_learner
from tests.learner.worlds import sample_trajectories
from uirl.errors import ConfigError
from uirl.learner import load_checkpoint, save_checkpoint

VLM = ("model.model_name=uirl/tiny-vlm", "model.freeze_vision=true", "training.learning_rate=0.01")


def requires_gradient(made):
    tensors = [made] if isinstance(made, torch.Tensor) else [t for t in made.values() if isinstance(t, torch.Tensor)]
    return any(t.requires_grad for t in tensors)


def test_the_tower_stays_and_the_rest_learns(images):
    learner = make_learner(images, *VLM)
    before = {name: p.detach().clone() for name, p in learner.policy.model.named_parameters()}
    learner.update(sample_trajectories(learner.policy, images))
    moved = {name for name, p in learner.policy.model.named_parameters() if not torch.equal(p, before[name])}
    tower = {name for name in before if "visual" in name.split(".")}
    assert tower
    assert not moved & tower
    assert any("language_model" in name for name in moved)
    assert not {name for name, _ in learner.policy.named_trainable()} & tower
    assert not [key for key in learner.optimizer.state() if "visual" in key]


def test_its_features_keep_no_graph(images):
    learner = make_learner(images, *VLM)
    carried = []
    tower = learner.policy.model.get_submodule("model.visual")
    hook = tower.register_forward_hook(lambda module, given, made: carried.append(requires_gradient(made)))
    learner.update(sample_trajectories(learner.policy, images))
    hook.remove()
    assert carried
    assert not any(carried)


def test_a_checkpoint_has_the_tower_and_gives_back_the_next_step(images, tmp_path):
    learner, other = make_learner(images, *VLM), make_learner(images, *VLM, "model.tiny.init_seed=5")
    samples = sample_trajectories(learner.policy, images)
    learner.update(samples)
    save_checkpoint(tmp_path / "step_1", learner, {})
    load_checkpoint(tmp_path / "step_1", other)
    learner.update(samples), other.update(samples)
    for (name, ours), (_, theirs) in zip(
        learner.policy.model.named_parameters(), other.policy.model.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_a_model_without_a_tower_is_refused(images):
    with pytest.raises(ConfigError, match=r"freeze_vision=true: got uirl/tiny-lm, which has no vision tower"):
        make_learner(images, "model.model_name=uirl/tiny-lm", "model.freeze_vision=true")
