"""Memory that runs out in the learner: smaller micro-batches, the same gradient, and an end."""

import logging

import pytest
import torch

from tests.learner.updates import gradients_of_first_step, log_probs_of, make_learner
from tests.learner.worlds import make_config, sample_trajectories
from uirl.errors import OutOfMemory
from uirl.learner import Policy
from uirl.learner.batch import MicroBatchRoom
from uirl.runtime.memory import is_out_of_memory

CPU = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
ERRORS = [
    ("forward", torch.OutOfMemoryError("CUDA out of memory")),
    ("backward", RuntimeError(CPU)),
    ("forward", MemoryError()),
]


@pytest.fixture
def small_memory(monkeypatch):
    """(most rows of a pass, error of a larger one, 'forward' or 'backward') -> the rows of every pass from then on."""

    def install(most: int, error: BaseException, where: str) -> list[int]:
        passes: list[int] = []
        whole = Policy.log_probs_and_values

        def limited(policy, batch, *args, **kwargs):
            passes.append(len(batch.input_ids))
            # passes without gradients come first: where they failed too, none with a gradient would
            if len(batch.input_ids) <= most or (where == "backward" and not torch.is_grad_enabled()):
                return whole(policy, batch, *args, **kwargs)
            if where == "forward":
                raise error
            scores = whole(policy, batch, *args, **kwargs)
            # the head has its gradient by then, the layers below have none
            middle = next(p for name, p in policy.named_trainable() if "layers.0" in name and "norm" in name)

            def fail(_):
                hook.remove()
                raise error

            hook = middle.register_hook(fail)
            return scores

        monkeypatch.setattr(Policy, "log_probs_and_values", limited)
        return passes

    return install


@pytest.mark.parametrize(("where", "error"), ERRORS, ids=["gpu", "cpu", "python"])
def test_the_gradient_is_that_of_a_larger_memory(where, error, images, monkeypatch, small_memory, caplog):
    samples = sample_trajectories(Policy.from_config(make_config()), images, n=6)
    overrides = ["training.adv_estimator=gae", "training.minibatches=1"]
    expected = gradients_of_first_step(make_learner(images, *overrides), samples, monkeypatch)
    learner = make_learner(images, *overrides)
    with monkeypatch.context(), caplog.at_level(logging.WARNING):
        passes = small_memory(2, error, where)
        got = gradients_of_first_step(learner, samples, monkeypatch)
        warnings = [record for record in caplog.records if "memory ran out" in record.message]
        assert 1 <= len(warnings) <= 3
        assert max(passes) > 2
        assert got.keys() == expected.keys()
        for name, grad in expected.items():
            assert (grad - got[name]).abs().max() < 1e-4 * max(1.0, float(grad.abs().max())), name
        passes.clear()
        learner.update(samples)
        assert max(passes) <= 2  # what did not fit is not tried again
        assert len([record for record in caplog.records if "memory ran out" in record.message]) == len(warnings)


