"""Element actions that went wrong in other tools, as their users reported: here they work, or the policy is told.

Each page is the smallest that shows what the report is about. What is expected is what a person at the page would get,
or a tool that can be relied on. `report`: an issue or a pull request on GitHub, or W1 to W7, which are our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui.actions import ACTIONS
from uirl.types import Action

HEAD = """<!doctype html><style>body { margin: 0; font: 13px/20px monospace } p { margin: 0 }</style><script>
function done() { document.title = 'done'; }
function changed() { document.title = 'changed'; }
function came(event) { if (event.clientX > 1) changed(); }
</script>"""
"""Of every page: `done` solves it, `changed` is for what must not happen, and `came` for a pointer that must not come,
other than to the corner, where it is at first."""
TREE = {"marks": True, "tree": 1500}
UNLISTED = 9999
"""The number of what the tree does not number."""
MOST_WAITS = 40
"""Of a tenth of a second, for a page that is to be solved."""
FEW_WAITS = 3
"""For one that must not change."""


class ReportPage(WebEnvironment):
    """One of the pages: solved where its title says 'done', failed where it says 'changed'."""

    goal = "Get it done."
    state = "({title: document.title})"
    actions = tuple(ACTIONS)
    page_size = (240, 160)
    max_turns = 1000
    uploads = {"mine.txt": "of mine"}  # noqa: RUF012

    def __init__(self, html: str, frame: str, **options: Any) -> None:
        super().__init__(**options)
        self.html = HEAD + html
        self.files = {"/frame.html": HEAD + frame}

    def outcome(self, state: Mapping[str, Any]) -> bool | None:
        return {"done": True, "changed": False}.get(state["title"])


@dataclass(frozen=True)
class Report:
    """What was reported, a page that shows it, what a policy does there, and what comes of it."""

    name: str
    report: str
    html: str
    play: tuple[Mapping[str, Any], ...]
    """Actions as a policy writes them; a `mark` in words is the number that the tree gives to them."""
    told: str = ""
    """A pattern in what the policy is told, while nothing must change; empty: the actions solve the page."""
    frame: str = ""
    """The page at /frame.html."""
    options: Mapping[str, Any] = field(default_factory=lambda: TREE)


def do(name: str, **arguments: Any) -> Mapping[str, Any]:
    return {"action": name, **arguments}


def click(mark: str, **more: Any) -> Mapping[str, Any]:
    return do("click", mark=mark, **more)


def fill(value: str, x: int = 20, y: int = 10) -> Mapping[str, Any]:
    return do("fill", x=x, y=y, value=value)


def keys(chord: str) -> Mapping[str, Any]:
    return do("keys", keys=chord)


def at(x: int, y: int, name: str = "click") -> Mapping[str, Any]:
    return do(name, x=x, y=y)


HEADER = """<div style="position:fixed;top:0;width:100%;height:60px"><button style="width:100%;height:60px"
  onclick="changed()" onmousemove="came(event)" onmousedown="changed()">menu</button></div>"""
BANNER = """<div style="position:fixed;inset:0;background:#fffc"><button style="width:100%;height:100%"
  onmousemove="came(event)" onmousedown="changed()" onclick="changed()">agree</button></div>"""
SHORT = '<div style="height:30px"></div>'
TALL = '<div style="height:700px"></div>'
COVERED = [
    Report(
        "a row under a fixed header, where no scrolling helps",
        "W2 cypress-io/cypress#537",
        f'{SHORT}<button style="display:block;height:20px" onclick="changed()">row</button>{TALL}{HEADER}',
        (click("row"),),
        "covered",
    ),
    Report(
        "a row under a fixed header, from which scrolling frees it",
        "W2 puppeteer/puppeteer#12726",
        f'<body onload="scrollTo(0, 720)">{TALL}{SHORT}<button onclick="done()">row</button>{TALL}{HEADER}',
        (click("row"),),
    ),
    Report(
        "the same on a page that scrolls smoothly",
        "microsoft/playwright#42625",
        f"""<style>html {{ scroll-behavior: smooth }}</style><body onload="scrollTo({{top: 720, behavior: 'instant'}})">
        {TALL}{SHORT}<button onclick="done()">row</button>{TALL}{HEADER}""",
        (click("row"),),
    ),
    Report(
        "a row half under a header",
        "microsoft/playwright#3105",
        f'{SHORT}<button style="display:block;height:60px" onclick="done()">row</button>{HEADER}',
        (click("row"),),
    ),
    Report(
        "a row that scrolling brings under a sticky header",
        "cypress-io/cypress#5801",
        f"""<div style="position:sticky;top:0"><button style="width:100%;height:60px" onclick="changed()">menu</button>
        </div>{TALL}<button onclick="done()">row</button>{TALL}""",
        (click("row"),),
    ),
    Report(
        "a row right below a sticky header",
        "getgauge/taiko#2234",
        """<div style="position:sticky;top:0"><button style="width:100%;height:100px" onclick="changed()">menu</button>
        </div><div style="height:2000px"><button onclick="done()">row</button></div>""",
        (click("row"),),
    ),
    Report(
        "a row under the sticky header of a window in the page",
        "cypress-io/cypress#4233",
        f"""<body onload="box.scrollTop = 740"><div id="box" style="position:fixed;inset:10px;overflow:auto">
        <div style="position:sticky;top:0"><button style="width:100%;height:50px" onclick="changed()">menu</button>
        </div>{TALL}<button style="display:block" onclick="done()">row</button>{TALL}</div>""",
        (click("row"),),
    ),
    Report(
        "a button under a banner",
        "W2 vercel-labs/agent-browser#1434",
        f'<button onclick="changed()">buy</button>{BANNER}',
        (click("buy"),),
        "covered",
    ),
    Report(
        "a tab under a search result",
        "W2 OSU-NLP-Group/SeeAct#41",
        """<button style="width:80px" onclick="changed()">books</button><div style="position:absolute;top:0;left:0">
        <a style="display:block;width:100px;height:60px;background:#fff" href="#" onclick="changed()">result</a>
        </div>""",
        (click("books"),),
        "covered",
    ),
    Report(
        "the pointer onto what is covered",
        "W2",
        f'<button onmousemove="changed()">buy</button>{BANNER}',
        (do("move", mark="buy"),),
        "covered",
    ),
    Report(
        "dragging what is covered",
        "W2",
        f"""<div draggable="true" style="width:60px;height:30px" onmousedown="changed()">card</div>{HEADER}
        <div tabindex="0" style="position:absolute;top:100px;width:60px;height:30px">place</div>""",
        (do("drag", mark="card", to_mark="place"),),
        "covered",
    ),
    Report(
        "dragging onto what is covered",
        "W2",
        f"""<div tabindex="0" style="width:60px;height:30px">place</div>{HEADER}<div draggable="true"
        style="position:absolute;top:100px;width:60px;height:30px" onmousedown="changed()">card</div>""",
        (do("drag", mark="card", to_mark="place"),),
        "covered",
    ),
    Report(
        "files for a button that is covered",
        "W2",
        f"""<input type="file" id="f" hidden onchange="changed()"><button onclick="f.click()">add</button>{BANNER}""",
        (do("upload", mark="add", files="mine.txt"),),
        "covered",
    ),
    Report(
        "a button that the mouse goes through",
        "microsoft/playwright#2403",
        '<div onmousedown="changed()"><button style="pointer-events:none">buy</button></div>',
        (click("buy"),),
        "covered|mouse|no mark",
    ),
    Report(
        "a button in an inert part of the page",
        "microsoft/playwright#36938",
        '<div onclick="changed()"><div inert><button>buy</button></div></div>',
        (click("buy"),),
        "covered|inert|no mark",
    ),
    Report(
        "a drawer outside of the window",
        "microsoft/playwright#37622",
        '<div style="position:fixed;left:300px"><button onclick="changed()">settings</button></div>',
        (click("settings"),),
        "scrolled into view|no mark",
    ),
    Report(
        "a field in what is folded",
        "microsoft/playwright#20610",
        '<details><summary>Open</summary><label>Secret <input oninput="changed()"></label></details>',
        (do("fill", mark="Secret", value="a"),),
        "not drawn|no mark",
    ),
]
SHAPES = [
    Report(
        "a link of two lines, in a paragraph",
        "SeleniumHQ/selenium#3167",
        """<p onclick="if (event.target === this) changed()">some words before <a href="#" onclick="done()">ab<br>cd</a>
        and some words after</p>""",
        (click("link"),),
    ),
    Report(
        "a link of two lines that are far apart",
        "chromedp/chromedp#435",
        """<p onclick="if (event.target === this) changed()"><a href="#" style="line-height:4" onclick="done()">
        long link<br>long link</a></p>""",
        (click("link"),),
    ),
    Report(
        "a link around two circles",
        "chromedp/chromedp#435",
        """<svg width="60" height="120" onclick="if (event.target === this) changed()"><a href="#" aria-label="two"
        onclick="done()"><circle cx="30" cy="25" r="20"/><circle cx="30" cy="95" r="20"/></a></svg>""",
        (click("two"),),
    ),
    Report(
        "a shape with a hole",
        "puppeteer/puppeteer#4432",
        """<body onclick="if (event.target.localName === 'svg') changed()"><svg width="120" height="120"><path
        role="button" aria-label="ring" fill-rule="evenodd" d="M0 0H120V120H0ZM20 20H100V100H20Z" onclick="done()"/>
        </svg>""",
        (click("ring"),),
    ),
    Report(
        "a line that is drawn",
        "microsoft/playwright#15271",
        """<svg width="200" height="100"><path role="button" aria-label="line" d="M10 50H190" stroke="#000"
        stroke-width="20" onclick="done()"/></svg>""",
        (click("line"),),
    ),
    Report(
        "a part of a picture",
        "microsoft/playwright#16364",
        """<img usemap="#m" width="200" height="100" onclick="changed()" alt="map"
        src="data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7">
        <map name="m"><area shape="rect" coords="120,0,200,100" href="#" alt="region" onclick="done()"></map>""",
        (click("region"),),
    ),
    Report(
        "a link without a size, around a picture that has one",
        "microsoft/playwright#31335",
        """<a href="#" aria-label="English" style="display:block;width:0;height:0" onclick="done()"><span
        style="display:block;width:60px;height:30px;background:#36c"></span></a>""",
        (click("English"),),
    ),
    Report(
        "a button without a box",
        "microsoft/playwright#15034",
        '<p>words <button style="display:contents" onclick="done()">press</button></p>',
        (click("press"),),
    ),
    Report(
        "a component of the page",
        "vercel-labs/agent-browser#1434",
        """<x-button onclick="done()"></x-button><script>customElements.define('x-button', class extends HTMLElement {
        constructor() { super(); this.attachShadow({mode: 'open'}).innerHTML = '<button>buy</button>'; } })</script>""",
        (click("buy"),),
    ),
    Report(
        "what unfolds",
        "Codeception/module-webdriver#18",
        '<details ontoggle="done()"><summary>more</summary>words</details>',
        (click("more"),),
    ),
    Report(
        "a page at another zoom",
        "nightwatchjs/nightwatch#2724",
        """<body style="zoom:2" onclick="changed()"><button style="margin:30px 0 0 50px;width:30px"
        onclick="event.stopPropagation(); done()">buy</button>""",
        (click("buy"),),
    ),
    Report(
        "a button at another zoom",
        "microsoft/playwright#21192",
        f'{TALL}<button style="zoom:50%" onclick="done()">buy</button>',
        (click("buy"),),
    ),
    Report(
        "a page that scrolls smoothly",
        "SeleniumHQ/selenium#8295",
        f'<style>html {{ scroll-behavior: smooth !important }}</style>{TALL}<button onclick="done()">buy</button>',
        (click("buy"),),
    ),
    Report(
        "a button that slides in",
        "microsoft/playwright#16048",
        """<style>.go { animation: go 1s forwards } @keyframes go { to { transform: translateX(150px) } }</style>
        <div style="height:160px" onclick="if (event.target === this) changed()"><button onclick="row.className = 'go'">
        open</button><br><button id="row" onclick="done()">row</button></div>""",
        (click("open"), click("row")),
    ),
    Report(
        "a button that never keeps still",
        "chromedp/chromedp#533",
        """<style>button { animation: go 1s linear infinite alternate }
        @keyframes go { to { transform: translate(150px, 120px) } }</style>
        <div style="height:160px" onclick="changed()"><button>row</button></div>""",
        (click("row"),),
        "still",
    ),
    Report(
        "a button that beats in its place",
        "microsoft/playwright#13628",
        """<style>button { animation: beat .5s infinite alternate } @keyframes beat { to { transform: scale(1.3) } }
        </style><button style="margin:40px;height:40px" onclick="done()">row</button>""",
        (click("row"),),
    ),
    Report(
        "a button in a frame that is drawn small",
        "microsoft/playwright#18245",
        """<iframe src="/frame.html" style="width:400px;height:240px;border:0;transform:scale(.5);transform-origin:0 0">
        </iframe>""",
        (click("deep"),),
        frame=f'{TALL}<button onclick="top.done()">deep</button>',
    ),
    Report(
        "a field in a frame that is drawn small",
        "microsoft/playwright#18245",
        """<iframe src="/frame.html" style="width:400px;height:240px;border:0;transform:scale(.5);transform-origin:0 0">
        </iframe>""",
        (fill("Ada", 140, 60),),
        frame="""<input style="position:absolute;left:200px;top:100px;width:150px;height:40px"
        oninput="if (this.value === 'Ada') top.done()">""",
    ),
    Report(
        "a field in a frame with borders and padding",
        "microsoft/playwright#18926",
        '<iframe src="/frame.html" style="width:180px;height:100px;border:5px solid;padding:20px"></iframe>',
        (fill("Ada", 60, 35),),
        frame="""<input style="position:absolute;left:0;top:0;height:20px;box-sizing:border-box"
        oninput="if (this.value === 'Ada') top.done()"><input style="position:absolute;left:0;top:22px"
        oninput="top.changed()">""",
    ),
    Report(
        "a field in a frame at another zoom",
        "microsoft/playwright#22085",
        '<div style="zoom:2"><iframe src="/frame.html" style="width:120px;height:80px;border:0"></iframe></div>',
        (fill("Ada", 150, 80),),
        frame="""<input style="position:absolute;left:50px;top:30px;width:60px;height:20px"
        oninput="if (this.value === 'Ada') top.done()">""",
    ),
    Report(
        "a field in a frame upside down",
        "aidenybai/react-grab#537",
        '<iframe src="/frame.html" style="width:240px;height:160px;border:0;transform:rotate(180deg)"></iframe>',
        (fill("Ada", 200, 140),),
        frame="""<input style="position:absolute;left:0;top:0;width:90px;height:40px"
        oninput="if (this.value === 'Ada') top.done()"><input oninput="top.changed()"
        style="position:absolute;left:140px;top:110px;width:90px;height:40px">""",
    ),
]
BOXES = [
    Report(
        "a box to tick under the words of its label",
        "microsoft/playwright#15420",
        """<input type="checkbox" id="c" style="opacity:0;width:20px;height:20px" onchange="done()"><label for="c"
        style="position:absolute;left:0;top:0;width:100px;height:30px;background:#fff">Monday</label>""",
        (click("checkbox"),),
    ),
    Report(
        "a box to choose under a picture in its label",
        "microsoft/playwright#13576",
        """<label style="display:block;position:relative;width:20px;height:20px"><input type="radio" onchange="done()"
        style="position:absolute;opacity:0;inset:0;margin:0"><span
        style="position:absolute;inset:0;background:#36c"></span></label>""",
        (click("radio"),),
    ),
    Report(
        "a box to tick that is hidden behind its label",
        "vercel-labs/agent-browser#1434",
        """<label><input type="checkbox" style="position:absolute;width:1px;height:1px;clip-path:inset(50%)"
        onchange="done()"><span style="margin-left:20px">I agree</span></label>""",
        (click("checkbox"),),
    ),
    Report(
        "a box to tick with a link in the middle of its label",
        "microsoft/playwright#6057",
        """<label style="display:block;width:200px"><input type="checkbox" onchange="done()"><span>I accept all
        <a href="#" onclick="changed()">the terms of use</a> here</span></label>""",
        (click("checkbox"),),
    ),
    Report(
        "a list, by its options in the page",
        "microsoft/playwright#15626",
        """<select onchange="if (this.value === 'two') done()"><option>one<option>two</select>""",
        (click("combobox"), click("two")),
    ),
    Report(
        "an option in a group",
        "microsoft/playwright#31006",
        """<select onchange="if (this.value === 'blue') done()"><optgroup label="warm"><option>red</optgroup>
        <optgroup label="cold"><option>blue</optgroup></select>""",
        (do("select", x=20, y=10, options="blue"),),
    ),
    Report(
        "an option that is disabled",
        "microsoft/playwright#36418",
        '<select onchange="changed()"><option>red<option disabled>blue</select>',
        (do("select", x=20, y=10, options="blue"),),
        "disabled|no option",
    ),
    Report(
        "an option in a group that is disabled",
        "cypress-io/cypress#7226",
        """<select onchange="changed()"><option>red<optgroup disabled label="cold"><option>blue</optgroup></select>""",
        (do("select", x=20, y=10, options="blue"),),
        "disabled|no option",
    ),
    Report(
        "a list that is disabled",
        "W1",
        '<select disabled onchange="changed()"><option>red<option>blue</select>',
        (do("select", x=20, y=10, options="blue"),),
        "disabled",
    ),
    Report(
        "a list in a group of fields that is disabled",
        "W1 SeleniumHQ/selenium#30",
        """<fieldset disabled style="border:0;margin:0;padding:0"><select onchange="changed()"><option>red<option>blue
        </select></fieldset>""",
        (do("select", x=20, y=10, options="blue"),),
        "disabled",
    ),
    Report(
        "a button that clicks a hidden field for files",
        "executeautomation/mcp-playwright#154",
        """<input type="file" id="f" style="display:none" onchange="if (this.files[0].name === 'mine.txt') done()">
        <button onclick="f.click()">add</button>""",
        (do("upload", mark="add", files="mine.txt"),),
    ),
    Report(
        "a label of a hidden field for files",
        "microsoft/playwright-dotnet#2452",
        """<input type="file" id="f" style="display:none" onchange="if (this.files[0].name === 'mine.txt') done()">
        <label for="f">pick</label>""",
        (do("upload", x=10, y=10, files="mine.txt"),),
    ),
]
FIELDS = [
    Report(
        "a field in a group of fields that is disabled",
        "W1 microsoft/playwright#9927",
        """<fieldset disabled style="border:0;margin:0;padding:0"><input oninput="changed()"></fieldset>
        <input autofocus oninput="changed()">""",
        (fill("Ada"),),
        "disabled",
    ),
    Report(
        "a field in the legend of such a group",
        "microsoft/playwright#35041",
        """<fieldset disabled style="border:0;margin:0;padding:0"><legend style="padding:0"><input
        oninput="if (this.value === 'Ada') done()"></legend></fieldset>""",
        (fill("Ada"),),
    ),
    Report(
        "a field that hands the focus to another",
        "W1",
        '<input style="display:block" onfocus="other.focus()"><input id="other" oninput="changed()">',
        (fill("Ada"),),
        "keyboard|focus",
    ),
    Report(
        "a field that hands the focus to another in a moment",
        "W1",
        """<input style="display:block" onfocus="setTimeout(() => other.focus())"><input id="other"
        oninput="changed()">""",
        (fill("Ada"),),
        "keyboard|focus",
    ),
    Report(
        "a field that can only be read",
        "microsoft/playwright#12356",
        '<input readonly value="2022-02-25" oninput="changed()">',
        (fill("2021-02-22"),),
        "read",
    ),
    Report(
        "a date in other words",
        "W3 citrolabs/ego-lite#190",
        """<input type="date" value="2024-01-01" id="day" oninput="changed()" onchange="changed()"><script>
        setInterval(() => { if (day.value !== '2024-01-01') changed(); }, 10)</script>""",
        (fill("May 6"),),
        "date",
    ),
    Report(
        "a time that there is not",
        "W3 citrolabs/ego-lite#190",
        """<input type="time" value="10:00" id="hour" oninput="changed()" onchange="changed()"><script>
        setInterval(() => { if (hour.value !== '10:00') changed(); }, 10)</script>""",
        (fill("25:00"),),
        "time",
    ),
    Report(
        "a color in capitals",
        "W3 microsoft/playwright#38574",
        """<input type="color" oninput="this.came = true" onchange="if (this.came && this.value === '#ff0000') done()">
        """,
        (fill("#FF0000"),),
    ),
    Report(
        "a number with the sign of a currency",
        "microsoft/playwright#31669",
        """<input type="number" value="5" id="sum" oninput="changed()"><script>
        setInterval(() => { if (sum.value !== '5') changed(); }, 10)</script>""",
        (fill("£20"),),
        "number",
    ),
    Report(
        "a number below its limit",
        "microsoft/playwright#14028",
        """<input type="number" max="60" value="60" oninput="if (this.value === '20') done()">""",
        (fill("20"),),
    ),
    Report(
        "a field by the words of its label",
        "microsoft/playwright#5256",
        """<label><span>Name</span> <input oninput="if (this.value === 'Ada') done()"></label>""",
        (fill("Ada", 10),),
    ),
    Report(
        "an editor of several paragraphs",
        "W6 browser-use/browser-harness#570",
        """<div contenteditable oninput="if (this.innerText.trim() === 'new') done()"><p>one</p><p>two</p>
        <p>three</p></div>""",
        (fill("new", 10, 30),),
    ),
    Report(
        "an editor, by bold words in it",
        "W6",
        """<div contenteditable oninput="if (this.innerText.trim() === 'new') done()"><p>one</p>
        <p><b>two</b></p></div>""",
        (fill("new", 10, 30),),
    ),
    Report(
        "an editor within a part of another that cannot be edited",
        "W6",
        """<div contenteditable id="outer"><p>kept</p><div contenteditable="false"><div contenteditable
        oninput="if (this.innerText.trim() === 'new' && outer.innerText.includes('kept')) done()">old</div></div></div>
        """,
        (fill("new", 10, 30),),
    ),
    Report(
        "an editor in a button",
        "microsoft/playwright#29813",
        """<div role="button" tabindex="0"><div contenteditable
        oninput="if (this.innerText.trim() === 'new') done()">old</div></div>""",
        (fill("new", 10),),
    ),
    Report(
        "typing signs beyond the first plane",
        "citrolabs/ego-lite#219",
        """<input oninput="if (this.value === 'a😀b') done()">""",
        (at(20, 10), do("type", text="a😀b")),
    ),
    Report(
        "typing signs that no key has",
        "microsoft/playwright#26850",
        """<input oninput="if (this.value === '《好》') done()">""",
        (at(20, 10), do("type", text="《好》")),
    ),
    Report(
        "an alert during a click",
        "microsoft/playwright#2200",
        """<button onclick="alert('one'); done()">go</button>""",
        (click("go"),),
    ),
    Report(
        "a question during a click",
        "VibiumDev/vibium#151",
        """<button onclick="if (confirm('sure?')) done()">go</button>""",
        (click("go"), do("dialog", choice="ok")),
    ),
    Report(
        "a question while a field is filled",
        "VibiumDev/vibium#151",
        """<input oninput="if (confirm('sure?')) done()">""",
        (fill("Ada"), do("dialog", choice="ok")),
    ),
    Report(
        "a question while an option is chosen",
        "VibiumDev/vibium#151",
        """<select onchange="if (confirm('sure?')) done()"><option>red<option>blue</select>""",
        (do("select", x=20, y=10, options="blue"), do("dialog", choice="ok")),
    ),
]
ROOM = 'style="width:240px;height:160px"'
SHIFTED = """onmousedown="this.n = event.shiftKey ? 1 : changed()" onmousemove="this.n && !event.shiftKey && changed()"
  onmouseup="event.shiftKey ? done() : changed()" """
HANDS = [
    Report(
        "moves while a button is held",
        "W4 rubycdp/ferrum#508",
        f"""<div {ROOM} onmousedown="this.n = 1" onmouseup="if (this.n > 1) done()"
        onmousemove="if (this.n) event.buttons === 1 ? this.n++ : changed()"></div>""",
        (at(20, 50, "mouse_down"), at(60, 50, "move"), at(100, 50, "move"), at(120, 50, "mouse_up")),
    ),
    Report(
        "a drag while a key is held",
        "W4",
        f"<div {ROOM} {SHIFTED}></div>",
        (do("key_down", key="shift"), do("drag", x=20, y=50, to_x=120, to_y=50)),
    ),
    Report(
        "a button that is held while a key is",
        "W4",
        f"<div {ROOM} {SHIFTED}></div>",
        (do("key_down", key="shift"), at(20, 50, "mouse_down"), at(60, 50, "move"), at(120, 50, "mouse_up")),
    ),
    Report(
        "the wheel while a key is held",
        "W4 cefsharp/CefSharp#1536",
        f'<div {ROOM} onwheel="event.shiftKey ? done() : changed()"></div>',
        (do("key_down", key="shift"), do("scroll", direction="down", x=20, y=50)),
    ),
    Report(
        "a click by number while a key is held",
        "W4",
        '<button onclick="event.shiftKey ? done() : changed()">row</button>',
        (do("key_down", key="shift"), click("row")),
    ),
    Report(
        "a drag by number while a key is held",
        "W4",
        f'<div tabindex="0" {ROOM} {SHIFTED}><button>card</button> <button>place</button></div>',
        (do("key_down", key="shift"), do("drag", mark="card", to_mark="place")),
    ),
    Report(
        "a place that has to be dragged over before it takes anything",
        "microsoft/playwright#17153",
        """<div draggable="true" style="width:60px;height:30px">card</div><div ondragenter="this.n = 1"
        ondragover="event.preventDefault(); if (this.n) this.over = true" ondrop="if (this.over) done()"
        style="position:absolute;left:120px;top:80px;width:60px;height:60px"></div>""",
        (do("drag", x=20, y=15, to_x=150, to_y=110),),
    ),
    Report(
        "dragging a link",
        "YusukeIwaki/playwright-ruby-client#120",
        """<a href="/x">link</a><div ondragover="event.preventDefault()" ondrop="event.preventDefault();
        if (event.dataTransfer.getData('text/uri-list').endsWith('/x')) done()"
        style="position:absolute;left:120px;top:80px;width:60px;height:60px"></div>""",
        (do("drag", x=10, y=10, to_x=150, to_y=110),),
    ),
    Report(
        "dragging to what is below the fold",
        "YusukeIwaki/playwright-ruby-client#120",
        f"""<div draggable="true" style="width:60px;height:30px">card</div>{TALL}<div tabindex="0" ondrop="done()"
        ondragover="event.preventDefault()" style="width:60px;height:60px">place</div>""",
        (do("drag", mark="card", to_mark="place"),),
    ),
]
CODE = """<input id="to" style="position:absolute;left:0;top:80px;width:80px;height:20px"
  oninput="if (this.value === 'code') done()">"""
PASTE = (at(20, 90), keys("ctrl+v"))
BOX = '<input class="b" maxlength="1" style="width:20px" onpaste="spread(event)">'
CLIPBOARD = [
    Report(
        "pasting what was copied in a frame",
        "W5",
        f'<iframe src="/frame.html" style="width:200px;height:40px;border:0"></iframe>{CODE}',
        (at(20, 10), keys("ctrl+a"), keys("ctrl+c"), *PASTE),
        frame='<input value="code">',
    ),
    Report(
        "pasting what a button copied by a command",
        "W5 microsoft/playwright#8114",
        f"""<input id="from" value="code" style="display:block"><button
        onclick="from.select(); document.execCommand('copy')">copy</button>{CODE}""",
        (click("copy"), *PASTE),
    ),
    Report(
        "pasting what a button wrote as an item",
        "W5",
        f"""<button onclick="navigator.clipboard.write([new ClipboardItem({{'text/plain': new Blob(['code'],
        {{type: 'text/plain'}})}})])">copy</button>{CODE}""",
        (click("copy"), *PASTE),
    ),
    Report(
        "pasting what the page copied in the place of the words",
        "W5",
        f"""<input value="words" style="display:block" oncopy="event.clipboardData.setData('text/plain', 'code');
        event.preventDefault()">{CODE}""",
        (at(20, 10), keys("ctrl+a"), keys("ctrl+c"), *PASTE),
    ),
    Report(
        "pasting a code into four boxes",
        "W5 microsoft/playwright#33995",
        f"""<input value="1234" style="display:block">{BOX * 4}<script>function spread(event) {{
        const boxes = [...document.querySelectorAll('.b')], text = event.clipboardData.getData('text');
        event.preventDefault();
        if (!event.isTrusted) return;
        boxes.forEach((box, place) => {{ box.value = text[place] || ''; }});
        if (boxes.map(box => box.value).join('') === '1234') done();
        }}</script>""",
        (at(20, 10), keys("ctrl+a"), keys("ctrl+c"), at(10, 32), keys("ctrl+v")),
    ),
]
EDITOR = "<div contenteditable{0} oninput=\"if (this.innerText.trim() === 'new') done()\">words</div>"
NUMBERED = [
    Report(
        "a part with a handler", "W7 qutebrowser/qutebrowser#8543", '<div onclick="done()">row</div>', (click("row"),)
    ),
    Report("the same below the fold", "W7", f'{TALL}<div onclick="done()">row</div>', (click("row"),)),
    Report(
        "the same below the fold, among other parts",
        "W7",
        f'<p>words</p>{TALL}<p>words</p><div onclick="done()">row</div><div>others</div>',
        (click("row"),),
    ),
    Report(
        "a field as large as a part around it that takes the keyboard",
        "W7",
        """<div tabindex="0" style="width:100px"><input style="display:block;width:100px;height:20px;border:0;padding:0"
        oninput="if (this.value === 'new') done()"></div>""",
        (do("fill", mark="textbox", value="new"),),
    ),
    Report(
        "a part whose handler a script gave it",
        "browser-use/browser-use#1824",
        """<p id="row" style="cursor:default">row</p><script>row.onclick = done</script>""",
        (click("row"),),
    ),
    Report(
        "a part that takes the keyboard",
        "W7",
        """<div tabindex="0" onkeydown="if (event.key === 'Enter') done()">row</div>""",
        (do("focus", mark="row"), keys("enter")),
    ),
    Report(
        "the same below the fold, clicked",
        "W7",
        f"""{TALL}<div tabindex="0" onkeydown="if (event.key === 'Enter') done()">row</div>""",
        (click("row"), keys("enter")),
    ),
    Report(
        "an editor by its number",
        "W7 browser-use/browser-use#1548",
        EDITOR.format(""),
        (do("fill", mark="words", value="new"),),
    ),
    Report(
        "an editor below the fold by its number",
        "W7 shaun0927/openchrome#72",
        TALL + EDITOR.format(""),
        (do("fill", mark="words", value="new"),),
    ),
    Report(
        "an editor of plain text by its number",
        "W7",
        EDITOR.format('="plaintext-only"'),
        (do("fill", mark="words", value="new"),),
    ),
    Report(
        "an editor that says what it is, by its number",
        "W7 anomalyco/browser-control#76",
        EDITOR.format(' role="textbox" aria-label="Headline"'),
        (do("fill", mark="Headline", value="new"),),
    ),
]
REPORTS = [*COVERED, *SHAPES, *BOXES, *FIELDS, *HANDS, *CLIPBOARD, *NUMBERED]


