"""Numbers about a judge, worked by hand."""

from __future__ import annotations

import pytest
import torch

from uirl.algorithms import compute_grpo_advantage
from uirl.verification.quality import Channel, Confusion, Heard, JudgeQuality, answers_that_matter

HAND = Confusion(true_accepts=40, false_accepts=10, false_rejects=20, true_rejects=30)


def test_the_rates_by_hand() -> None:
    # accepts 50 of which 40; unsolved 40 of which 10 accepted; solved 60 of which 40
    assert HAND.precision == pytest.approx(0.8)
    assert HAND.false_accept_rate == pytest.approx(0.25)
    assert HAND.recall == pytest.approx(2 / 3)
    assert HAND.agreement == pytest.approx(0.7)
    assert HAND.f1 == pytest.approx(80 / 110)
    # by chance: (50 * 60 + 50 * 40) / 100^2 = 0.5; kappa = (0.7 - 0.5) / 0.5
    assert HAND.kappa == pytest.approx(0.4)
    # Wilson, n = 50, p = .8, t of 49 = 2.0096: centre (.8 + 2.0193/50) / (1 + 4.0385/50) = .77758, half width .11162
    assert HAND.precision_interval == pytest.approx((0.66596, 0.88920), abs=2e-4)


def test_rates_of_nothing_are_none_and_not_zero() -> None:
    empty = Confusion()
    assert {empty.precision, empty.false_accept_rate, empty.recall, empty.kappa, empty.agreement, empty.f1} == {None}
    assert empty.precision_interval is empty.false_accept_interval is empty.recall_interval is None
    assert Confusion(true_accepts=5).kappa is None  # both say the same of everything: nothing to agree on
    assert Confusion(true_accepts=5).false_accept_rate is None


def test_agreement_hides_what_precision_shows() -> None:
    """A judge that accepts everything, where 95 % is solved, agrees on 95 %."""
    counts = Confusion(true_accepts=95, false_accepts=5)
    assert counts.agreement == 0.95
    assert counts.kappa == pytest.approx(0.0)
    assert counts.false_accept_rate == 1.0
    report = list(counts.report())
    assert report.index("precision") < report.index("false_accept_rate") < report.index("kappa")
    assert report.index("kappa") < report.index("agreement")


def test_the_channel_by_hand() -> None:
    channel = Channel(0.9, 0.2)
    assert channel.corrected(1.0) == pytest.approx(0.8 / 0.7)
    assert channel.corrected(0.0) == pytest.approx(-0.2 / 0.7)
    # unbiased: solved .9 * c(1) + .1 * c(0) = 1, unsolved .2 * c(1) + .8 * c(0) = 0
    assert 0.9 * channel.corrected(1) + 0.1 * channel.corrected(0) == pytest.approx(1.0)
    assert 0.2 * channel.corrected(1) + 0.8 * channel.corrected(0) == pytest.approx(0.0)
    assert Channel.of(HAND) == Channel(40.5 / 61, 10.5 / 41)
    assert Channel.of(Confusion(true_accepts=9, true_rejects=99)) is None  # too few solved ones
    assert Channel.of(Confusion(50, 50, 50, 50)) is None  # says nothing


