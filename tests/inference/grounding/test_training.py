"""Packing, loss and updates of the model that learns from synthetic screens."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from uirl.images import screenshot
from uirl.inference.grounding.evaluation import answers
from uirl.inference.grounding.lessons import lesson
from uirl.inference.grounding.model import build_model
from uirl.inference.grounding.packing import Packer, last_hidden
from uirl.inference.grounding.questions import Question, click
from uirl.inference.grounding.screens import screen
from uirl.inference.grounding.training import FIGURES, Recipe, Trainer, exact_attention, rate, train
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences, wrap_model

SMALL = Recipe(looks=4, steps=4, pictures=2, questions=2, warm_up=2, bfloat16=False)


def model() -> LoadedModel:
    return wrap_model(*build_model(seed=0), name="grounded")


def test_a_question_among_others_is_what_it_is_alone_in_a_conversation() -> None:
    loaded = model()
    screens, asked = lesson(0, 0, 2, 3)
    packer = Packer(loaded)
    packed = packer([s.picture for s in screens], [[packer.block(q.text) for q in row] for row in asked])
    with torch.no_grad():
        together = last_hidden(loaded, packed)
    renderer = ChatRenderer(loaded)
    place = iter(packed.ends)
    for one, row in zip(screens, asked, strict=True):
        picture = screenshot(one.picture)
        for question in row:
            ids = renderer.whole([Message("user", question.text, images=(picture,))])
            inputs = pad_sequences(loaded, [ids], [[picture]])
            with torch.no_grad():
                alone = hidden_states(loaded, *inputs, [picture])
            torch.testing.assert_close(together[next(place)], alone[0, -1], atol=2e-4, rtol=1e-3)


def test_what_is_learned_are_the_replies_with_their_end() -> None:
    loaded = model()
    packer = Packer(loaded)
    screens, _ = lesson(0, 0, 1, 1)
    replies = [click((12, 34)), click((5, 160))]
    packed = packer([screens[0].picture], [[packer.block("Press OK", reply) for reply in replies]])
    learned = packed.input_ids[packed.learned]
    assert loaded.tokenizer.decode(learned) == "".join(f"{reply}<|im_end|>" for reply in replies)


def test_updates_repeat_and_the_loss_falls() -> None:
    runs = []
    for _ in range(2):
        trainer = Trainer(model(), SMALL)
        runs.append([trainer.step(0)["loss"] for _ in range(4)])
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0]


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    # 1/2, 1, then half a cosine over 100 updates: its middle is 0.5
    assert [rate(n, 102, 2) for n in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert rate(52, 102, 2) == pytest.approx(0.5)
    assert rate(102, 102, 2) == pytest.approx(0.0)
    assert rate(27, 102, 2) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))


def test_answers_are_greedy_and_end_where_the_model_ends_them() -> None:
    loaded = model()
    trainer = Trainer(loaded, replace(SMALL, learning_rate=3e-3, warm_up=1, steps=10_000))
    screens = [screen(0, 0, (112, 112))]
    asked = [[Question("Press OK", click((12, 34)), "button", (12, 34), ((10, 30, 15, 40),))]]
    assert not asked[0][0].right(answers(loaded, screens, asked)[0])
    for number in range(25):
        trainer.learn(screens, asked, number)
    assert answers(loaded, screens, asked) == [click((12, 34))]


def test_looking_moves_the_vision_tower_alone_and_repeats() -> None:
    runs = []
    for _ in range(2):
        trainer = Trainer(model(), replace(SMALL, learning_rate=3e-3))
        before = {name: p.clone() for name, p in trainer.loaded.model.named_parameters()}
        runs.append([trainer.look(0)["sights"] for _ in range(4)])
        moved = {name for name, p in trainer.loaded.model.named_parameters() if not torch.equal(p, before[name])}
        assert moved
        assert all(name.startswith("model.visual.") for name in moved)
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0]


def test_attention_in_float32_says_the_same_and_ends_with_the_training() -> None:
    loaded = model()
    screens, asked = lesson(0, 0, 2, 3)
    packer = Packer(loaded)
    packed = packer([s.picture for s in screens], [[packer.block(q.text, q.reply) for q in row] for row in asked])
    with torch.no_grad():
        usual = last_hidden(loaded, packed)
        with exact_attention(loaded.model):
            exact = last_hidden(loaded, packed)
    torch.testing.assert_close(usual, exact, atol=1e-4, rtol=1e-4)
    lines: list[str] = []
    train(Trainer(loaded, SMALL), lines.append, every=2)
    assert [next(iter(json.loads(line))) for line in lines] == ["look", "look", "step", "step"]
    assert set(json.loads(lines[-1])) <= {"step", "seconds", *FIGURES}
    assert loaded.model.config.text_config._attn_implementation == "sdpa"  # type: ignore[union-attr]
