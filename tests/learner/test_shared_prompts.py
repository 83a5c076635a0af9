"""Samples that begin with one prompt, or are of unlike lengths: the gradient of padded rows, in fewer tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.inference.windowed import windowed_model
from tests.learner.updates import gradients_of_first_step, log_probs_of, make_learner
from tests.learner.worlds import picture, sample_trajectories
from uirl.images import ImageStore
from uirl.learner import Policy
from uirl.learner import batch as batch_module
from uirl.learner.batch import MicroBatch, MicroBatchRoom, SampleBatches, micro_batches, packed
from uirl.types import Sample


def cut(sample: Sample, tokens: int, name: str) -> Sample:
    """A sample whose reply ends after `tokens`, pictures of later turns left out."""
    n = sample.response_mask.index(True) + tokens
    last = max(i for i in range(n) if sample.response_mask[i])
    rewards = tuple(float(tokens % 3) if i == last else 0.0 for i in range(n))
    return replace(
        sample,
        token_ids=sample.token_ids[:n],
        response_mask=sample.response_mask[:n],
        rollout_log_probs=sample.rollout_log_probs[:n],
        rewards=rewards,
        turn_ids=sample.turn_ids[:n],
        images=sample.images[:1],
        trajectory_id=name,
    )


def families(policy, images: ImageStore, n: int = 3) -> list[Sample]:
    """Three samples for each of `n` prompts: a whole trajectory, and two that end in its first reply."""
    made = sample_trajectories(policy, images, n=n, group_size=1)
    return [s for i, whole in enumerate(made) for s in (cut(whole, 1, f"a{i}"), whole, cut(whole, 2, f"b{i}"))]


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """Tokens of every forward pass of the learner."""
    seen: list[int] = []
    forward = batch_module.hidden_states

    def noted(loaded, input_ids, *rest, **options):
        seen.append(input_ids.numel())
        return forward(loaded, input_ids, *rest, **options)

    monkeypatch.setattr(batch_module, "hidden_states", noted)
    return seen


WORLDS = {
    "text": ["model.model_name=uirl/tiny-lm"],
    "qwen2_vl": ["model.tiny.architecture=qwen2_vl"],
    "qwen3_vl": ["model.tiny.architecture=qwen3_vl"],
    "checkpointing": ["model.gradient_checkpointing=true"],
    "adapters": ["model.use_lora=true"],
    "reference": ["algorithm.kl_loss_coef=0.1"],
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_gradient_is_that_of_each_sample_by_itself(world, images, reads, monkeypatch):
    got, tokens = [], []
    for share, unpad in (("false", "false"), ("false", "true"), ("true", "false"), ("true", "true")):
        how = (f"training.share_prompts={share}", f"training.padding_free={unpad}")
        options = ("training.adv_estimator=gae", "training.minibatches=1", *how)
        learner = make_learner(images, *WORLDS[world], *options)
        torch.manual_seed(0)
        for name, p in learner.policy.named_trainable():
            if ".lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        samples = families(learner.policy, images)
        reads.clear()
        got.append(gradients_of_first_step(learner, samples, monkeypatch))
        tokens.append(sum(reads))
    assert tokens[1] % sum(len(sample.token_ids) for sample in samples) == 0, "no padding in any pass"
    assert tokens[1] < tokens[0]
    assert tokens[3] <= tokens[2] < 0.7 * tokens[0]
    for other in got[1:]:
        assert got[0].keys() == other.keys()
        for name, alone in got[0].items():
            assert (alone - other[name]).abs().max() < 1e-5 * max(1.0, float(alone.abs().max())), name


def test_log_probs_are_those_of_each_sample_by_itself(images):
    learner = make_learner(images, "training.adv_estimator=gae")
    samples = families(learner.policy, images)
    alone = log_probs_of(learner, samples, share=False, unpad=False)
    gaps = [
        float((alone - log_probs_of(learner, samples, share=share, unpad=unpad)).abs().max())
        for share, unpad in ((True, False), (False, True), (True, True))
    ]
    assert max(gaps) < 2e-6
    assert gaps[0] > 0


def test_prompts_of_the_same_tokens_and_other_pictures_are_two(images, reads):
    learner = make_learner(images)
    sample = cut(sample_trajectories(learner.policy, images, n=1)[0], 2, "one")
    other = images.put(picture(77))
    samples = [sample, replace(sample, images=(other.hash,), trajectory_id="other")]
    alone = [log_probs_of(learner, [one]) for one in samples]
    assert (alone[0] - alone[1]).abs().max() > 1e-6
    reads.clear()
    assert (log_probs_of(learner, samples) - torch.cat(alone)).abs().max() < 2e-6
    assert reads == [sum(len(one.token_ids) for one in samples)]


def test_a_model_that_does_not_take_packed_rows_reads_each_sample(images, reads, caplog):
    learner = make_learner(images, "model.attn_implementation=eager", "model.model_name=uirl/tiny-lm")
    learner.policy.model.set_attn_implementation("eager")
    samples = families(learner.policy, images)
    reads.clear()
    log_probs_of(learner, samples)
    log_probs_of(learner, samples)
    assert sum(reads) >= 2 * sum(len(one.token_ids) for one in samples)
    assert len([record for record in caplog.records if "read padded rows" in record.message]) == 1


def test_what_does_not_fit_is_halved(images, reads, monkeypatch):
    learner = make_learner(images)
    samples = families(learner.policy, images)
    expected = log_probs_of(learner, samples)
    largest = max(reads)
    forward = batch_module.hidden_states

    def small(loaded, input_ids, *rest, **options):
        if input_ids.numel() > largest // 2:
            raise MemoryError("no room")
        return forward(loaded, input_ids, *rest, **options)

    monkeypatch.setattr(batch_module, "hidden_states", small)
    assert (log_probs_of(learner, samples) - expected).abs().max() < 2e-6
    assert learner.room.tokens < largest


def made_up(prompt: int, reply: int) -> Sample:
    n = prompt + reply
    mask = (False,) * prompt + (True,) * reply
    return Sample((1,) * n, mask, (0.0,) * n, (0.0,) * n, (0,) * n)


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(1, 40)), min_size=1, max_size=30),
    st.lists(st.integers(1, 60), min_size=3, max_size=3),
    st.integers(1, 400),
    st.booleans(),
    st.booleans(),
)
def test_every_sample_stands_in_one_micro_batch_within_the_budget(drawn, prompts, budget, share, unpad):
    samples = [made_up(60 if prompt is None else prompts[prompt], reply) for prompt, reply in drawn]
    lengths = [len(sample.token_ids) for sample in samples]
    made = packed(samples, [prompt for prompt, _ in drawn], budget, share=share, unpad=unpad)
    assert sorted(i for one in made for i in one.members) == list(range(len(samples)))
    for one in made:
        assert one.size <= budget or len(one.members) == 1
        assert sorted(i for family in one.families for i in family.members) == (
            sorted(one.members) if one.families else []
        )
        for family in one.families:
            own = [lengths[i] for i in family.members]
            assert own == sorted(own, reverse=True)
            assert None not in {drawn[i][0] for i in family.members}
            if family.prompt:
                assert share
                assert len(family.members) > 1
                assert len({drawn[i][0] for i in family.members}) == 1
                assert family.prompt + sum(length - family.prompt for length in own) <= 0.8 * sum(own)
            else:
                assert unpad
        spread = len(one.members) * max(lengths[i] for i in one.members)
        assert spread <= 8 * budget or len(one.members) == 1 or len(one.families) == 1
    inside = [i for one in made if one.families for i in one.members]
    others = [i for i in range(len(samples)) if i not in inside]
    loose, alone = ([i for i in others if (drawn[i][0] is None) == apart] for apart in (False, True))
    assert [one.members for one in made if not one.families] == [
        [part[i] for i in group]
        for part in (loose, alone)
        for group in micro_batches([samples[i] for i in part], budget)
    ]
    if unpad:
        filled = sum(one.size for one in made if not one.families and drawn[one.members[0]][0] is not None)
        assert sum(lengths[i] for i in loose) >= 0.95 * filled


def made_of(samples: list[Sample], budget: int) -> list[MicroBatch]:
    """The micro-batches of samples that begin with one prompt."""
    return packed(samples, [0] * len(samples), budget, share=True, unpad=True)


def test_a_prompt_is_cut_into_parts_of_as_many_members():
    samples = [made_up(100, 10) for _ in range(9)]
    # of 9: 190 tokens and an eighth of 990; of 5: 150 and an eighth of 550; of 2: 120 and an eighth of 220
    sizes = [[len(one.members) for one in made_of(samples, budget)] for budget in (330, 220, 110)]
    assert sizes == [[9], [5, 4], [1] * 9]


def test_one_long_sample_leaves_the_rows_of_the_others_as_full():
    samples = [made_up(16_499, 1), *(made_up(999, 1) for _ in range(100))]
    made = packed(samples, range(101), 32_768, share=True, unpad=True)
    assert [one.size for one in made] == [30_500, 32_000, 32_000, 22_000]


def test_a_sample_beyond_a_window_stands_alone_and_the_others_share(reads, monkeypatch):
    learner = make_learner(ImageStore(), "model.model_name=uirl/tiny-lm")
    samples = families(learner.policy, ImageStore(), n=1)
    expected = log_probs_of(learner, samples)
    longest = max(len(sample.token_ids) for sample in samples)
    monkeypatch.setattr(batch_module, "window_of", lambda _: longest - 1)
    reads.clear()
    found = log_probs_of(learner, samples)
    assert (found - expected).abs().max() < 2e-6
    whole = [len(sample.token_ids) for sample in samples if len(sample.token_ids) == longest]
    assert len(reads) == 2
    assert reads[1] == sum(whole)


@pytest.mark.parametrize("unpad", [False, True])
def test_samples_that_turn_by_other_angles_are_read_apart(unpad):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 24}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "partial_rotary_factor": 1.0}
    sizes = {"max_position_embeddings": 96, "original_max_position_embeddings": 24, "sliding_window": None}
    loaded = windowed_model("phi3", **sizes, rope_parameters=rope)
    policy, images = Policy(loaded), ImageStore()
    samples = [replace(made_up(3, n - 3), token_ids=tuple(range(20, 20 + n))) for n in (24, 40, 12, 9)]

    def read(chosen: list[Sample]) -> torch.Tensor:
        batches = SampleBatches(loaded, chosen, images, MicroBatchRoom(4096), True, unpad)
        found = {}
        with torch.no_grad():
            for batch, members in batches.of(range(len(chosen))):
                said = policy.log_probs_and_values(batch).log_probs
                found |= {i: said[row][batch.response_mask[row]] for row, i in enumerate(members)}
        return torch.cat([found[i] for i in range(len(chosen))])

    alone = torch.cat([read([sample]) for sample in samples])
    assert (read(samples) - alone).abs().max() < 1e-5


def test_unlike_lengths_stand_in_rows_as_full_as_the_budget_lets_them():
    samples = [made_up(n, 1) for n in (9, 19, 29, 39, 19)]
    made = packed(samples, range(5), 60, share=True, unpad=True)
    assert [(one.members, one.size) for one in made] == [([3], 40), ([2, 1], 50), ([4, 0], 30)]
    made = packed(samples, range(5), 80, share=True, unpad=True)
    assert [(one.members, one.size) for one in made] == [([3, 2], 70), ([1, 4, 0], 50)]


@pytest.mark.parametrize(
    ("samples", "prompts"),
    [
        ([made_up(10, 100) for _ in range(8)], [0] * 8),  # a prompt that saves little is not shared
        ([made_up(5, 5) for _ in range(4)], range(4)),  # of one length, and of nearly one
        ([made_up(n, 1) for n in (99, 98, 99, 97)], range(4)),
    ],
)
def test_where_nothing_is_saved_samples_stay_padded_rows(samples, prompts):
    assert [one.families for one in packed(samples, prompts, 10_000, share=True, unpad=True)] == [()]
