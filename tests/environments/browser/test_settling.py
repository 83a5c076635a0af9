"""An action is judged by what it did: what comes with the next frame counts for it, not for the action after it."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import PATIENCE
from uirl.environments.browser.web import WebEnvironment
from uirl.types import Action

CLICK = Action.of("click", x=10, y=10)


class Late(WebEnvironment):
    """Everything that happens here happens in a frame after the input for it."""

    html = """<!doctype html><body style="margin:0">
      <button id=button style="display:block;width:90px;height:20px">press</button>
      <a href="#far" style="display:block;height:20px">far</a>
      <input style="display:block;height:20px">
      <div id=inner style="width:90px;height:60px;overflow:scroll"><div style="height:900px"></div></div>
      <div style="height:2000px"></div><p id=far>far</p><div style="height:2000px"></div>
      <script>
        const did = what => { if (!document.title.includes(what)) document.title += ' ' + what; };
        addEventListener('scroll', () => did('page'));
        inner.addEventListener('scroll', () => did('box'));
        button.onclick = () => requestAnimationFrame(() => { did('frame'); setTimeout(() => did('task')); });
        addEventListener('mousemove', e => e.buttons && requestAnimationFrame(() => did('dragged')));
        new IntersectionObserver(seen => seen.some(s => s.isIntersecting) && did('seen')).observe(far);
      </script></body>"""
    goal = "Scroll, or press."
    state = "({did: document.title.split(' ')})"
    actions = ("click", "drag", "keys", "scroll", "type")
    page_size = (200, 200)
    max_turns = 1
    wanted = ""

    def outcome(self, state: object) -> bool | None:
        return self.wanted in state["did"] or None  # type: ignore[index]


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (Action.of("scroll", direction="down", amount=3), "page"),
        (Action.of("scroll", direction="down", amount=3, x=40, y=80), "box"),
        (Action.of("scroll", direction="down", amount=40), "seen"),
        (Action.of("keys", keys="pagedown"), "page"),
        (Action.of("keys", keys="space"), "page"),
        (Action.of("keys", keys="down"), "page"),
        (Action.of("keys", keys="end"), "page"),
        (Action.of("click", x=10, y=30), "page"),
        (Action.of("click", x=10, y=30), "seen"),
        (CLICK, "frame"),
        (CLICK, "task"),
        (Action.of("drag", x=150, y=10, to_x=150, to_y=150), "dragged"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.tool_calls[0].name,
)
async def test_a_task_that_the_last_action_solved_is_solved(action: Action, wanted: str) -> None:
    env = Late()
    env.wanted = wanted
    rewards = []
    for seed in range(5):  # every time, not by luck of a frame
        await env.reset(seed=seed)
        rewards.append((await env.step(action)).reward)
    await env.close()
    assert rewards == [1.0] * 5


class Counting(WebEnvironment):
    """Each press counts, and leads to another document."""

    html = """<body style="margin:0"><button style="width:90px;height:90px"
        onclick="localStorage.n = +(localStorage.n || 0) + 1; location = '/?' + localStorage.n">more</button></body>"""
    goal = "Press."
    state = "({n: +(localStorage.n || 0)})"
    actions = ("click",)
    page_size = (100, 100)

    def reward(self, before: object, now: object) -> float:
        return float(now["n"] - before["n"])  # type: ignore[index]


async def test_an_action_that_leads_away_is_paid_once() -> None:
    env = Counting()
    await env.reset(seed=1)
    rewards = [(await env.step(CLICK)).reward for _ in range(5)]
    await env.close()
    assert rewards == [1.0] * 5


async def test_a_page_that_leaves_and_answers_nobody_is_waited_for_by_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question whether a page has drawn is given up where it leaves: its answer may never come."""
    env = Late()
    await env.reset(seed=1)
    page = env._page
    await page.evaluate("requestAnimationFrame = () => 0")  # the page's own, which is not asked
    await page.settle(drawn=True)
    tab = page.first
    monkeypatch.setattr("uirl.environments.browser.tab.TWO_FRAMES", "new Promise(() => 0)")
    settling = asyncio.ensure_future(page.settle(drawn=True))
    await asyncio.sleep(0.1)
    assert not settling.done()
    monkeypatch.undo()
    tab.on_loading(tab.target, True)
    tab.on_loading(tab.target, False)
    async with asyncio.timeout(PATIENCE):
        await settling
    assert page.broken is None
    await env.close()
