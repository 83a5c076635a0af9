"""Log-probs of sampled tokens and values, against the plain forward of HF and against the engine."""

import pytest
import torch

from tests.inference.windowed import windowed_model
from tests.learner.worlds import make_config, sample_trajectories, weights_of
from uirl.config import ModelConfig
from uirl.errors import ConfigError, ContractError
from uirl.images import ImageStore
from uirl.inference.models.loading import hidden_states, load_model, pad_sequences, project
from uirl.learner import Policy, PolicyValueModel, collate
from uirl.learner import batch as batch_module
from uirl.learner import policy as policy_module


def plain_log_probs(policy: Policy, sample, images: ImageStore, temperature: float) -> torch.Tensor:
    """Log-probs of the response tokens from the model's own logits, one sequence alone."""
    loaded = policy.loaded
    ids, positions = pad_sequences(loaded, [sample.token_ids], [[images.get(h) for h in sample.images]])
    pixels = loaded.pixel_inputs([images.get(h) for h in sample.images])
    position_ids = positions if loaded.axes == 3 else positions[0]
    logits = loaded.model(input_ids=ids, position_ids=position_ids, **pixels).logits.float()
    logits[..., list(loaded.banned_ids)] = float("-inf")
    all_of_them = (logits[0] / temperature).log_softmax(-1)
    where = [i for i, sampled in enumerate(sample.response_mask) if sampled]
    return torch.stack([all_of_them[i - 1, sample.token_ids[i]] for i in where])


@pytest.mark.parametrize(("architecture", "temperature"), [("qwen2_vl", 1.0), ("qwen2_5_vl", 0.7), ("qwen3_vl", 2.0)])
def test_log_probs_are_those_of_the_full_softmax(architecture, temperature, images):
    policy = Policy.from_config(make_config(f"model.tiny.architecture={architecture}"), critic=False)
    samples = sample_trajectories(policy, images, n=3)
    batch = collate(policy.loaded, samples, images)
    with torch.no_grad():
        scores = policy.log_probs_and_values(batch, temperature, entropy=True)
        greedy, usual = (policy.log_probs_and_values(batch, number).log_probs for number in (0.0, 1.0))
        expected = torch.cat([plain_log_probs(policy, s, images, temperature) for s in samples])
    assert greedy.equal(usual)
    got = batch.flatten(scores.log_probs)
    assert (got - expected).abs().max() < 2e-5
    assert (scores.log_probs[~batch.response_mask] == 0).all()
    assert scores.values is None
    assert (batch.flatten(scores.entropy) > 1).all()


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen3_vl"])
def test_float32_engine_and_learner_agree(architecture, images):
    policy = Policy.from_config(make_config(f"model.tiny.architecture={architecture}"))
    samples = sample_trajectories(policy, images, n=6, turns=3)
    batch = collate(policy.loaded, samples, images)
    with torch.no_grad():
        log_probs = policy.log_probs_and_values(batch).log_probs
    gap = (log_probs - batch.rollout_log_probs).abs().max()
    assert 0 < gap < 1e-4


def test_bfloat16_engine_and_learner_differ_by_rounding(images):
    policy = Policy.from_config(make_config("model.dtype=bfloat16"))
    samples = sample_trajectories(policy, images, n=6, turns=3)
    batch = collate(policy.loaded, samples, images)
    with torch.no_grad():
        gap = (policy.log_probs_and_values(batch).log_probs - batch.rollout_log_probs).abs()
    # bfloat16 keeps 8 bits: a logit of 4 is known to 0.016, and the error of the layers before adds to it. .008 with
    # AMX and nothing on a CPU without such instructions, where sums are made in float32 and rounded at the same places
    assert gap.max() < 0.15
    assert gap.sum() / batch.response_mask.sum() < 0.03


def test_short_rows_in_bfloat16_attend_in_float32_with_the_same_gradient(images, monkeypatch):
    policy = Policy.from_config(make_config("model.dtype=bfloat16"))
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=4), images)
    gradients = []
    for short in (0, 10_000):
        monkeypatch.setattr(batch_module, "SHORT", short)
        policy.log_probs_and_values(batch).log_probs.sum().backward()
        parts = [p.grad.float().flatten() for _, p in policy.named_trainable() if p.grad is not None]
        gradients.append(torch.cat(parts))
        policy.model.zero_grad()
    narrow, wide = gradients
    assert 0 < (narrow - wide).norm() < 0.05 * wide.norm()


def test_padding_and_neighbours_change_no_log_prob(policy, images):
    samples = sample_trajectories(policy, images, n=4)
    assert len({len(s.token_ids) for s in samples}) > 1
    together = collate(policy.loaded, samples, images)
    with torch.no_grad():
        said = policy.log_probs_and_values(together, values=True)
        for row, sample in enumerate(samples):
            n = len(sample.token_ids)
            alone = policy.log_probs_and_values(collate(policy.loaded, [sample], images), values=True)
            assert (said.log_probs[row, :n] - alone.log_probs[0]).abs().max() < 2e-5
            assert (said.final_values[row] - alone.final_values[0]).abs() < 1e-5


