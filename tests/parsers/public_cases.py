"""The published tests of other parsers as data (`public/*.yaml`), and the table of where ours reads otherwise.

`python -m tests.parsers.public_cases` writes the table into docs/parsers.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from uirl.environments.mobile_world.actions import PhoneSpace, UseTool, command
from uirl.parsers import create_parser
from uirl.types import Action

FOLDER = Path(__file__).with_name("public")
PAGE = Path(__file__).parents[2] / "docs" / "parsers.md"
BEGIN, END = "<!-- begin: made by tests/parsers/public_cases.py -->", "<!-- end -->"

WHY = {
    "an error is told": (
        "They hand a call that cannot be read to the client as text. Here it is a `parse_error`: a policy "
        "that learns has to hear what was wrong, and the endpoint gives its client the text all the same."
    ),
    "nothing is guessed": (
        "They repair a broken reply, or drop the part of it that is broken. Here one call that cannot be read "
        "stops the others: a policy that is rewarded for broken calls writes more of them, and what was cut "
        "off would be executed with other arguments than were meant."
    ),
    "arguments are an object": (
        "They pass a string on as the arguments. A tool takes named arguments; a string counts where it holds "
        "an object as JSON."
    ),
    "several calls": ("They raise. Both calls are complete, and nothing is in doubt."),
    "an invented observation": (
        "They refuse a reply with an action and a final answer. The `Observation:` between them is invented "
        "by the policy, so the reading ends there and the action before it counts."
    ),
    "an answer goes to the end": (
        "The older of their two parsers cuts the answer at the first empty line, the newer one refuses the "
        "reply. An answer may have paragraphs, and lines that begin with `Action:`."
    ),
    "blanks around an input": ("They strip spaces alone; here every blank goes, line breaks too."),
    "another format": ("A JSON object in place of the two lines, a format of its own there. `json` reads it."),
    "the tags of a plan": (
        "Without `<thinking>` tags, or without `</tool_call>`, there is no call for them: the episode ends. Here the "
        "call counts where its JSON is complete."
    ),
    "what a server cannot do": (
        "It is sent, and the server errs (empty text) or does nothing (an app that is not there). Here the policy is "
        "told."
    ),
    "a swipe": (
        "Early servers turn a scroll to the side into one upwards, so it is sent as the swipe that later ones make of "
        "it. A scroll's place is looked at by none. Upper case is taken."
    ),
    "an empty answer": "`null` is sent as the empty text that the server makes of it.",
    "an empty question": "A question without words is not put to the owner.",
}
"""Name of a difference in the data -> why it stays."""


@dataclass(frozen=True, slots=True)
class Case:
    """One published test."""

    source: Mapping[str, Any]
    """Repository, path, commit, licence, name of the parser there, format here, and the tools it is given."""
    test: str
    reply: str
    theirs: str
    """Their reading: the calls as JSON; 'text': no call; 'error': it raises; 'any': it does not raise. Of a phone, what
    the server is sent; 'finished': nothing, and the episode ends; 'error': it cannot be carried out."""
    thought: str | None
    """What stands before the calls, or is thought; None: the test does not ask."""
    differs: str
    """A name in `WHY`; empty: we read the same."""

    @property
    def name(self) -> str:
        return f"{self.source['repository']} {self.source['parser']} {self.test}"

    def read(self, reply: str) -> Action:
        parser = create_parser(self.source["format"]).for_tools(self.source["tools"])
        return parser.parse(reply)

    @property
    def ours(self) -> str:
        """Our reading of the reply, as `theirs`."""
        action = self.read(self.reply)
        return sending(self.source, action) if "screen" in self.source else reading(action)


def reading(action: Action) -> str:
    """What was read, as data of a case says it."""
    if action.parse_error is not None:
        return "error"
    return as_text([{"name": call.name, "arguments": call.arguments} for call in action.tool_calls]) or "text"


def sending(source: Mapping[str, Any], action: Action) -> str:
    """What becomes of an action on a phone."""
    width, height = source["screen"]
    space = PhoneSpace(width, height, tools=frozenset(tool["function"]["name"] for tool in source["tools"]))
    meant = space.read(action)
    if isinstance(meant, str):
        return "error"
    if isinstance(meant, UseTool):
        return as_text([{"name": meant.call.name, "arguments": meant.call.arguments}])
    order = command(meant)
    return "finished" if order is None else as_text([order])


def as_text(calls: list[dict[str, Any]]) -> str:
    """Calls, or what a phone is sent, on one line."""
    return "; ".join(
        f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"
        if "name" in call
        else json.dumps(call, ensure_ascii=False)
        for call in calls
    )


def cases() -> Iterator[Case]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for source in yaml.safe_load(path.read_text(encoding="utf-8")):
            for case in source["cases"]:
                theirs = case["outcome"] if "outcome" in case else as_text(case["calls"])
                yield Case(source, case["test"], case["reply"], theirs, case.get("thought"), case.get("differs", ""))


def table() -> str:
    """What docs/parsers.md says: where the tests are from, and every case that is read otherwise."""
    found = list(cases())
    lines = ["| tests of | at | licence | format | cases | read otherwise |", "|---|---|---|---|---|---|"]
    sources: dict[tuple[str, ...], list[Case]] = {}
    for case in found:
        key = tuple(str(case.source[name]) for name in ("repository", "path", "commit", "licence", "format"))
        sources.setdefault(key, []).append(case)
    for (repository, path, commit, licence, form), own in sources.items():
        address = f"https://github.com/{repository}/blob/{commit}/{path}"
        others = sum(bool(case.differs) for case in own)
        what = f"[{repository} `{Path(path).name}`]({address})"
        lines.append(f"| {what} | `{commit[:10]}` | {licence} | `{form}` | {len(own)} | {others} |")
    lines += ["", f"{len(found)} cases, {sum(bool(case.differs) for case in found)} read otherwise:", ""]
    for why, reason in WHY.items():
        lines += [f"**{why[0].upper()}{why[1:]}.** {reason}", "", "| test | theirs | ours |", "|---|---|---|"]
        rows = [case for case in found if case.differs == why]
        lines += [f"| {case.name} | {_shown(case.theirs)} | {_shown(case.ours)} |" for case in rows]
        lines.append("")
    return "\n".join(lines)


def _shown(text: str) -> str:
    if text in ("text", "error", "finished"):
        return text
    shown = (text if len(text) < 90 else f"{text[:87]}...").replace("|", "\\|")
    return f"``{shown}``"


def page() -> str:
    """docs/parsers.md as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
