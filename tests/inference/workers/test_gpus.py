"""Which GPU an engine process computes on."""

from __future__ import annotations

import pytest
import torch

from uirl.inference.workers import gpus_for


def seen(monkeypatch: pytest.MonkeyPatch, present: int, visible: str | None) -> None:
    """Let this process see so many GPUs, which CUDA_VISIBLE_DEVICES names."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("learner", "visible", "present", "expected"),
    [
        ("cpu", None, 8, [None, None, None]),
        ("cuda", None, 4, ["1", "2", "3"]),
        ("cuda:2", None, 4, ["0", "1", "3"]),
        ("cuda", None, 3, ["1", "2", "1"]),
        ("cuda", None, 1, ["0", "0", "0"]),
        ("cuda:1", "4,5, 6", 3, ["4", "6", "4"]),
        ("cuda", "GPU-a,GPU-b", 2, ["GPU-b"] * 3),
        ("cuda", "7", 1, ["7"] * 3),
        ("cuda", "0,1,-1,2", 2, ["1"] * 3),  # CUDA sees what stands before the first that there is not
    ],
)
def test_engines_share_the_gpus_that_the_learner_leaves(
    learner: str, visible: str | None, present: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, present, visible)
    assert gpus_for(3, torch.device(learner)) == expected


@pytest.mark.parametrize(("learners", "expected"), [(1, ["1", "2", "3"]), (2, ["2", "3", "2"]), (4, ["0", "0", "0"])])
def test_engines_leave_the_gpus_of_all_learners(learners, expected, monkeypatch):
    seen(monkeypatch, 4, None)
    assert gpus_for(3, torch.device("cuda:0"), learners=learners) == expected
