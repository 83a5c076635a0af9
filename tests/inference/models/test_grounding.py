"""scripts/grounding: screens, questions, packing and updates behind the weights of 'uirl/tiny-vlm-grounded'."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from scripts.grounding.lessons import HELD_OUT, SIGHTS, Question, click, lesson, letters_of, questions, sights
from scripts.grounding.model import build_model
from scripts.grounding.screens import KIND_NAMES, SIZES, Screen, screen
from scripts.grounding.training import Packer, Recipe, Trainer, answers, exact_attention, last_hidden
from tests.patience import PATIENCE
from uirl.config import ConfigStore
from uirl.environments.ui.actions import ActionSpace
from uirl.environments.ui.vocabulary import Answer, Click
from uirl.images import screenshot
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, hidden_states, load_model, pad_sequences, wrap_model
from uirl.types import ToolCall

ROOT = Path(__file__).parents[3]
SMALL = Recipe(looks=4, steps=4, pictures=2, questions=2, warm_up=2, bfloat16=False)


def digest(one: Screen) -> str:
    return hashlib.sha256(one.picture.tobytes() + repr(one.elements).encode()).hexdigest()


def model() -> LoadedModel:
    return wrap_model(*build_model(seed=0), name="grounded")


def test_a_screen_is_a_function_of_seed_and_index_alone() -> None:
    forwards = [digest(screen(3, i)) for i in range(20)]
    assert [digest(screen(3, i)) for i in reversed(range(20))] == forwards[::-1]
    assert len({*forwards, *(digest(screen(4, i)) for i in range(20))}) == 40
    learned = {digest(s) for number in range(10) for s in lesson(0, number, 16, 8)[0]}
    assert not learned & {digest(s) for s in lesson(HELD_OUT, 0, 100, 8)[0]}


def test_things_lie_inside_apart_and_where_the_sights_and_letters_say() -> None:
    kinds = set()
    for i in range(120):
        one = screen(0, i)
        width, height = one.picture.size
        assert one.picture.size in SIZES
        assert all(0 <= t.box[0] < t.box[2] <= width and 0 <= t.box[1] < t.box[3] <= height for t in one.elements)
        for n, a in enumerate(one.elements):
            for b in one.elements[n + 1 :]:
                apart = a.box[2] <= b.box[0] or b.box[2] <= a.box[0] or a.box[3] <= b.box[1] or b.box[3] <= a.box[1]
                assert apart, (i, a, b)
        shown = sights(one, 16)
        for thing in one.elements:
            kinds.add(thing.kind)
            cell = shown[thing.middle[1] // 16 * (width // 16) + thing.middle[0] // 16]
            assert cell[SIGHTS[f"{thing.kind} here"]] == cell[SIGHTS[f"{thing.kind} middle"]] == 1
            if thing.kind in ("button", "link", "heading", "text", "tab"):
                left, top, right, bottom = thing.box
                inside = [letter for letter, x, y in one.glyphs if left <= x < right and top <= y < bottom]
                assert "".join(inside) == thing.label.replace(" ", "")
        assert letters_of(one, 8).shape == (height // 8, width // 8)
    assert kinds == set(KIND_NAMES)


_DRAWN = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" and watched else None)
watched = False
from scripts.grounding.lessons import questions
from scripts.grounding.screens import screen
from random import Random
import matplotlib
watched = True
for i in range(40):
    questions(screen(0, i), Random(i), 8)
watched = False
print([name for name in opened if not name.endswith((".ttf", ".py", ".pyc", ".so"))])
print([name for name in sys.modules if name.startswith(("miniwob", "uirl.environments", "selenium"))])
"""


@pytest.mark.slow
def test_nothing_is_read_but_fonts_and_no_environment_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DRAWN], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.split() == ["[]", "[]"]


def test_every_answer_is_an_action_of_ours_and_is_right() -> None:
    screens = [screen(0, i) for i in range(200)]
    asked = [(one, q) for i, one in enumerate(screens) for q in questions(one, Random(i), 8)]
    assert len({q.kind for _, q in asked}) >= 14
    for one, question in asked:
        space = ActionSpace(*one.picture.size, ("click", "answer"))
        reply = json.loads(question.reply)
        action = space.read_call(ToolCall(reply.pop("action"), reply))
        assert isinstance(action, Click if question.boxes else Answer), action
        assert question.right(question.reply)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ('{"action":"click","x":10,"y":20}', True),
        ('{"action":"click","x":20,"y":29}', False),  # right and bottom are outside
        ('{"action":"click","x":12}', False),
        ('{"action":"answer","x":12,"y":22}', False),
        ("[12, 22]", False),
        ("", False),
    ],
)
def test_a_click_is_right_inside_a_box(reply: str, right: bool) -> None:
    question = Question("press OK", click((15, 25)), "button", (15, 25), ((10, 20, 20, 30),))
    assert question.right(reply) is right


def test_a_question_among_others_is_what_it_is_alone_in_a_conversation() -> None:
    loaded = model()
    screens, asked = lesson(0, 0, 2, 3)
    packer = Packer(loaded)
    packed = packer([s.picture for s in screens], [[packer.block(q.text) for q in row] for row in asked])
    with torch.no_grad():
        together = last_hidden(loaded, packed)
        with exact_attention(loaded.model):
            torch.testing.assert_close(together, last_hidden(loaded, packed), atol=1e-4, rtol=1e-4)
    renderer = ChatRenderer(loaded)
    place = iter(packed.ends)
    for one, row in zip(screens, asked, strict=True):
        picture = screenshot(one.picture)
        for question in row:
            ids = renderer.whole([Message("user", question.text, images=(picture,))])
            with torch.no_grad():
                alone = hidden_states(loaded, *pad_sequences(loaded, [ids], [[picture]]), [picture])
            torch.testing.assert_close(together[next(place)], alone[0, -1], atol=2e-4, rtol=1e-3)


@pytest.mark.slow
def test_updates_repeat_and_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32: bfloat16 takes seconds for each of them on a CPU that has none."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    runs = []
    for _ in range(2):
        trainer = Trainer(model(), replace(SMALL, learning_rate=3e-3, warm_up=1, steps=10_000))
        screens = [screen(0, 0, (112, 112))]
        asked = [[Question("Press OK", click((12, 34)), "button", (12, 34), ((10, 30, 15, 40),))]]
        looks = [trainer.look(0)["sights"] for _ in range(4)]
        assert looks[-1] < looks[0]
        runs.append((looks, [trainer.learn(screens, asked, number)["loss"] for number in range(30)]))
    assert runs[0] == runs[1]
    assert answers(trainer.loaded, screens, asked) == [click((12, 34))]


@pytest.mark.actors
def test_the_command_writes_a_model_and_its_card(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    options = ["--out", str(folder), "--looks", "2", "--steps", "2", "--screens", "2", "--seed", "3"]
    script = [sys.executable, str(ROOT / "scripts" / "train_grounded.py")]
    subprocess.run([*script, *options], check=True, timeout=300, stdout=subprocess.DEVNULL)
    card = json.loads((folder / "card.json").read_text())
    assert card["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (card["recipe"]["steps"], card["recipe"]["seed"], card["processes"]) == (2, 3, 2)
    loaded = load_model(ConfigStore.from_dict({"model": {"local_path": str(folder)}}).model)
    assert sum(p.numel() for p in loaded.model.parameters()) == card["parameters"]
    done = subprocess.run([*script, "--processes", "3"], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "does not divide the 16 pictures" in done.stderr) == (1, True)
