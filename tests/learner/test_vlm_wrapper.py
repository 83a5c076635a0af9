"""The wrapper, as people with a loop of their own use it."""

import asyncio

import pytest
import torch
from PIL import Image

from tests.learner.worlds import picture
from uirl.errors import AlignmentError, ConfigError
from uirl.learner import VLMWrapper

TINY = {"hidden_size": 32, "intermediate_size": 48, "vision_hidden_size": 16, "num_heads": 2, "vision_layers": 1}


def make_wrapper(**options: object) -> VLMWrapper:
    return VLMWrapper("uirl/tiny-vlm", device="cpu", tiny=TINY, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def vlm() -> VLMWrapper:
    return make_wrapper()


@pytest.mark.parametrize(
    "shown", [Image.new("RGB", (60, 40), "red"), picture(1), None], ids=["PIL", "screenshot", "none"]
)
def test_it_predicts_an_action_as_text(vlm, shown):
    said = vlm.predict_action(shown, prompt="Click login", max_tokens=5)
    assert isinstance(said, str)
    assert said == vlm.predict_action(shown, "Click login", max_tokens=5)


def test_the_picture_reaches_the_policy(vlm):
    said = {vlm.predict_action(picture(i), "Click login", max_tokens=12, temperature=1.0, seed=3) for i in range(4)}
    assert len(said) > 1


def test_it_predicts_inside_a_running_loop(vlm):
    async def agent() -> str:
        return vlm.predict_action(picture(1), "Click login", max_tokens=5)

    assert asyncio.run(agent()) == vlm.predict_action(picture(1), "Click login", max_tokens=5)


def test_predicting_does_not_end_training_mode():
    vlm = make_wrapper(gradient_checkpointing=True).train()
    vlm.predict_action(picture(1), "Click login", max_tokens=2)
    assert vlm.model.training


def test_the_loss_is_that_of_the_reply_alone(vlm):
    images, prompts, replies = [picture(1), None], ["Click", "Where is the button"], ["ok", "no idea"]
    out = vlm.forward(images, prompts, labels=replies)
    # token by token from the logits, the end token of each reply included
    total, count = torch.zeros(()), 0
    for row, reply in enumerate(replies):
        tokens = vlm.chat.demonstration(reply)
        ids = out["input_ids"][row].tolist()
        start = next(i for i in range(len(ids)) if ids[i : i + len(tokens)] == tokens)
        log_probs = out["logits"][row].log_softmax(-1)
        total = total - sum(log_probs[start + k - 1, token] for k, token in enumerate(tokens))
        count += len(tokens)
    assert out["loss"].item() == pytest.approx((total / count).item(), abs=1e-4)


def test_labels_may_be_token_ids(vlm):
    replies = ["ok", "no idea"]
    ids = [vlm.chat.demonstration(reply) for reply in replies]
    width = max(map(len, ids)) + 1
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
    as_text = vlm([None, None], ["a", "b"], labels=replies)["loss"]
    assert torch.equal(vlm([None, None], ["a", "b"], labels=labels)["loss"], as_text)
    with pytest.raises(AlignmentError, match=r"labels\[0\] has -100 between tokens"):
        vlm([None], ["a"], labels=torch.tensor([[-100, *ids[0]]]))


def test_without_labels_there_are_logits_and_no_loss(vlm):
    out = vlm.forward(None, "Click login")
    assert out["loss"] is None
    assert out["logits"].shape[:2] == out["input_ids"].shape


def test_a_count_that_differs_is_refused(vlm):
    with pytest.raises(AlignmentError, match="got 1 images for 2 prompts"):
        vlm.forward([None], ["a", "b"])
    with pytest.raises(AlignmentError, match="got 1 labels for 2 prompts"):
        vlm.forward(None, ["a", "b"], labels=["x"])


def test_a_loop_of_ones_own_learns():
    vlm = make_wrapper(use_lora=True, lora_config={"r": 16, "lora_alpha": 32, "vision": True})
    trained = [p for p in vlm.parameters() if p.requires_grad]
    assert 0 < len(trained) < len(list(vlm.parameters()))
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    losses = []
    vlm.train()
    for _ in range(5):
        loss = vlm([picture(1), picture(2)], ["Click"] * 2, labels=["left", "right"])["loss"]
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("use_lora", [False, True])
def test_a_saved_wrapper_is_a_hf_folder(use_lora, tmp_path):
    vlm = make_wrapper(use_lora=use_lora)
    with torch.no_grad():
        for p in vlm.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.ones_like(p))
    vlm.save_pretrained(tmp_path / "model")
    again = VLMWrapper(str(tmp_path / "model"), device="cpu")
    expected = vlm.forward([picture(1)], ["Click"])["logits"]
    got = again.forward([picture(1)], ["Click"])["logits"]
    kept = torch.isfinite(expected)
    assert (got[kept] - expected[kept]).abs().max() < 1e-4
    assert again.predict_action(picture(1), "Click", max_tokens=5) == vlm.predict_action(
        picture(1), "Click", max_tokens=5
    )


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match=r"did you mean 'model\.lora\.lora_alpha'"):
        VLMWrapper("uirl/tiny-vlm", use_lora=True, lora_config={"lora_alfa": 1})
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        VLMWrapper("uirl/tiny-vlm", gradient_checkpoint=True)