def numbered(written: Mapping[str, Any], tree: str) -> dict[str, Any]:
    """The arguments, with the number from the tree for what is named in words."""
    found = {
        name: re.search(rf"{re.escape(words)}[^\n]*\[(\d+)\]", tree)
        for name, words in written.items()
        if name in ("mark", "to_mark") and isinstance(words, str)
    }
    return {**written, **{name: int(one[1]) if one else UNLISTED for name, one in found.items()}}


async def played(report: Report) -> tuple[bool | None, str]:
    """Play a report: whether the page is solved (False: it changed, None: neither), and all that was told."""
    env = ReportPage(report.html, report.frame, **report.options)
    waits = [do("wait", seconds=0.1)] * (FEW_WAITS if report.told else MOST_WAITS)
    told = []
    try:
        await env.reset(seed=1)
        for action in (*report.play, *waits):
            written = numbered(action, env.accessibility)
            result = await env.step(Action.of(written.pop("action"), **written))
            told.append(result.observation.text.removesuffix(env.accessibility).strip())
            if result.done:
                return bool(result.observation.info["success"]), "\n".join(filter(None, told))
        return None, "\n".join(filter(None, told))
    finally:
        await env.close()


@pytest.mark.parametrize("report", REPORTS, ids=[f"{report.report}: {report.name}" for report in REPORTS])
async def test_what_went_wrong_elsewhere_works_or_is_told(report: Report) -> None:
    solved, told = await played(report)
    if report.told:
        assert solved is None, f"it changed; told: {told!r}"
        assert re.search(report.told, told), f"told: {told!r}"
    else:
        assert solved is True, f"{'it changed' if solved is False else 'nothing came of it'}; told: {told!r}"


def test_no_two_reports_have_one_name() -> None:
    names = [report.name for report in REPORTS]
    assert sorted(set(names)) == sorted(names)
