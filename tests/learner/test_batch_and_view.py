"""Samples as tensors: what is aligned, what is refused, and credit that does not depend on where a cut was made."""

import math
from dataclasses import replace

import pytest
import torch

from tests.learner.worlds import sample_trajectories
from uirl.algorithms import get_algorithm
from uirl.errors import AlignmentError, ConfigError
from uirl.images import ImageStore
from uirl.inference.models import shared_prompts as padding
from uirl.learner import batch as batch_module
from uirl.learner import collate, micro_batches, response_view
from uirl.learner.credit import assign_credit
from uirl.types import Sample


def text_sample(n_prompt: int = 2, n_response: int = 3, **changes: object) -> Sample:
    n = n_prompt + n_response
    mask = (False,) * n_prompt + (True,) * n_response
    sample = Sample(
        tuple(range(10, 10 + n)), mask, tuple(-0.5 * m for m in mask), (0.0,) * (n - 1) + (1.0,),
        tuple(0 if m else -1 for m in mask),
    )  # fmt: skip
    return replace(sample, **changes)  # type: ignore[arg-type]


def segments() -> list[Sample]:
    """One trajectory of two segments (turns 0, 1 | 2) and one of a single segment."""
    first = Sample(
        (1, 2, 3, 4, 5, 6), (False, True, True, False, True, True), (0, -1, -2, 0, -3, -4), (0, 0, 0.5, 0, 0, 0.0),
        (-1, 0, 0, -1, 1, 1), trajectory_id="a", group_id="g", ends_episode=False,
    )  # fmt: skip
    second = Sample(
        (7, 8, 9), (False, True, True), (0, -5, -6), (0, 0, 1), (-1, 2, 2), trajectory_id="a", group_id="g", segment=1
    )
    other = Sample((7, 8), (False, True), (0, -7), (0, 0.25), (-1, 0), trajectory_id="b", group_id="g")
    return [second, other, first]


def test_view_joins_the_segments_of_a_trajectory_in_their_order():
    view = response_view(segments())
    assert view.trajectory_ids == ("a", "b")
    assert view.rewards.tolist() == [[0, 0.5, 0, 0, 0, 1], [0.25, 0, 0, 0, 0, 0]]
    assert view.turn_ids.tolist() == [[0, 0, 1, 1, 2, 2], [0, -1, -1, -1, -1, -1]]
    assert view.rollout_log_probs.tolist() == [[-1, -2, -3, -4, -5, -6], [-7, 0, 0, 0, 0, 0]]
    assert view.mask.sum(1).tolist() == [6, 1]
    assert view.sample_rows == (0, 1, 0)
    assert view.last_samples == (0, 1)
    assert view.ends_episode.tolist() == [True, True]


def test_numbers_travel_between_samples_and_view_and_back():
    view = response_view(segments())
    flat = torch.arange(7.0)  # in the order of the samples: second (2 tokens), other (1), first (4)
    assert view.spread(flat).tolist() == [[3, 4, 5, 6, 0, 1], [2, 0, 0, 0, 0, 0]]
    assert view.flatten(view.spread(flat)).tolist() == flat.tolist()
    assert [part.tolist() for part in view.split(flat)] == [[0, 1], [2], [3, 4, 5, 6]]


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "turn_level", "grpo"])
def test_credit_does_not_depend_on_where_a_trajectory_is_cut(estimator):
    cut = segments()
    whole = Sample(
        (1, 2, 3, 4, 5, 6, 7, 8, 9), (False, True, True, False, True, True, False, True, True),
        (0, -1, -2, 0, -3, -4, 0, -5, -6), (0, 0, 0.5, 0, 0, 0, 0, 0, 1), (-1, 0, 0, -1, 1, 1, -1, 2, 2),
        trajectory_id="a", group_id="g",
    )  # fmt: skip

    def credit(samples: list[Sample], values: torch.Tensor) -> torch.Tensor:
        view = response_view(samples)
        spec = get_algorithm(estimator)
        critic = view.spread(values) if spec.needs_critic else None
        return assign_credit(spec, {"gamma": 0.9}, view, view.rewards, critic, None).advantages

    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    of_cut = credit([cut[2], cut[0], cut[1]], values)
    assert torch.equal(of_cut, credit([whole, cut[1]], values))
    assert of_cut[0].abs().sum() > 0


