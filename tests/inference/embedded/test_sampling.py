"""Sampling: golden numbers, and the drawn frequencies are those of the reported log-probs."""

from __future__ import annotations

import math

import pytest
import torch

from uirl.inference import SamplingParams
from uirl.inference.embedded.sampling import BatchSampling, draw, sampling_log_probs

# probabilities 0.5, 0.25, 0.125, 0.125
LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]]))


def log_probs(**params: float) -> list[float]:
    batch = BatchSampling([SamplingParams(**params)], torch.device("cpu"))
    return sampling_log_probs(LOGITS, batch.temperature, batch.top_p, batch.top_k)[0].exp().tolist()


def test_temperature_sharpens() -> None:
    # at temperature 0.5 probabilities are squared: 16/64, 4/64, 1/64, 1/64, normalised by 22/64
    assert log_probs(temperature=0.5) == pytest.approx([16 / 22, 4 / 22, 1 / 22, 1 / 22])


def test_top_k_keeps_the_likeliest() -> None:
    # 0.5 and 0.25 of 0.75
    assert log_probs(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    # 0.5 < 0.6, so the second is needed as well
    assert log_probs(top_p=0.6) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert log_probs(top_p=0.5) == pytest.approx([1, 0, 0, 0])


def test_top_p_works_on_what_top_k_left() -> None:
    # top-k 2 leaves 2/3 and 1/3; a mass of 0.6 is reached by the first alone
    assert log_probs(top_k=2, top_p=0.6) == pytest.approx([1, 0, 0, 0])


def test_the_inverse_cdf_draws_what_it_should() -> None:
    rows = LOGITS.log_softmax(-1).expand(6, 4)
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.9999999])
    greedy = torch.zeros(6, dtype=torch.bool)
    assert draw(rows, greedy, uniforms).tolist() == [0, 0, 1, 1, 2, 3]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    row = torch.tensor([[0.0, 1.0, 0.0]]).log()
    for u in (0.0, 0.5, 1 - 2**-24):
        assert draw(row, torch.zeros(1, dtype=torch.bool), torch.tensor([u])).item() == 1


def test_frequencies_follow_the_log_probs() -> None:
    n = 20_000
    uniforms = torch.rand(n, generator=torch.Generator().manual_seed(0))
    drawn = draw(LOGITS.log_softmax(-1).expand(n, 4), torch.zeros(n, dtype=torch.bool), uniforms)
    counts = torch.bincount(drawn, minlength=4) / n
    # five standard errors of a proportion of one half are 5 * sqrt(0.25 / 20000) = 0.018
    assert (counts - LOGITS.exp()[0]).abs().max() < 5 * math.sqrt(0.25 / n)


def test_parameters_out_of_range_are_named() -> None:
    for bad in ({"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            SamplingParams(**bad)
