"""Mouse and keyboard in the real browser: what a page sees of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from uirl.environments.browser.page import Page
from uirl.environments.browser.process import Chromium
from uirl.environments.ui.keys import NAMED_KEYS

PAGE = """<!doctype html><body style="margin:0">
<div id="card" draggable="true" style="width:50px;height:50px;background:red"></div>
<div id="place" style="width:100px;height:100px;background:blue"></div>
<input id="one" style="position:absolute;left:120px;top:0;width:150px">
<textarea id="two" style="position:absolute;left:120px;top:40px;width:150px;height:80px"></textarea>
<input id="secret" type="password" style="position:absolute;left:120px;top:140px;width:150px">
<select id="list" style="position:absolute;left:120px;top:180px"><option>a<option>b<option>c</select>
<div style="height:3000px;width:3000px"></div>
<script>
  let seen = [];
  const kinds = ['mousedown', 'mouseup', 'click', 'dblclick', 'contextmenu', 'dragstart', 'drop', 'keydown', 'keyup',
                 'input', 'wheel'];
  for (const kind of kinds) addEventListener(kind, e => {
    seen.push(e.key ? `${kind} ${e.key}` : e.detail ? `${kind} ${e.detail}` : kind);
    if (!e.isTrusted) seen.push('not trusted');
  });
  addEventListener('dragover', e => e.preventDefault());
  addEventListener('mousedown', e => seen.push(`button ${e.button}`));
  const take = () => seen.splice(0);