@pytest.mark.filterwarnings("error:.*use_reentrant")
def test_chunks_of_the_head_change_neither_log_probs_nor_gradients(policy, images, monkeypatch):
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=3), images)

    def run() -> tuple[torch.Tensor, torch.Tensor, dict]:
        scores = policy.log_probs_and_values(batch, 0.9, entropy=True)
        (scores.log_probs.sum() + 0.1 * scores.entropy.sum()).backward()
        grads = {name: p.grad.clone() for name, p in policy.named_trainable() if p.grad is not None}
        policy.model.zero_grad()
        return scores.log_probs.detach(), scores.entropy.detach(), grads

    whole = run()
    vocabulary = policy.model.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(policy_module, "LOGITS_PER_CHUNK", 4 * vocabulary)  # four tokens at a time
    monkeypatch.setattr(policy_module, "LOGITS_KEPT", 6 * vocabulary * 4)
    chunked = run()
    assert (whole[0] - chunked[0]).abs().max() < 1e-5
    assert (whole[1] - chunked[1]).abs().max() < 1e-5
    assert whole[2].keys() == chunked[2].keys()
    for name, grad in whole[2].items():
        assert (grad - chunked[2][name]).abs().max() < 1e-3 * max(1.0, float(grad.abs().max())), name


def test_scores_and_gradients_are_those_of_the_plain_formula(policy, images):
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=3), images)
    targets = batch.flatten(batch.input_ids)

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        logits = project(
            policy.loaded,
            hidden_states(policy.loaded, batch.input_ids, batch.position_ids, batch.images)[:, :-1][
                batch.response_mask[:, 1:]
            ],
        )
        log_p = torch.log_softmax(logits / 0.9, -1)
        finite = log_p.masked_fill(log_p.isinf(), 0)
        return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * finite).sum(-1)

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        scores = policy.log_probs_and_values(batch, 0.9, entropy=True)
        return batch.flatten(scores.log_probs), batch.flatten(scores.entropy)

    weights = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(0))
    found = []
    for way in (plain, ours):
        scores = torch.stack(way())
        (scores * weights).sum().backward()
        found.append((scores.detach(), {n: p.grad for n, p in policy.named_trainable() if p.grad is not None}))
        policy.model.zero_grad(set_to_none=True)
    (expected, grads), (got, mine) = found
    assert (got - expected).abs().max() < 1e-5
    assert mine.keys() == grads.keys()
    for name, grad in grads.items():
        assert (mine[name] - grad).abs().max() < 1e-5 * max(1.0, float(grad.abs().max())), name


@pytest.mark.parametrize("gradient", [True, False])
def test_of_two_entropies_that_of_the_likely_tokens_carries_the_gradient(gradient, policy, images):
    batch = collate(policy.loaded, sample_trajectories(policy, images), images)
    scores = policy.log_probs_and_values(batch, entropy=True, entropy_gradient=gradient, entropy_min_p=0.5)
    assert (scores.entropy.requires_grad, scores.likely_entropy.requires_grad) == (False, gradient)


def test_logits_beyond_those_that_are_kept_are_made_again_on_the_way_back(policy, images, monkeypatch):
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=3), images)
    tokens = int(batch.response_mask.sum())
    seen: list[int] = []
    real = policy_module.raw_logits
    monkeypatch.setattr(policy_module, "raw_logits", lambda loaded, h: seen.append(len(h)) or real(loaded, h))
    vocabulary = policy.model.get_output_embeddings().weight.shape[0]
    for kept, made in ((1000, tokens), (6, 2 * tokens - 6)):
        monkeypatch.setattr(policy_module, "LOGITS_PER_CHUNK", 4 * vocabulary)
        monkeypatch.setattr(policy_module, "LOGITS_KEPT", kept * vocabulary * 4)
        seen.clear()
        policy.log_probs_and_values(batch).log_probs.sum().backward()
        assert seen[0] == min(kept, tokens)
        assert max(seen[1:], default=0) <= 4
        assert sum(seen) == made
        seen.clear()
        with torch.no_grad():
            policy.log_probs_and_values(batch)
        assert sum(seen) == tokens


def test_values_stand_before_the_token_is_chosen(policy, images):
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=2), images)
    torch.nn.init.normal_(policy.value_head.weight)
    with torch.no_grad():
        scores = policy.log_probs_and_values(batch, values=True, log_probs=False)
        everywhere = policy.value_head(hidden_states(policy.loaded, batch.input_ids, batch.position_ids, batch.images))[
            ..., 0
        ]
    row, column = batch.response_mask.nonzero()[3].tolist()
    assert torch.isclose(scores.values[row, column], everywhere[row, column - 1])
    lengths = batch.attention_mask.sum(1)
    assert lengths.min() < lengths.max()
    for row, length in enumerate(lengths.tolist()):
        assert torch.isclose(scores.final_values[row], everywhere[row, length - 1])
    assert scores.log_probs is None