def test_the_reward_of_a_late_segment_reaches_an_early_one():
    # gamma = lam = 1 and values 0: the advantage of every token is the sum of the rewards from there on
    view = response_view(segments())
    zeros = torch.zeros_like(view.rewards)
    options = {"gamma": 1.0, "lam": 1.0, "whiten": False}
    credit = assign_credit(get_algorithm("gae"), options, view, view.rewards, zeros, None)
    assert credit.advantages[0].tolist() == [1.5, 1.5, 1.0, 1.0, 1.0, 1.0]


def test_an_episode_cut_by_a_limit_is_worth_what_comes_after():
    # reward 0.25 and then a value of 2 behind the last token: 2.25; the ended episode gets no such value
    samples = [segments()[1], replace(segments()[1], trajectory_id="c", ends_episode=False)]
    view = response_view(samples)
    options = {"gamma": 1.0, "lam": 1.0, "whiten": False}
    final = torch.tensor([2.0, 2.0])
    credit = assign_credit(get_algorithm("gae"), options, view, view.rewards, torch.zeros(2, 1), final)
    assert credit.advantages.tolist() == [[0.25], [2.25]]


def test_samples_without_an_id_stand_alone():
    assert len(response_view([text_sample(), text_sample()])) == 2


def test_gigpo_compares_turns_that_start_in_the_same_state():
    samples = [
        text_sample(trajectory_id=name, group_id="g", rewards=(0, 0, 0, 0, r)) for name, r in (("a", 1), ("b", 0))
    ]
    view, spec = response_view(samples), get_algorithm("gigpo")
    options = {"step_advantage_weight": 1.0, "normalize_by_std": False}

    def credit(anchors):
        return assign_credit(spec, options, view, view.rewards, None, None, anchors).advantages[:, 0].tolist()

    # episode term: 1 - 0.5 and 0 - 0.5; the step term is the same again where both turns start in one state
    assert credit({"a": ["s"], "b": ["s"]}) == [1.0, -1.0]
    assert credit({"a": ["s"], "b": ["t"]}) == [0.5, -0.5]
    with pytest.raises(ConfigError, match="anchors=None"):
        credit(None)
    with pytest.raises(AlignmentError, match="trajectory b name 0 states"):
        credit({"a": ["s"]})


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline", "turn_level", "gigpo"])
@pytest.mark.parametrize("skip", [True, False])
def test_a_kl_penalty_gives_a_dead_group_no_life(estimator, skip):
    # group g is dead, in h one of two was rewarded; the penalty differs within both
    samples = [
        text_sample(trajectory_id=name, group_id=group, rewards=(0, 0, 0, 0, reward))
        for name, group, reward in (("a", "g", 1), ("b", "g", 1), ("c", "h", 1), ("d", "h", 0))
    ]
    view, anchors = response_view(samples), {name: ["s"] for name in "abcd"}
    penalty = 0.001 * torch.arange(view.rewards.numel()).view_as(view.rewards)

    def credit(rewards):
        spec = get_algorithm(estimator)
        return assign_credit(spec, {}, view, rewards, None, None, anchors, skip_dead_groups=skip)

    without, penalised = credit(view.rewards), credit(view.rewards - penalty)
    assert penalised.live_groups == without.live_groups == 0.5
    assert torch.equal(penalised.live, without.live)
    assert torch.equal(penalised.advantages[:2], without.advantages[:2])
    assert not torch.equal(penalised.advantages[2:], without.advantages[2:])


