"""One trajectory in a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from uirl.runtime.limits import whole_characters
from uirl.viewer.unseen import UNSEEN

WIDTH = 100
LONGEST = 4000
"""Characters of one text that are printed; the page shows all."""


def text_of(episode: Mapping[str, Any], width: int = WIDTH) -> Iterator[str]:
    """Return the lines of an episode (`episode.episode`). What it says moves no cursor: control characters stand as
    \\x1b."""
    return (one_line(line) for line in _lines(episode, width))


def _lines(episode: Mapping[str, Any], width: int) -> Iterator[str]:
    yield f"{episode['id']}  task {episode['task']['id']}  step {episode['step']}  {episode['split']}"
    if episode["task"]["goal"]:
        yield from _block("goal", episode["task"]["goal"], width)
    for turn in episode["turns"]:
        yield ""
        flags = f"  [{', '.join(turn['flags'])}]" if turn["flags"] else ""
        yield f"--- turn {turn['index']}  reward {turn['reward']:g}  {turn['response_tokens']} tokens{flags} ".ljust(
            width, "-"
        )
        yield from _seen(turn["observation"], width)
        yield from _block("thought", turn["thought"], width)
        yield from _block("action", turn["action_text"], width)
        yield from _block("could not be read", turn["parse_error"] or "", width)
        for call in turn["calls"]:
            if call["result"] is not None:
                yield from _block(f"{'result' if call['success'] else 'refused'} {call['name']}", call["result"], width)
    if episode["final"] is not None:
        yield ""
        yield "--- at the end ".ljust(width, "-")
        yield from _seen(episode["final"], width)
    yield ""
    yield from _end(episode, width)


def _seen(seen: Mapping[str, Any], width: int) -> Iterator[str]:
    for one in seen["tool_results"]:
        yield from _block(f"tool {one['name']}", one["text"], width)
    yield from _block("saw", seen["text"], width)
    if seen["images"]:
        yield from _block("pictures", ", ".join(seen["images"]), width)


def _end(episode: Mapping[str, Any], width: int) -> Iterator[str]:
    yield f"ended by {episode['stop_reason']}  reward {episode['reward']:g}  success {_word(episode['success'])}"
    if episode["failure"]:
        yield from _block(f"failure {episode['failure']['kind']}", episode["failure"]["message"], width)
    verdict = episode["verdict"]
    if verdict:
        said = f"{'passed' if verdict['passed'] else 'not passed'} ({verdict['score']:g}) by {verdict['verifier']}"
        prefix = "" if verdict["correct_prefix"] is None else f", right up to turn {verdict['correct_prefix']}"
        yield from _block("verdict", f"{said}{prefix}: {verdict['reason']}", width)
    label = episode["label"]
    if label:
        error = "" if label["error_step"] is None else f", error at turn {label['error_step']}"
        yield from _block("label", f"{_word(label['passed'])}{error} by {label['by']}: {label['note']}", width)


def _block(name: str, text: str, width: int) -> Iterator[str]:
    if not text:
        return
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"
    for number, line in enumerate(shown(cut).split("\n")):
        wrapped = textwrap.wrap(line, max(20, width - 2), drop_whitespace=False, replace_whitespace=False) or [""]
        if number == 0:
            yield f"{shown(name)}:"
        yield from (f"  {part}" for part in wrapped)


def one_line(text: Any) -> str:
    """Return a text as one line, without characters that a terminal would obey."""
    return shown(text).replace("\n", "\\x0a")


def shown(text: Any) -> str:
    """Return a text without characters that a terminal would obey, or that turn around what stands beside them."""
    whole = whole_characters(text if isinstance(text, str) else json.dumps(text))
    return UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", whole.replace("\r", "\\x0d")).replace("\t", "    ")


def _word(value: bool | None) -> str:
    return "nobody said" if value is None else "yes" if value else "no"
