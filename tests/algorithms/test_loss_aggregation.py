"""Masked statistics and the four ways from token losses to one number."""

import pytest
import torch

from uirl.algorithms import aggregate_loss, aggregation_denominator, masked_mean, masked_whiten

LOSS = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("aggregation", "options", "expected"),
    [
        ("token-mean", {}, 3.0),  # (1 + 2 + 6) / 3 tokens
        ("seq-mean-token-mean", {}, 3.75),  # (1.5 + 6) / 2 sequences; the empty row is no sequence
        ("seq-mean-token-sum", {}, 4.5),  # (3 + 6) / 2
        ("seq-mean-token-sum-norm", {"loss_length": 10}, 0.45),  # 4.5 / 10
        ("seq-mean-token-sum-norm", {"loss_length": 1}, 4.5),
        ("token-mean", {"denominator": 9}, 1.0),  # 9 / 9
        ("seq-mean-token-mean", {"denominator": 5}, 1.5),  # 7.5 / 5
        ("seq-mean-token-sum-norm", {"loss_length": 10, "denominator": torch.tensor(9.0)}, 0.1),  # 9 / 9 / 10
    ],
)
def test_aggregation_by_hand(aggregation, options, expected):
    assert aggregate_loss(LOSS, MASK, aggregation, **options).item() == pytest.approx(expected)


def test_denominators_by_hand():
    assert aggregation_denominator(MASK) == 3
    assert aggregation_denominator(MASK, "seq-mean-token-mean") == 2
    for aggregation in ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"):
        assert aggregation_denominator(torch.zeros(2, 2), aggregation) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "mean"}, "must be one of token-mean, .*: got 'mean'"),
        ({"aggregation": "mean", "denominator": 3.0}, "must be one of token-mean, .*: got 'mean'"),
        ({"aggregation": "seq-mean-token-sum-norm"}, "needs a positive loss_length: got None"),
        ({"aggregation": "seq-mean-token-sum-norm", "loss_length": 0}, "needs a positive loss_length: got 0"),
        ({"loss_length": 5}, "loss_length belongs to"),
        ({"denominator": 0}, "denominator must be positive: got 0"),
    ],
)
def test_misuse_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        aggregate_loss(LOSS, MASK, **options)


def test_masked_mean_by_hand():
    assert masked_mean(LOSS, MASK).item() == 3.0
    assert masked_mean(LOSS, MASK, dim=-1).tolist() == [1.5, 6.0, 0.0]
    assert masked_mean(LOSS, MASK, dim=0).tolist() == [3.5, 2.0, 0.0]


def test_whitening_by_hand():
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, std sqrt(14 / 2) = 2.64575
    expected = torch.tensor([[-2.0, -1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]) / 2.645751
    torch.testing.assert_close(masked_whiten(LOSS, MASK), expected)
    assert masked_whiten(LOSS.double(), MASK).dtype == torch.float64


@pytest.mark.parametrize("value", [0.1, 1000.1, -7.3e6])
def test_whitening_equal_numbers_gives_zero(value):
    # In float32 the mean of a thousand times 1000.1 is off by 6e-5, which 1 / sqrt(1e-8) would blow up to 0.6.
    assert (masked_whiten(torch.full((10, 100), value), torch.ones(10, 100)) == 0).all()


def test_whitening_takes_rounding_for_no_difference():
    for apart, same in ((2.0**-23, True), (2.0**-20, False)):
        whitened = masked_whiten(torch.tensor([[1.0, 1.0 + apart]]), torch.ones(1, 2))
        assert bool((whitened == 0).all()) is same


def test_whitening_one_number():
    assert masked_whiten(LOSS, torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]])).abs().sum() == 0