@pytest.mark.parametrize("t", [0.05, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("f", [0.05, 0.3, 0.5, 0.8, 0.95])
def test_every_channel_that_says_something_is_unbiased(t: float, f: float) -> None:
    """Also one that is worse than chance: what it rejects is worth more. One that says nothing is no channel."""
    n = 1000
    counts = Confusion(round(t * n), round(f * n), n - round(t * n), n - round(f * n))
    channel = Channel.of(counts)
    assert (channel is None) == (abs(t - f) < 0.1)
    if channel is not None:
        yes, no = channel.corrected(1.0), channel.corrected(0.0)
        assert t * yes + (1 - t) * no == pytest.approx(1.0, abs=0.01)
        assert f * yes + (1 - f) * no == pytest.approx(0.0, abs=0.01)
        assert (yes > no) == (t > f)


def test_where_the_judge_scores_a_whole_group_the_correction_changes_no_normalised_advantage() -> None:
    """(r - f) / (t - f) is the same line for all members; mean and deviation take it away."""
    channel, mask = Channel(0.8, 0.2), torch.ones(4, 1)
    said = torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    corrected = said.clone().apply_(channel.corrected)
    raw, _ = compute_grpo_advantage(said, mask, ["g"] * 4)
    torch.testing.assert_close(compute_grpo_advantage(corrected, mask, ["g"] * 4)[0], raw, atol=1e-5, rtol=1e-5)
    # without the deviation it is 1 / (t - f) times as large
    centred, _ = compute_grpo_advantage(said, mask, ["g"] * 4, normalize_by_std=False)
    other, _ = compute_grpo_advantage(corrected, mask, ["g"] * 4, normalize_by_std=False)
    torch.testing.assert_close(other, centred / 0.6)
    # where a rule decides a member, they differ
    mixed = torch.cat([said[:1], corrected[1:]])
    first, _ = compute_grpo_advantage(mixed, mask, ["g"] * 4)
    assert not torch.allclose(first, raw)


def test_a_judge_is_believed_until_its_interval_lies_below_the_limit() -> None:
    quality = JudgeQuality(window=20, limit=0.7)
    assert quality.believed  # nothing is known
    for _ in range(3):
        quality.add("t", False, True)
    assert quality.newest.precision == 0.0
    assert quality.believed  # Wilson of 0 of 3, t of 2 = 4.303: high = 18.51 / 21.51 = .861
    for _ in range(3):
        quality.add("t", False, True)
    assert not quality.believed  # of 0 of 6, t of 5 = 2.571: high = 6.608 / 12.608 = .524
    for _ in range(20):
        quality.add("t", True, True)
    assert quality.believed  # only the newest 20 count
    assert quality.overall.false_accepts == 6
    assert JudgeQuality(limit=None, pairs=[Heard("t", False, True, str(i)) for i in range(50)]).believed


def test_the_intervals_of_a_judge_are_by_instance() -> None:
    """Eight members of a group that all show the same are judged the same: they are one observation of the judge."""
    one_each, groups = JudgeQuality(limit=0.7), JudgeQuality(limit=0.7)
    for i in range(5):
        one_each.add("t", i == 0, True)
        for _ in range(8):
            groups.add("t", i == 0, True, f"train-{i:06d}")
    assert groups.report()["instances"] == one_each.report()["instances"] == 5
    for name in ("precision_interval", "false_accept_interval", "recall_interval"):
        assert groups.report()[name] == pytest.approx(one_each.report()[name])
    assert groups.believed  # 40 episodes, and .2 < .7: yet five instances are few
    assert groups.row()["judge/precision_high"] == pytest.approx(groups.overall.precision_interval[1])


def test_by_task_and_drift() -> None:
    quality = JudgeQuality()
    for i in range(40):
        quality.add("early" if i < 20 else "late", truth=i % 2 == 0, said=i % 2 == 0 or i >= 30)
    assert {task: counts.precision for task, counts in quality.by_task.items()} == {
        "early": 1.0,
        "late": pytest.approx(10 / 15),
    }
    assert [part.false_accepts for part in quality.drift()] == [0, 0, 0, 5]
    assert quality.report()["drift"][3]["precision"] == 0.5
    assert [part.n for part in JudgeQuality(pairs=[Heard("t", True, True, "g")] * 3).drift()] == [1, 1, 1]
    assert JudgeQuality().drift() == []
    assert JudgeQuality().row()["judge/precision"] is None


def test_whose_answer_can_change_an_advantage() -> None:
    assert answers_that_matter([None, None, 1.0], ["a", "b", "c"]) == [0, 1]
    assert answers_that_matter([None, None, None], ["a", "b", "a"]) == [0, 1]  # the same is asked once
    assert answers_that_matter([None], ["a"]) == []  # compared with nobody
    assert answers_that_matter([0.0, 1.0], ["a", "b"]) == []
