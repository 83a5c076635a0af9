"""Parts of the browser room that need no browser: pictures, marks, accessibility, sites, addresses, capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from uirl.environments.browser import environment as capacity
from uirl.environments.browser.acting import origin_of
from uirl.environments.browser.environment import PageOptions
from uirl.environments.browser.picture import Viewport, draw_marks
from uirl.environments.browser.process import network_flags
from uirl.environments.browser.tree import parse, tree_text
from uirl.environments.browser.web import Site, WebEnvironment
from uirl.errors import ConfigError


def test_a_crop_at_a_zoom_is_cut_where_the_browser_drew_it() -> None:
    frame = Viewport.of(100, 80, zoom=0.5, crop=(20, 10, 60, 40))
    assert frame.size == (30, 20)
    # Page pixel (20, 10) is drawn at (10, 5): the corner of the picture.
    drawn = Image.new("RGB", (50, 40))
    drawn.putpixel((10, 5), (255, 0, 0))
    drawn.putpixel((39, 24), (0, 255, 0))
    picture = frame.shown(drawn)
    assert picture.size == (30, 20)
    assert picture.getpixel((0, 0)) == (255, 0, 0)
    assert picture.getpixel((29, 19)) == (0, 255, 0)
    # The middle of picture pixel (3, 4) is page position 20 + 3.5 / 0.5, 10 + 4.5 / 0.5.
    assert frame.on_page(3, 4) == (27.0, 19.0)
    assert frame.in_picture(27.0, 19.0) == (3, 4)
    assert frame.in_picture(19.9, 19.0) is None
    assert frame.in_picture(80.0, 19.0) is None
    assert frame.box(0, 0, 40, 200) == (0, 0, 10, 19)


@pytest.mark.parametrize(
    ("options", "untouched"),
    [
        ({}, True),
        ({"zoom": 0.35}, False),
        ({"zoom": 0.5}, True),
        ({"crop": (0, 0, 160, 200)}, False),
        ({"image_size": (160, 210)}, True),
        ({"image_size": 56}, False),
    ],
)
def test_what_needs_no_change_is_handed_on_as_it_was_captured(options: Any, untouched: bool) -> None:
    assert PageOptions(**options).viewport((160, 210)).is_capture == untouched  # 210 * 0.35 is no whole number


@given(
    st.integers(1, 400), st.integers(1, 400), st.floats(0.1, 4), st.none() | st.integers(1, 300), st.data()
)  # fmt: skip
def test_every_picture_pixel_leads_back_to_itself(w: int, h: int, zoom: float, size: int | None, data: Any) -> None:
    left, top = data.draw(st.integers(0, w - 1)), data.draw(st.integers(0, h - 1))
    crop = (left, top, data.draw(st.integers(1, w - left)), data.draw(st.integers(1, h - top)))
    frame = Viewport.of(w, h, zoom, crop, size and (size, size))
    x, y = (data.draw(st.integers(0, side - 1)) for side in frame.size)
    assert frame.in_picture(*frame.on_page(x, y)) == (x, y)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"width": 0}, "width: got 0, expected whole number >= 1"),
        ({"width": 1.5}, "width: got 1.5, expected whole number"),
        ({"zoom": 5}, "zoom: got 5, expected number >= 0.1 and <= 4"),
        ({"zoom": True}, "zoom: got True, expected number"),
        ({"crop": (0, 0, 10)}, r"crop: got \(0, 0, 10\), expected \[whole number"),
        ({"crop": (0, 0, 10.5, 1)}, r"crop\[2\]: got 10.5, expected \[whole number"),
        ({"crop": (95, 0, 10, 10)}, "outside the page"),
        ({"image_size": (0, 5)}, "image_size"),
    ],
)
def test_frames_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PageOptions(**options).viewport((100, 80))


def test_marks_are_drawn_on_a_copy_at_their_boxes() -> None:
    picture = Image.new("RGB", (200, 100), "white")
    drawn = draw_marks(picture, [(20, 40, 80, 60), (150, 0, 199, 30)])
    assert picture.getcolors() == [(200 * 100, (255, 255, 255))]
    for left, top, right, bottom in ((20, 40, 80, 60), (150, 0, 199, 30)):
        for place in ((left, bottom), (right, bottom), (right, (top + bottom) // 2)):
            assert drawn.getpixel(place) != (255, 255, 255)
    assert drawn.getpixel((110, 80)) == (255, 255, 255)
    assert drawn.crop((20, 30, 40, 40)).getcolors() != drawn.crop((150, 0, 170, 10)).getcolors(), "1 is not 2"


SNAPSHOT = """\
- generic [active] [ref=e1] [box=0,0,240,89]:
  - button "Buy now" [active] [ref=e2] [box=10,5,80,20]
  - 'textbox "E-mail: yours" [ref=e3] [box=10,45,125,21]': a@b
  - generic [ref=e4] [box=10,70,80,19]:
    - text: "Only  3\\nleft"
    - checkbox "Gift" [checked=mixed] [disabled] [ref=e5] [box=10,90,8,8]
  - link "Help" [ref=e6] [cursor=pointer] [box=0,100,40,10]:
    - /url: /help
  - paragraph [ref=e7] [box=0,120,40,10]: above
  - iframe [ref=e8] [box=0,19,206,106]:
    - generic [ref=f2e1] [box=0,0,200,85]: plain"""
TREE = list(parse(SNAPSHOT))
TEXT = """\
button "Buy now" (focused)
textbox "E-mail: yours" = "a@b"
"Only 3 left"
checkbox "Gift" (checked: mixed, disabled)
link "Help"
paragraph "above"
iframe
  "plain\""""


