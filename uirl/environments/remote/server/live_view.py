"""A page for people: every session's last picture and how it goes. Read-only."""

from __future__ import annotations

import secrets
from html import escape

from fastapi import APIRouter, Request, Response

from uirl.environments.remote.protocol.native import LiveOverview, SessionSummary
from uirl.environments.remote.protocol.pictures import media_type
from uirl.environments.remote.server.access import may_grade
from uirl.environments.remote.server.native import answer, describe_lease
from uirl.environments.remote.server.problems import NoSession
from uirl.environments.remote.server.sessions import Sessions

_STYLE = """
:root { color-scheme: light dark; --ground: #f4f5f7; --card: #fff; --ink: #1c2330; --soft: #6b7485; --line: #e1e4ea;
  --good: #137a4b; --bad: #b3261e; --accent: #2f5bea; }
@media (prefers-color-scheme: dark) { :root { --ground: #12151b; --card: #1b2029; --ink: #e7eaf0; --soft: #98a1b3;
  --line: #2b3240; --good: #4cc38a; --bad: #ff7b72; --accent: #8ba6ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .3rem 1.2rem; padding: 1.4rem 1.6rem .6rem; }
h1 { margin: 0; font-size: 1.35rem; font-weight: 650; letter-spacing: -.01em; }
#sum { color: var(--soft); }
#bar { flex: 1 0 100%; height: 6px; border-radius: 3px; background: var(--line); overflow: hidden; }
#bar > div { height: 100%; width: 0; background: var(--accent); transition: width .3s; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 1rem;
  padding: 1rem 1.6rem 2rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 12px; overflow: hidden; }
.screen { position: relative; display: grid; place-items: center; aspect-ratio: 16 / 10; background: #0b0d12;
  color: #7d8698; }
.screen img { position: absolute; inset: 0; width: 100%; height: 100%; object-fit: contain; }
.screen img.tiny { image-rendering: pixelated; }
.words { padding: .8rem 1rem .9rem; }
.line { display: flex; justify-content: space-between; gap: .8rem; align-items: baseline; }
.name { font-weight: 600; } .soft { color: var(--soft); font-size: .86rem; }
.cut { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; } .pay { white-space: nowrap; }
.said { margin: .35rem 0 0; max-height: 2.9em; overflow: hidden; overflow-wrap: anywhere; }
.state { font-size: .8rem; font-weight: 600; padding: .1rem .55rem; border-radius: 1rem;
  border: 1px solid currentColor; }
.good { color: var(--good); } .bad { color: var(--bad); } .runs { color: var(--accent); }
#none { grid-column: 1 / -1; padding: 4rem 1rem; text-align: center; color: var(--soft); }
"""

_SCRIPT = """
const main = document.querySelector('main'), cards = new Map();
const part = (tag, name, text) => {
  const e = document.createElement(tag); e.className = name; e.textContent = text || ''; return e;
};
function card(number) {
  const box = part('article', ''), screen = part('div', 'screen', 'no picture'), words = part('div', 'words');
  const top = part('div', 'line'), low = part('div', 'line');
  const own = { box, screen, name: part('span', 'name'), state: part('span', 'state'), said: part('p', 'said'),
    task: part('span', 'soft cut'), pay: part('span', 'soft pay'), how: part('div', 'soft cut'), hash: null };
  top.append(own.name, own.state); low.append(own.task, own.pay);
  words.append(top, low, own.how, own.said);
  box.append(screen, words); main.append(box); cards.set(number, own); return own;
}
function state(s) {
  if (s.broken) return ['broken', 'bad'];
  if (s.terminated && s.success === true) return ['solved', 'good'];
  if (s.terminated) return s.success === false ? ['failed', 'bad'] : ['ended', 'runs'];
  if (s.truncated) return ['cut off', 'bad'];
  return s.episodes ? ['playing', 'runs'] : ['waiting', 'soft'];
}
function show(s) {
  const own = cards.get(s.number) || card(s.number), [word, look] = state(s);
  own.name.textContent = 'Session ' + s.number; own.state.textContent = word; own.state.className = 'state ' + look;
  own.task.textContent = s.task || (s.seed === null ? 'no task' : 'seed ' + s.seed);
  own.pay.textContent = s.total_reward === undefined ? '' : 'reward ' + (+s.total_reward.toFixed(3));
  own.how.textContent = s.door + ' · episode ' + s.episodes + ' · turn ' + s.turns;
  own.said.textContent = s.text;
  if (s.hash && s.hash !== own.hash) {
    const image = new Image(); image.alt = 'screen of session ' + s.number;
    image.onload = () => {
      image.className = image.naturalWidth < 250 ? 'tiny' : ''; own.screen.replaceChildren(image);
    };
    image.src = 'view/screens/' + s.number + '?' + s.hash; own.hash = s.hash;
  }
}
async function look() {
  try {
    const all = await (await fetch('view/sessions')).json(), seen = new Set(all.sessions.map(s => s.number));
    document.getElementById('sum').textContent = all.sessions.length + ' of ' + all.capacity + ' sessions in use';
    document.querySelector('#bar > div').style.width = 100 * all.sessions.length / all.capacity + '%';
    document.getElementById('none').hidden = seen.size > 0;
    for (const [number, own] of cards) if (!seen.has(number)) { own.box.remove(); cards.delete(number); }
    all.sessions.forEach(show);
  } catch (error) { document.getElementById('sum').textContent = 'the server does not answer'; }
  setTimeout(look, 1000);
}
look();
"""

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name} · live</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style nonce="{nonce}">{style}</style></head><body>
<header><h1>{name}</h1><span id="sum">looking …</span><div id="bar"><div></div></div></header>
<main><p id="none" hidden>Nobody is playing. Sessions appear here as clients open them.</p></main>
<script nonce="{nonce}">{script}</script></body></html>"""


class LiveView:
    """The page, and what it asks for."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter()
        router.add_api_route("/view", self.page, methods=["GET"])
        router.add_api_route("/view/sessions", self.listing, methods=["GET"])
        router.add_api_route("/view/screens/{number}", self.screen, methods=["GET"])
        return router

    async def page(self) -> Response:
        nonce = secrets.token_urlsafe(12)
        name = escape(self.sessions.settings.environment)
        page = _PAGE.format(name=name, nonce=nonce, style=_STYLE, script=_SCRIPT)
        policy = (
            f"default-src 'none'; img-src 'self'; connect-src 'self'; style-src 'nonce-{nonce}'; "
            f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(page, media_type="text/html", headers=headers)

    async def listing(self, request: Request) -> Response:
        """The sessions without their ids; what they earned for graders alone."""
        leases = [describe_lease(lease, graded=may_grade(request)) for lease in self.sessions.active]
        for fields in leases:
            fields.pop("session", None)
        sessions = [SessionSummary.model_construct(**fields) for fields in leases]
        return answer(LiveOverview.model_construct(sessions=sessions, capacity=self.sessions.settings.sessions))

    async def screen(self, number: int) -> Response:
        """The last picture of a session."""
        for lease in self.sessions.active:
            if lease.number == number and lease.picture is not None:
                data = lease.picture.data
                headers = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
                return Response(data, media_type=media_type(data), headers=headers)
        raise NoSession("no such session, or it shows no picture")