def test_the_figures_of_an_update_count_every_token_once(images, small_memory):
    rows = []
    for error in (None, MemoryError()):
        learner = make_learner(images, "training.adv_estimator=gae", "training.minibatches=1")
        samples = sample_trajectories(learner.policy, images, n=6)
        if error is not None:
            small_memory(2, error, "backward")
        rows.append(learner.update(samples))
    assert rows[0].keys() == rows[1].keys()
    for name, value in rows[0].items():
        assert rows[1][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_supervised_steps_and_scores_shrink_too(images, small_memory):
    learner = make_learner(images, "training.adv_estimator=gae")
    samples = sample_trajectories(learner.policy, images, n=6)
    expected = log_probs_of(learner, samples)
    learner.room.tokens = 100_000
    small_memory(2, MemoryError(), "forward")
    assert torch.allclose(log_probs_of(learner, samples), expected, atol=1e-4)
    learner.room.tokens = 100_000
    assert learner.supervised(samples)["sequences"] == len(samples)


def test_one_sample_that_does_not_fit_is_an_error_with_a_remedy(images, small_memory):
    learner = make_learner(images, "training.adv_estimator=gae")
    samples = sample_trajectories(learner.policy, images, n=6)
    passes = small_memory(0, MemoryError("no room"), "forward")
    with pytest.raises(OutOfMemory, match=r"one sequence of \d+ tokens.*no room.*gradient_checkpointing=true"):
        learner.update(samples)
    assert len(passes) <= 5
    assert all(p.grad is None for p in learner.policy.model.parameters())


@pytest.fixture
def room_for_one_that_recomputes(monkeypatch):
    """Whether the model trained in every pass that had room, which one sequence has whose activations do not wait."""
    passes: list[bool] = []
    whole = Policy.log_probs_and_values

    def limited(policy, batch, *args, **kwargs):
        if torch.is_grad_enabled():
            if len(batch.input_ids) > 1 or not policy.model.is_gradient_checkpointing:
                raise MemoryError("no room")
            passes.append(policy.model.training)
        return whole(policy, batch, *args, **kwargs)

    monkeypatch.setattr(Policy, "log_probs_and_values", limited)
    return passes


@pytest.mark.parametrize("model", ["uirl/tiny-lm", "uirl/tiny-vlm"])
def test_one_sequence_is_computed_again_where_it_does_not_fit_else(model, images, monkeypatch, request, caplog):
    overrides = ["training.adv_estimator=gae", "training.minibatches=1", f"model.model_name={model}"]
    learner = make_learner(images, *overrides)
    samples = sample_trajectories(learner.policy, images, n=6)
    expected = gradients_of_first_step(make_learner(images, *overrides), samples, monkeypatch)
    passes = request.getfixturevalue("room_for_one_that_recomputes")
    with caplog.at_level(logging.WARNING):
        got = gradients_of_first_step(learner, samples, monkeypatch)
    said = [record.message for record in caplog.records if "computed again" in record.message]
    assert len(said) == 1
    assert "model.gradient_checkpointing=true" in said[0]
    assert passes == [True] * len(samples)  # HF recomputes in training mode alone
    for name, gradient in expected.items():
        assert (gradient - got[name]).abs().max() < 1e-4 * max(1.0, float(gradient.abs().max())), name
    assert not learner.policy.model.training
    learner.supervised(samples)
    assert passes == [True] * (2 * len(samples))


def test_a_model_that_cannot_recompute_ends_with_a_remedy(images, room_for_one_that_recomputes, monkeypatch):
    learner = make_learner(images, "training.adv_estimator=gae")
    monkeypatch.setattr(type(learner.policy.model), "supports_gradient_checkpointing", False)
    with pytest.raises(OutOfMemory, match="one sequence"):
        learner.update(sample_trajectories(learner.policy, images, n=6))


def test_other_errors_are_not_taken_for_it(images, small_memory):
    learner = make_learner(images, "training.adv_estimator=gae")
    samples = sample_trajectories(learner.policy, images, n=6)
    passes = small_memory(0, RuntimeError("shapes do not match in memory format"), "forward")
    with pytest.raises(RuntimeError, match="memory format"):
        learner.update(samples)
    assert len(passes) == 1
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))


@pytest.mark.parametrize(
    ("rows", "fits", "asked", "left"),
    [
        (4, 120, 0, 1000),  # it fits at once
        (4, 60, 0, 60),
        (4, 29, 0, 15),  # 120, 60, 30, 15
        (1, 0, 1, 1000),  # of one sample activations are computed again, and the budget stays
    ],
)
def test_a_micro_batch_is_halved_until_it_fits(rows, fits, asked, left):
    calls: list[int] = []
    room = MicroBatchRoom(1000, rows=rows, width=30, recompute=lambda: calls.append(1) is None)

    def attempt() -> str:
        room.size = min(120, room.tokens)
        if room.size > fits and not calls:
            raise MemoryError("no room")
        return "done"

    assert room.within_memory(attempt) == "done"
    assert (len(calls), room.tokens) == (asked, left)


@pytest.mark.parametrize("recompute", [None, lambda: False])
def test_one_sample_that_cannot_be_made_smaller_is_an_error(recompute):
    room = MicroBatchRoom(1000, rows=1, width=30, size=30, recompute=recompute)

    def attempt() -> None:
        raise MemoryError("no room\nbeside others")

    with pytest.raises(OutOfMemory, match=r"one sequence of 30 tokens, the smallest micro-batch: no room\. Expected"):
        room.within_memory(attempt)
    assert room.tokens == 1000