def test_a_group_estimator_wants_group_ids():
    view = response_view([text_sample(trajectory_id="a")])
    with pytest.raises(ConfigError, match="trajectory a has no group_id"):
        assign_credit(get_algorithm("grpo"), {}, view, view.rewards, None, None)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        ([text_sample(trajectory_id="a", segment=1)], r"segments \[1\], expected \[0\]"),
        ([text_sample(trajectory_id="a"), text_sample(trajectory_id="a")], r"segments \[0, 0\]"),
        (
            [text_sample(trajectory_id="a"), text_sample(trajectory_id="a", segment=1, group_id="x")],
            "in several groups",
        ),
        ([text_sample(rewards=(0, 1.0, 0, 0, 0))], "reward 1 on token 1, which the policy did not"),
        ([text_sample(turn_ids=(-1, -1, 1, 0, 0))], r"turn ids \[1, 0\]"),
        ([text_sample(turn_ids=(-1, -1, -1, 0, 0))], r"turn ids \[-1, 0\]"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(samples, message):
    with pytest.raises(AlignmentError, match=message):
        response_view(samples)


def test_collate_aligns_everything_to_the_input_ids(policy, images):
    samples = sample_trajectories(policy, images, n=3)
    batch = collate(policy.loaded, samples, images)
    for row, sample in enumerate(samples):
        n = len(sample.token_ids)
        assert batch.input_ids[row, :n].tolist() == list(sample.token_ids)
        assert batch.attention_mask[row].tolist() == [True] * n + [False] * (batch.input_ids.shape[1] - n)
        assert batch.response_mask[row, :n].tolist() == list(sample.response_mask)
        assert not batch.response_mask[row, n:].any()
        assert batch.rollout_log_probs[row, :n].tolist() == pytest.approx(sample.rollout_log_probs)
    assert [shot.hash for shot in batch.images] == [hash for sample in samples for hash in sample.images]
    flat = batch.flatten(batch.rollout_log_probs)
    assert torch.equal(batch.scatter(flat), batch.rollout_log_probs)


def test_collate_ignores_what_stands_beside_sampled_tokens(policy, images):
    sample = sample_trajectories(policy, images, n=1)[0]
    noisy = [lp if m else math.nan for lp, m in zip(sample.rollout_log_probs, sample.response_mask, strict=True)]
    batch = collate(policy.loaded, [replace(sample, rollout_log_probs=tuple(noisy))], images)
    assert batch.rollout_log_probs.isfinite().all()


def test_collate_names_what_is_misaligned(policy, images, monkeypatch):
    def unpadded(*_):
        raise AlignmentError("another reason")

    good = sample_trajectories(policy, images, n=2)
    store = ImageStore()
    for hash in good[0].images:
        store.put(images.get(hash))
    with pytest.raises(AlignmentError, match=r"trajectory-1.* shows image .*, which is gone from the store"):
        collate(policy.loaded, good, store)
    with pytest.raises(AlignmentError, match=r"trajectory-1.* does not fit its pictures: placeholder tokens"):
        collate(policy.loaded, [good[0], replace(good[1], images=good[1].images[:1])], images)
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "pad_sequences", unpadded)
        with pytest.raises(AlignmentError, match="another reason"):
            collate(policy.loaded, good, images)
    with pytest.raises(AlignmentError, match=r"trajectory-0.* begins with a sampled token"):
        collate(policy.loaded, [replace(good[0], response_mask=(True, *good[0].response_mask[1:]))], images)
    banned, at = policy.loaded.banned_ids[0], good[0].response_mask.index(True)
    ids = (*good[0].token_ids[:at], banned, *good[0].token_ids[at + 1 :])
    with pytest.raises(AlignmentError, match=f"response token {banned} at {at}"):
        collate(policy.loaded, [replace(good[0], token_ids=ids)], images)


def test_micro_batches_keep_the_budget_and_put_like_lengths_together():
    samples = [text_sample(n_response=n) for n in (1, 8, 2, 8, 1, 30)]  # lengths 3, 10, 4, 10, 3, 32
    # 32 is longer than the budget of 20: alone. 2 x 10 fits, 3 x 10 does not; 4, 3, 3 make 3 x 4
    assert micro_batches(samples, 20) == [[5], [1, 3], [2, 0, 4]]
    assert micro_batches(samples, 10_000) == [[5, 1, 3, 2, 0, 4]]
    with pytest.raises(ValueError, match="token_budget"):
        micro_batches(samples, 0)


def test_a_micro_batch_is_closed_before_a_tenth_of_it_is_padding(monkeypatch):
    monkeypatch.setattr(padding, "PADDING_TOKENS", 0)
    samples = [text_sample(n_response=n) for n in (98, 93, 88, 83, 78, 18)]  # lengths 100, 95, 90, 85, 80, 20
    # padding 5, 15, 30 of 400; with 80 it were 50 of 500, not more than a tenth; with 20 it were 130 of 600
    assert micro_batches(samples, 10_000) == [[0, 1, 2, 3, 4], [5]]
    monkeypatch.setattr(padding, "PADDING_TOKENS", 130)
    assert micro_batches(samples, 10_000) == [[0, 1, 2, 3, 4, 5]]
    monkeypatch.setattr(padding, "PADDING_SHARE", 0.08)
    monkeypatch.setattr(padding, "PADDING_TOKENS", 0)
    # 30 of 400 is less than 0.08, 50 of 500 is more; then 60 of 160
    assert micro_batches(samples, 10_000) == [[0, 1, 2, 3], [4], [5]]
