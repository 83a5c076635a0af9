"""Synthetic screens: pure functions of a seed and an index, with nothing of anybody's pages in them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from random import Random

from PIL import Image

from tests.patience import PATIENCE
from uirl.inference.grounding.lessons import HELD_OUT, LETTERS, SIGHTS, cell_of, lesson, letters_of, sights
from uirl.inference.grounding.screens import SIZES, Screen, screen
from uirl.inference.grounding.widgets import KIND_NAMES


def digest(one: Screen) -> str:
    return hashlib.sha256(one.picture.tobytes() + repr(one.elements).encode()).hexdigest()


def test_a_screen_is_a_function_of_seed_and_index_alone() -> None:
    forwards = [digest(screen(3, i)) for i in range(20)]
    assert [digest(screen(3, i)) for i in reversed(range(20))] == forwards[::-1]
    assert len({*forwards, *(digest(screen(4, i)) for i in range(20))}) == 40


def test_what_is_on_a_screen_lies_inside_it_and_does_not_overlap() -> None:
    for i in range(80):
        one = screen(0, i)
        assert one.picture.size in SIZES
        width, height = one.picture.size
        assert all(0 <= t.box[0] < t.box[2] <= width and 0 <= t.box[1] < t.box[3] <= height for t in one.elements)
        for n, a in enumerate(one.elements):
            x, y = a.middle
            assert a.box[0] <= x < a.box[2]
            assert a.box[1] <= y < a.box[3]
            for b in one.elements[n + 1 :]:
                apart = a.box[2] <= b.box[0] or b.box[2] <= a.box[0] or a.box[3] <= b.box[1] or b.box[3] <= a.box[1]
                assert apart, (i, a, b)


def test_every_kind_of_thing_is_drawn() -> None:
    assert {t.kind for i in range(120) for t in screen(0, i).elements} == set(KIND_NAMES)


def test_a_thing_can_be_seen_where_it_is_said_to_be() -> None:
    for i in range(60):
        one = screen(1, i)
        for thing in one.elements:
            if thing.shape and thing.kind == "shape":
                colours = one.picture.crop(thing.box).getcolors(10_000)
                assert colours is not None
                assert len(colours) > 1 or thing.shape in ("square", "bar")


_DRAWN = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" and watched else None)
watched = False
from uirl.inference.grounding.questions import questions
from uirl.inference.grounding.screens import screen
from random import Random
import matplotlib
watched = True
for i in range(40):
    questions(screen(0, i), Random(i), 8)
watched = False
print([name for name in opened if not name.endswith((".ttf", ".py", ".pyc", ".so"))])
print([name for name in sys.modules if name.startswith(("miniwob", "uirl.environments", "selenium"))])
"""


def test_nothing_is_read_but_fonts_and_no_environment_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", _DRAWN], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_held_out_screens_are_none_of_those_that_are_learned_from() -> None:
    learned = {digest(s) for number in range(10) for s in lesson(0, number, 16, 8)[0]}
    assert not learned & {digest(s) for s in lesson(HELD_OUT, 0, 100, 8)[0]}


def test_processes_share_a_batch() -> None:
    whole, asked = lesson(0, 3, 4, 2)
    halves = [lesson(0, 3, 4, 2, rank=rank, processes=2) for rank in (0, 1)]
    assert [digest(s) for half, _ in halves for s in half] == [digest(s) for s in whole]
    assert [row for _, half in halves for row in half] == asked


def test_a_cell_says_what_it_shows() -> None:
    assert sorted(SIGHTS.values()) == list(range(len(SIGHTS)))
    rng = Random(0)
    for i in rng.sample(range(1000), 20):
        one = screen(5, i)
        columns = one.picture.width // 16
        shown = sights(one, 16)
        assert shown.shape == (columns * (one.picture.height // 16), len(SIGHTS))
        for thing in one.elements:
            cell = shown[thing.middle[1] // 16 * columns + thing.middle[0] // 16]
            assert cell[SIGHTS[f"{thing.kind} here"]] == cell[SIGHTS[f"{thing.kind} middle"]] == 1
            assert all(cell[SIGHTS[name]] == 1 for name in (thing.colour, thing.shape) if name)


def test_letters_are_seen_where_they_stand() -> None:
    for i in range(60):
        one = screen(7, i)
        for thing in one.elements:
            if thing.kind in ("button", "link", "heading", "text", "tab"):
                left, top, right, bottom = thing.box
                inside = [letter for letter, x, y in one.glyphs if left <= x < right and top <= y < bottom]
                assert "".join(inside) == thing.label.replace(" ", "")


def test_the_cell_of_a_place_is_counted_row_by_row() -> None:
    one = screen(0, 0, (160, 208))  # 10 cells in a row
    assert [cell_of(one, place, 16) for place in ((0, 0), (15, 15), (16, 0), (0, 16), (159, 207))] == [0, 0, 1, 10, 129]


def test_letters_are_in_the_patches_of_their_middles() -> None:
    one = Screen(Image.new("RGB", (16, 16)), (), (("A", 3, 4), ("b", 12, 15), ("c", 99, 0), ("d", -1, 3)))
    assert letters_of(one, 8).tolist() == [[1 + ord("A") - 33, 0], [0, 1 + ord("b") - 33]]
    assert int(letters_of(screen(5, 0), 8).max()) <= LETTERS