</script></body>"""


@pytest_asyncio.fixture(loop_scope="package")
async def page(tmp_path: Path) -> Page:
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    page = await Chromium.shared().new_page(300, 300)
    await page.goto(path.as_uri())
    return page


async def value(page: Page, element: str) -> Any:
    return await page.evaluate(f"{element}.value")


@pytest.mark.parametrize(
    ("button", "count", "seen"),
    [
        ("left", 1, ["mousedown 1", "button 0", "mouseup 1", "click 1"]),
        (
            "left",
            2,
            [
                *("mousedown 1", "button 0", "mouseup 1", "click 1"),
                *("mousedown 2", "button 0", "mouseup 2", "click 2", "dblclick 2"),
            ],
        ),
        ("right", 1, ["mousedown 1", "button 2", "contextmenu", "mouseup 1"]),
    ],
)
async def test_clicks_have_their_button_and_their_number(page: Page, button: str, count: int, seen: list[str]) -> None:
    await page.click(20, 200, button, count)
    assert await page.evaluate("take()") == seen


async def test_three_clicks_select_a_line(page: Page) -> None:
    await page.evaluate("two.value = 'first line\\nsecond line'")
    await page.click(150, 52, "left", 3)
    assert await page.evaluate("[two.selectionStart, two.selectionEnd]") in ([0, 10], [0, 11])
    await page.type("x")
    assert await value(page, "two") in ("x\nsecond line", "xsecond line")


async def test_a_drag_is_a_press_moves_and_a_release(page: Page) -> None:
    await page.drag(20, 180, 60, 220)
    assert await page.evaluate("take()") == ["mousedown 1", "button 0", "mouseup 1", "click 1"]
    await page.evaluate("card.draggable = false; moves = []; addEventListener('mousemove', e => moves.push(e.buttons))")
    await page.drag(20, 20, 60, 220)
    assert (await page.evaluate("moves")).count(1) == 5
    await page.click(10, 250)


async def test_typing_is_seen_key_by_key(page: Page) -> None:
    await page.click(130, 10)
    await page.evaluate("take()")
    await page.type("aB")
    assert await page.evaluate("take()") == ["keydown a", "input", "keyup a", "keydown B", "input", "keyup B"]
    assert await value(page, "one") == "aB"


@pytest.mark.parametrize(
    "text", ["Hello, World! ~`|\\{}[]<>?'\"", "äß€ 日本語 😀", "one\ntwo\r\nthree\n", "a" * 201 + "é\nend"]
)
async def test_any_text_arrives_as_it_was_written(page: Page, text: str) -> None:
    await page.click(130, 50)
    await page.type(text)
    assert await value(page, "two") == text.replace("\r\n", "\n")


@pytest.mark.parametrize("length", [3, 201])
async def test_line_breaks_and_tabs_are_keys_however_long_the_text_is(page: Page, length: int) -> None:
    await page.click(130, 10)
    await page.evaluate("take(); one.onkeydown = e => { if (e.key === 'Enter') window.sent = one.value; }; void 0")
    await page.type("a" * (length - 1) + "\n")
    assert await page.evaluate("window.sent") == "a" * (length - 1)
    await page.type("b" * length + "\tc")
    assert await page.evaluate("document.activeElement.id") == "two"
    assert await value(page, "two") == "c"


async def test_chords(page: Page) -> None:
    await page.click(130, 10)
    await page.type("hello")
    await page.evaluate("take()")
    await page.press(("ctrl", "a"))
    assert await page.evaluate("take()") == ["keydown Control", "keydown a", "keyup a", "keyup Control"]
    await page.press(("backspace",))
    assert await value(page, "one") == ""
    await page.type("hello")
    await page.press(("shift", "home"))
    assert await page.evaluate("[one.selectionStart, one.selectionEnd]") == [0, 5]
    await page.press(("left",))
    await page.press(("shift", "h"))
    await page.press(("x",))
    await page.press(("space",))
    await page.press(("+",))
    assert await value(page, "one") == "Hx +hello"


async def test_every_named_key_has_an_event(page: Page) -> None:
    await page.click(250, 280)
    await page.evaluate(
        "void (onkeydown = e => { e.preventDefault(); e.stopPropagation(); keys.push(e.key); }, keys = [])"
    )
    names = [*NAMED_KEYS, *map(chr, range(33, 127))]
    for name in names:
        await page.press((name,))
    seen = await page.evaluate("keys")
    assert len(seen) == len(names)
    assert seen[len(NAMED_KEYS) :] == names[len(NAMED_KEYS) :]
    assert all(len(key) > 1 or key == " " for key in seen[: len(NAMED_KEYS)])


async def holding(page: Page, modifier: str, key: str, *, both: bool = False) -> None:
    """Presses a key while another is held, and holds it too (`both`), as a policy does in actions of their own."""
    await page.hold_key(modifier, down=True)
    if both:
        await page.hold_key(key, down=True)
        await page.hold_key(key, down=False)
    else:
        await page.press([key])
    await page.hold_key(modifier, down=False)


@pytest.mark.parametrize("way", ["chord", "pressed", "held", "shift", "cut", "middle"])
async def test_what_is_copied_and_selected_on_a_page_is_pasted_there_alone(
    page: Page, tmp_path: Path, way: str
) -> None:
    other = await Chromium.shared().new_page(300, 300)
    await other.goto((tmp_path / "page.html").as_uri())
    await page.click(130, 10)
    await page.type("mine")
    await page.press(("ctrl", "a"))
    await holding(page, "ctrl", "x" if way == "cut" else "c", both=way == "held")
    assert await value(page, "one") == ("" if way == "cut" else "mine")

    async def paste(where: Page, y: int) -> None:
        await where.click(130, y)
        if way == "middle":
            await where.click(130, y, "middle")
        elif way in ("chord", "cut"):
            await where.press(("ctrl", "v"))
        else:
            await holding(where, *(("shift", "insert") if way == "shift" else ("ctrl", "v")), both=way == "held")

    await paste(other, 10)
    assert await value(other, "one") == ""
    await paste(page, 50)
    assert await value(page, "two") == ("" if way == "middle" else "mine")
    await page.begin()
    await page.goto((tmp_path / "page.html").as_uri())
    await paste(page, 10)
    assert await value(page, "one") == "", "and not in the next episode"


async def test_a_password_cannot_be_copied(page: Page) -> None:
    await page.click(130, 150)
    await page.type("word")
    for keys in (("ctrl", "a"), ("ctrl", "c")):
        await page.press(keys)
    await page.click(130, 10)
    await page.press(("ctrl", "v"))
    assert await value(page, "one") == ""


async def test_the_wheel_scrolls_at_once(page: Page) -> None:
    await page.scroll("down", 3, (50, 250))
    await page.screenshot()
    assert await page.evaluate("[scrollX, scrollY]") == [0, 159]  # 3 notches of 53 pixels
    await page.scroll("right", 2)
    await page.screenshot()
    assert await page.evaluate("[scrollX, scrollY]") == [106, 159]
    await page.scroll("up", 50)
    await page.screenshot()
    assert await page.evaluate("[scrollX, scrollY]") == [106, 0]


async def test_a_list_can_be_used_with_the_mouse(page: Page) -> None:
    await page.click(128, 188)
    before = await page.screenshot()
    place = await page.evaluate("(o => [o.left + 5, o.top + 5])(list.options[1].getBoundingClientRect())")
    await page.click(*place)
    assert await value(page, "list") == "b"
    assert await page.screenshot() != before


async def test_the_caret_does_not_blink(page: Page) -> None:
    await page.click(130, 10)
    screenshots = set()
    for _ in range(6):
        screenshots.add(await page.screenshot())
        await asyncio.sleep(0.15)
    assert len(screenshots) == 1
