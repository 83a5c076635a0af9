"""Parts of the browser room that need no browser: pictures, marks, the accessibility text, sites, addresses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from uirl.environments.browser.options import PageOptions
from uirl.environments.browser.page.accessibility import tree_text
from uirl.environments.browser.page.acting import origin_of
from uirl.environments.browser.page.marks import draw_marks
from uirl.environments.browser.page.viewport import Viewport
from uirl.environments.browser.process import network_flags
from uirl.environments.browser.site import Site
from uirl.errors import ConfigError


def png(size: tuple[int, int], dots: dict[tuple[int, int], tuple[int, int, int]]) -> bytes:
    picture = Image.new("RGB", size)
    for place, colour in dots.items():
        picture.putpixel(place, colour)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def test_a_crop_at_a_zoom_is_cut_where_the_browser_drew_it() -> None:
    frame = Viewport.of(100, 80, zoom=0.5, crop=(20, 10, 60, 40))
    assert frame.size == (30, 20)
    # Page pixel (20, 10) is drawn at (10, 5): the corner of the picture.
    picture = frame.picture(png((50, 40), {(10, 5): (255, 0, 0), (39, 24): (0, 255, 0)}))
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


def node(number: int, role: str, name: str = "", children: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"nodeId": str(number), "ignored": False, "role": {"value": role}, "name": {"value": name}}
    made["childIds"] = [str(child) for child in children]
    made["parentId"] = more.pop("parent", "0")
    if made["parentId"] is None:
        del made["parentId"]
    made["properties"] = [{"name": key, "value": {"value": value}} for key, value in more.pop("states", {}).items()]
    return made | {key: {"value": value} if key == "value" else value for key, value in more.items()}


TREE = [
    node(1, "RootWebArea", "Shop", (2, 5, 9), parent=None),
    node(2, "generic", "", (3, 4)),
    node(3, "button", "Buy now", (6,), states={"focused": True, "disabled": False}),
    node(4, "textbox", "E-mail", value="a@b", states={"required": True, "invalid": "false"}),
    node(5, "none", "", (7, 8), ignored=True),
    node(6, "StaticText", "Buy now"),
    node(7, "StaticText", "Only  3\nleft"),
    node(8, "checkbox", "Gift", states={"checked": "mixed"}),
    node(9, "link", "Help"),
]
TEXT = """page "Shop"
  button "Buy now" (focused)
  textbox "E-mail" = "a@b" (required)
  "Only 3 left"
  checkbox "Gift" (checked: mixed)
  link "Help\""""


def test_the_tree_is_written_line_by_line_without_its_scaffolding() -> None:
    assert tree_text(TREE, 1000) == TEXT


@pytest.mark.parametrize("limit", [5, 40, 60, 100, len(TEXT) - 1])
def test_a_tree_that_is_too_long_is_cut_at_a_whole_line(limit: int) -> None:
    cut = tree_text(TREE, limit)
    assert len(cut) <= limit
    *lines, last = cut.splitlines()
    assert last == "..."
    assert TEXT.splitlines()[: len(lines)] == lines


def test_halves_of_characters_are_written_as_the_browser_draws_them() -> None:
    tree = [node(1, "RootWebArea", "x\ud800", (2,), parent=None), node(2, "link", "\udc00 \U0001f600 \ud83d\ude00")]
    assert tree_text(tree, 100) == 'page "x\ufffd"\n  link "\ufffd \U0001f600 \U0001f600"'


def test_a_tree_of_any_depth_can_be_written() -> None:
    deep = [node(1, "RootWebArea", "", (2,), parent=None)]
    deep += [node(i, "group", "", (i + 1,)) for i in range(2, 5000)]
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
    site = Site({"/own": "own"}, folder)
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