def test_the_tree_is_written_line_by_line_without_its_scaffolding() -> None:
    assert tree_text(TREE, 1000) == TEXT


def test_what_carries_a_number_is_named_and_what_the_tree_lacks_comes_last() -> None:
    link = next(place for place, node in enumerate(TREE) if node.role == "link")
    box = next(place for place, node in enumerate(TREE) if node.ref == "f2e1")
    lines = tree_text(TREE, 1000, {link: 3, box: 1}, [(2, "")]).splitlines()
    assert lines[4:] == ['link "Help" [3]', 'paragraph "above"', "iframe", '  generic "plain" [1]', "  clickable [2]"]


@pytest.mark.parametrize("limit", [5, 40, 60, 100, len(TEXT) - 1])
def test_a_tree_that_is_too_long_is_cut_at_a_whole_line(limit: int) -> None:
    cut = tree_text(TREE, limit)
    assert len(cut) <= limit
    *lines, last = cut.splitlines()
    assert last == "..."
    assert TEXT.splitlines()[: len(lines)] == lines


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('"x\ud800"', 'link "x\ufffd"'),
        (r'"a \"b\" [checked]"', 'link "a "b" [checked]"'),
        ('"' + "x" * 200 + '"', 'link "' + "x" * 117 + '..."'),
    ],
)
def test_names_of_any_kind_are_one_line(name: str, written: str) -> None:
    assert tree_text(list(parse(f"- link {name} [ref=e1] [box=0,0,1,1]")), 300) == written


def test_values_are_read_as_playwright_writes_them() -> None:
    written = r'- text: "C:\\xampp: \x41 \"b\""' + "\n" + '- textbox "a\u2028b": "c: \u2028d"'
    assert tree_text(list(parse(written)), 100).splitlines() == [r'"C:\xampp: A "b""', 'textbox "a b" = "c: d"']


def test_a_tree_of_any_depth_can_be_written() -> None:
    deep = list(parse("\n".join("  " * depth + "- group:" for depth in range(3000))))
    assert len(tree_text(deep, 3000)) <= 3000
    assert tree_text([], 100) == ""


def test_a_site_answers_for_its_files_and_for_nothing_outside(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    (folder / "sub").mkdir(parents=True)
    (folder / "index.html").write_text("<p>index")
    (folder / "sub" / "a b.css").write_text("p { }")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "loop").symlink_to("loop")
    site = Site({"/own": b"own"}, folder)
    assert site.answer("http://app.localhost/") == (200, "text/html; charset=utf-8", b"<p>index")
    assert site.answer("http://app.localhost/sub/a%20b.css?x=1#y") == (200, "text/css; charset=utf-8", b"p { }")
    assert site.answer("http://app.localhost/own")[2] == b"own"
    outside = ("/../secret.txt", "/%2e%2e/secret.txt", "/sub/..%2f..%2fsecret.txt", "/link.txt", "//etc/passwd")
    for path in (*outside, "/missing", "/%00", "/sub", "/loop", f"/{'a' * 5000}"):
        assert site.answer(f"http://app.localhost{path}")[0] == 404, path


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8000/a?b", "http://127.0.0.1:8000"),
        ("HTTP://Example.COM:80", "http://example.com"),
        ("https://example.com:443/", "https://example.com"),
        ("https://example.com:80/", "https://example.com:80"),
        ("http://[::1]:9/", "http://[::1]:9"),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("data:text/html,hi", None),
        ("chrome://crash", None),
        ("http:example.com", None),
        ("http://", None),
        ("//example.com/", None),
        ("http://good.com@evil.com/", None),
        ("http://example.com:port/", None),
        ("http://[::1/", None),
    ],
)
def test_the_origin_of_an_address(url: str, origin: str | None) -> None:
    assert origin_of(url) == origin


def test_the_network_flags_name_what_is_allowed_and_nothing_else() -> None:
    closed = network_flags(())
    assert "--proxy-bypass-list=<-loopback>" in closed
    assert "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1" in closed
    some = network_flags(("http://127.0.0.1:81", "https://shop.test"))
    assert "--proxy-bypass-list=<-loopback>;http://127.0.0.1:81;https://shop.test" in some
    assert "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE shop.test" in some


class Still(WebEnvironment):
    html = "<p>still</p>"


@pytest.mark.parametrize(
    ("free", "size", "pages"),
    [
        (64 << 30, (640, 480), 16),  # two cores, eight pages each
        (1 << 30, (640, 480), 4),  # 512 MiB / (100 MiB + 640 * 480 * 40 B = 111.7 MiB)
        (1 << 30, (1080, 2400), 2),  # 512 MiB / (100 MiB + 98.9 MiB)
        (1 << 20, (640, 480), 1),
        (None, (640, 480), 16),
    ],
)
def test_pages_are_bounded_by_memory_and_by_cores(
    monkeypatch: pytest.MonkeyPatch, free: int | None, size: tuple[int, int], pages: int
) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: free)
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert capacity.pages_that_fit(*size) == pages


def test_a_page_environment_says_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: 1 << 30)
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert Still(width=1080, height=2400).max_parallel == 2
    assert Still(width=540, height=1200, zoom=2.0).max_parallel == 2