def test_a_policy_without_value_head_says_so(images):
    policy = Policy.from_config(make_config(), critic=False)
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=1), images)
    with pytest.raises(ContractError, match="critic=True"):
        policy.log_probs_and_values(batch, values=True)


def test_gradient_checkpointing_changes_no_gradient(policy, images):
    other = Policy.from_config(make_config("model.gradient_checkpointing=true"), critic=True)
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=2), images)
    grads = []
    for each in (policy, other):
        each.train(True)
        each.log_probs_and_values(batch).log_probs.sum().backward()
        grads.append({name: p.grad for name, p in each.named_trainable() if p.grad is not None})
    assert other.model.training
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        assert (grad - grads[1][name]).abs().max() < 1e-3 * max(1.0, float(grad.abs().max())), name


def test_dropout_of_the_model_is_off_in_training():
    policy = Policy.from_config(make_config("model.gradient_checkpointing=true"))
    policy.model.register_module("extra", torch.nn.Dropout(0.5))
    policy.model.model.language_model.layers[0].self_attn.attention_dropout = 0.5
    again = Policy(policy.loaded, gradient_checkpointing=True)
    again.train(True)
    assert again.model.training
    assert not again.model.extra.training
    assert again.model.model.language_model.layers[0].self_attn.attention_dropout == 0.0


def test_the_reference_is_the_policy_as_it_was_frozen(policy, images):
    batch = collate(policy.loaded, sample_trajectories(policy, images, n=2), images)
    with pytest.raises(ContractError, match="freeze_reference"), policy.reference():
        pass
    with torch.no_grad():
        before = policy.log_probs_and_values(batch).log_probs
        policy.freeze_reference()
        for _, p in policy.named_trainable():
            p.add_(0.01 * torch.randn_like(p))
        now = policy.log_probs_and_values(batch).log_probs
    changed = weights_of(policy)
    with policy.reference():
        reference = policy.log_probs_and_values(batch).log_probs
        assert not reference.requires_grad
    assert torch.equal(reference, before)
    assert not torch.equal(now, before)
    assert all(torch.equal(p, changed[name]) for name, p in weights_of(policy).items())


def test_float16_is_refused():
    with pytest.raises(ContractError, match="bfloat16"):
        Policy(load_model(ModelConfig(dtype="float16", device="cpu")))


class TestPolicyValueModel:
    def test_a_model_given_by_its_section_has_the_seed_that_is_given(self):
        section = make_config().model
        first, same, other = (dict(PolicyValueModel(section, seed=seed).named_parameters()) for seed in (3, 3, 4))
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)

    def test_logits_and_values_of_every_position(self, policy):
        model = PolicyValueModel(policy)
        ids = torch.tensor([[20, 21, 22, 23]])
        logits, values = model(ids)
        assert logits.shape == (1, 4, policy.model.get_output_embeddings().weight.shape[0])
        assert values.tolist() == [[0, 0, 0, 0]]
        assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"model", "value_head"}

    def test_positions_count_the_tokens_that_are_there(self):
        # weights so large that a token at another place is another token
        model = PolicyValueModel(Policy(windowed_model("qwen2", use_sliding_window=False), critic=True))
        pad = model.policy.loaded.tokenizer.pad_token_id
        plain, _ = model(torch.tensor([[20, 21, 22]]))
        left, _ = model(torch.tensor([[pad, 20, 21, 22]]), torch.tensor([[0, 1, 1, 1]]))
        right, _ = model(torch.tensor([[20, 21, 22, pad]]), torch.tensor([[1, 1, 1, 0]]))
        moved, _ = model(torch.tensor([[20, 21, 22]]), position_ids=torch.tensor([[[0, 5, 3]]]))
        kept = torch.isfinite(plain)
        assert (plain[kept] - left[:, 1:][kept]).abs().max() < 1e-4
        assert (plain[kept] - right[:, :3][kept]).abs().max() < 1e-4
        assert (plain[kept] - moved[kept]).abs().max() > 1e-2

    def test_from_a_name_with_options(self):
        model = PolicyValueModel("uirl/tiny-lm", device="cpu")
        assert model.policy.loaded.name == "uirl/tiny-lm"
        logits, values = model(torch.tensor([[20, 21]]))
        assert logits.shape[:2] == values.shape == (1, 2)
        with pytest.raises(ConfigError, match="chat_templat"):
            PolicyValueModel("uirl/tiny-lm", chat_templat="chatml")

    def test_it_wants_a_value_head(self):
        with pytest.raises(ContractError, match="critic=True"):
            PolicyValueModel(Policy.from_config(make_config(), critic=False))


def test_random_weights_depend_on_the_seed_alone():
    first, same, other = (
        dict(Policy.from_config(make_config(f"training.seed={seed}")).model.named_parameters()) for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
