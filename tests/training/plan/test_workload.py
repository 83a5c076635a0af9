"""The largest micro-batch that a config can lead to."""

from __future__ import annotations

import pytest

from tests.training.plan.test_plan import small
from uirl.learner import Policy
from uirl.training.plan.workload import Workload, workload_of


def work_of(samples: int, tokens: int, limit: int) -> Workload:
    config = small("model.model_name=uirl/tiny-vlm", f"training.batch_size={samples}", "training.minibatches=1")
    config.training.micro_batch_tokens = limit
    return workload_of(config, Policy.from_config(config).loaded, picture=(112, 112), tokens=tokens)


@pytest.mark.parametrize(
    ("samples", "tokens", "limit", "largest"),
    [
        (8, 100, 300, (3, 100)),
        (8, 100, 399, (4, 99)),
        # one sequence of 110 leaves half of the room unused, which two of 100 fill
        (8, 110, 200, (2, 100)),
        (8, 110, 110, (1, 110)),
        (8, 110, 60, (1, 110)),
        (1, 110, 200, (1, 110)),
        (2, 110, 5000, (2, 110)),
    ],
)
def test_the_largest_micro_batch_has_the_most_tokens(
    samples: int, tokens: int, limit: int, largest: tuple[int, int]
) -> None:
    work = work_of(samples, tokens, limit)
    assert (work.rows, work.width, work.longest) == (*largest, tokens)


def test_shorter_sequences_of_the_largest_micro_batch_hold_fewer_pictures() -> None:
    whole, halved = work_of(8, 96, 96), work_of(8, 96, 100)
    assert (whole.rows, whole.width, halved.rows, halved.width) == (1, 96, 2, 50)
    assert whole.pictures_each == whole.pictures == halved.pictures
    of_picture = whole.picture_tokens
    assert halved.pictures_each == min(whole.pictures, 48 // of_picture)
    assert halved.replies <= 50 - halved.pictures_each * of_picture - 1


@pytest.mark.parametrize(("samples", "limit", "alone"), [(2, 100, True), (2, 60, False), (3, 100, False)])
def test_a_micro_batch_is_alone_where_no_samples_make_two(samples: int, limit: int, alone: bool) -> None:
    """Of a limit of 60, two samples of 50 are two micro-batches, and two of 30 are one."""
    assert work_of(samples, 50, limit).alone == alone
