"""One trajectory as a file to send: a page without scripts, with its pictures inside."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from PIL import Image

from uirl.errors import StorageError
from uirl.images import Screenshot
from uirl.runtime.limits import InputError, whole_characters
from uirl.storage import TrajectoryStore

PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"
"""Of the page: whatever the episode holds, no script runs and nothing is loaded."""
PAGE_SIDE = 1280
"""Longest side of the pictures, in pixels."""
_MARK = (230, 40, 60)
_NEVER = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_BETWEEN = "[^\x00-\u02af\u2000-\u206f\\s]"
UNSEEN = re.compile(
    f"[{_NEVER}]"
    # joiners belong between letters of some scripts and between emoji, a selector of a glyph behind what it selects
    f"|[\u200c\u200d](?!{_BETWEEN})|(?<!{_BETWEEN})[\u200c\u200d]"
    "|(?<![^\\s\ufe00-\ufe0f])[\ufe00-\ufe0f]"
)
"""Control characters but for tabs and line ends, and whatever has no glyph: marks of direction, soft hyphens, spaces
without width, joiners where nothing is joined, tags. `lib/format.js` of the pages has the same."""

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; padding: 1rem 0; display: grid; gap: 1rem;
  grid-template-columns: minmax(0, 26rem) minmax(0, 1fr) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 13px/1.45 ui-monospace, monospace }
h1, dd, h3 { overflow-wrap: anywhere } h1 { font-size: 1.4rem }
h2 { font-size: 1rem; margin: 0 0 .5rem } h3 { font-size: .8rem; margin: .8rem 0 .2rem; opacity: .7; font-weight: 600 }
svg { width: 100%; height: auto; border: 1px solid #8886; display: block; margin-bottom: .5rem }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem }
dd { margin: 0 } dt { opacity: .7 }
@media (max-width: 40rem) { section { grid-template-columns: minmax(0, 1fr) } }
"""


def page_of(episode: Mapping[str, Any], store: TrajectoryStore) -> Iterator[bytes]:
    """Return the page of an episode (`episode.episode`) in pieces, a turn each: its pictures need not be in memory
    together. Everything that the episode says is escaped."""
    title = _text(f"{episode['task']['id']} · {episode['id']}")
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY.removesuffix("; sandbox")}">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{_head(episode)}"
    ).encode()
    for turn in episode["turns"]:
        yield _section(turn, store).encode()
    if episode["final"] is not None:
        last = {"observation": episode["final"], "marks": []}
        words = f"<div><h2>At the end</h2>{_seen(last)}</div>"
        yield f"<section><div>{_pictures(last, store)}</div>{words}</section>".encode()
    yield b"</body></html>\n"


def _head(episode: Mapping[str, Any]) -> str:
    verdict, label = episode["verdict"] or {}, episode["label"] or {}
    rows = {
        "goal": episode["task"]["goal"],
        "step": episode["step"],
        "split": episode["split"],
        "success": episode["success"],
        "reward": f"{episode['reward']:g}",
        "ended by": episode["stop_reason"],
        "failure": _joined(episode["failure"]),
        "verdict": None if not verdict else f"{verdict['score']} by {verdict['verifier']}: {verdict['reason']}",
        "right beginning": verdict.get("correct_prefix"),
        "label": None if not label else f"passed: {label['passed']}, error at {label['error_step']} {label['note']}",
        "sampling": _joined(episode["sampling"]),
        "policy": _joined(episode["policy"]),
    }
    lines = [
        f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows.items() if value not in (None, "")
    ]
    return f"<dl>{''.join(lines)}</dl>"


def _section(turn: Mapping[str, Any], store: TrajectoryStore) -> str:
    parts = [
        ("thought", turn["thought"]),
        ("action", turn["action_text"]),
        ("could not be read", turn["parse_error"]),
        *((f"result of {call['name']}", call["result"]) for call in turn["calls"]),
    ]
    told = "".join(f"<h3>{_text(name)}</h3><pre>{_text(value)}</pre>" for name, value in parts if value)
    head = (
        f"Turn {turn['index']} · reward {turn['reward']:g}{' · ' + ', '.join(turn['flags']) if turn['flags'] else ''}"
    )
    body = f"<div>{_pictures(turn, store)}</div><div><h2>{_text(head)}</h2>{_seen(turn)}{told}</div>"
    return f'<section id="turn-{int(turn["index"])}">{body}</section>'


def _seen(turn: Mapping[str, Any]) -> str:
    seen = turn["observation"]
    told = [(f"tool {one['name']}", one["text"]) for one in seen["tool_results"]] + [("saw", seen["text"])]
    return "".join(f"<h3>{_text(name)}</h3><pre>{_text(value)}</pre>" for name, value in told if value)


def _pictures(turn: Mapping[str, Any], store: TrajectoryStore) -> str:
    hashes = turn["observation"]["images"]
    drawn = []
    for place, hash in enumerate(hashes):
        picture = _open(store, hash)
        if picture is None:
            drawn.append("<p>a picture that was not kept</p>")
            continue
        width, height = picture.size
        marks = _svg(turn["marks"], max(width, height)) if place == len(hashes) - 1 else ""
        drawn.append(
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="what the agent saw"><image width="{width}" '
            f'height="{height}" href="{_data(picture)}"/>{marks}</svg>'
        )
    return "".join(drawn)


def _svg(marks: Sequence[Mapping[str, Any]], side: int) -> str:
    radius, stroke = max(4.0, side / 60), max(1.0, side / 300)
    drawn = []
    for mark in marks:
        raw = mark["raw"]
        if raw is None:
            continue
        x, y = raw[0] + 0.5, raw[1] + 0.5  # the middle of the pixel
        drawn.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')
        if len(raw) == 4:
            drawn.append(f'<line x1="{x:g}" y1="{y:g}" x2="{raw[2] + 0.5:g}" y2="{raw[3] + 0.5:g}"/>')
        if mark["text"]:
            drawn.append(f"<title>{_text(mark['kind'])} {_text(mark['text'])}</title>")
    return f'<g fill="none" stroke="rgb{_MARK}" stroke-width="{stroke:g}">{"".join(drawn)}</g>'


def _data(picture: Image.Image) -> str:
    out = io.BytesIO()
    shrunk = picture.copy()
    shrunk.thumbnail((PAGE_SIDE, PAGE_SIDE))
    if shrunk.width * shrunk.height <= 300 * 300:
        shrunk.save(out, format="PNG")
        kind = "png"
    else:
        shrunk.save(out, format="JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def _joined(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)


# -- texts -----------------------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Return a text with its characters that cannot be seen as their codes: `\\u202e`, `\\u{e0041}`."""
    return UNSEEN.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\u{{{number:x}}}"


def _text(value: Any) -> str:
    whole = whole_characters(value if isinstance(value, str) else str(value))
    return escape(visible(whole))


# -- pictures --------------------------------------------------------------------------------------------------------


def _open(store: TrajectoryStore, hash: str) -> Image.Image | None:
    """Return a picture of the store; None: it was not kept, or is none."""
    try:
        return Screenshot(store.image(hash), hash).open()
    except (StorageError, InputError):
        return None
