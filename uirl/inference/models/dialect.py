"""What one chat template reads, found by a round trip: a text in every role must come back, once and in order.

Templates differ in more than their words. Some read a text, some a list of typed parts; some know no system message, or
no results of tools, or want the user and the assistant to take turns; and what a template does not read, most drop
without a word. So conversations are rendered in which every message is a word that nothing else holds. The first way of
handing them over in which all words come back is the template's `Dialect`; where there is none, it is refused.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from jinja2 import TemplateError

from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.messages import Message, write_call
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.templates import TEMPLATES
from uirl.runtime.limits import clip
from uirl.thoughts import END_OF_THOUGHT, split_thought
from uirl.types import ToolCall

OBJECTIONS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Templates add, index and split what they are given, and raise whatever Python raises."""
_ROLES = ("user", "assistant", "system")
_PICTURE = Screenshot(b"", "picture")

_LONG = " Is 100 %:  " + 256 * "and More of it, " + "the END"
"""What stands behind the word of a probe: capitals, marks, spaces, and many of them, as observations have."""
_LINES = f" <b>Bold</b> & \"it's\" {{'x': [1]}}\n\n\tthen\n    {_LONG}"
"""What templates that write JSON change, too; results of tools are written so by some."""
_MANY = 24
"""Exchanges of a long conversation."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How messages are handed to one chat template."""

    parts: frozenset[str] = frozenset()
    """Roles whose text is a list of typed parts."""
    system: bool = True
    """A system message has a role of its own; else it stands at the head of the user's next message."""
    late_system: bool = True
    """So has one that comes later."""
    tool: bool = True
    """Results of tools have a role of their own; else they stand in a message of the user."""
    joins: bool = False
    """Messages of the user in a row become one."""
    splits: bool = False
    """A reply is handed over as its answer, and its thought in a field beside it."""
    calls: bool = True
    """Calls have a field of their own; else they are written into the text of the reply."""
    lead: str = ""
    """White space between the prompt and a reply: the template writes it in earlier ones, and the policy samples it."""
    pictures: bool = False
    """Pictures come back."""
    thoughts: bool = True
    """The thoughts of earlier replies come back where a conversation is rendered anew."""

    def write(
        self, messages: Sequence[Message], write_calls: Callable[[Sequence[ToolCall]], str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the messages as the template takes them. `write_calls`: how calls are written into a text; None: as
        blocks of JSON."""
        out: list[dict[str, Any]] = []
        heads = False
        for message in messages:
            told = self._told(message, write_calls or as_blocks)
            if message.role == "system" and not (self.late_system if out else self.system):
                told["role"] = "user"
            if told["role"] in self.parts and isinstance(told["content"], str):
                told["content"] = [{"type": "text", "text": told["content"]}]
            before = out[-1] if out else None
            if before is not None and before["role"] == told["role"] == "user" and (self.joins or heads):
                out[-1] = {**before, "content": _joined(before["content"], told["content"])}
            else:
                out.append(told)
            heads = message.role == "system" and told["role"] == "user"
        return out

    def notes(self) -> list[str]:
        """Return what the template does not take as it is said, in words."""
        said = {
            "a system message stands at the head of the user's first": not self.system,
            "results of tools stand in a message of the user": not self.tool,
            "messages of the user in a row are joined": self.joins,
            "texts are typed parts": bool(self.parts),
            "thoughts of earlier replies are left out where it is rendered anew": not self.thoughts,
        }
        return [words for words, true in said.items() if true]

    def _told(self, message: Message, write_calls: Callable[[Sequence[ToolCall]], str]) -> dict[str, Any]:
        told = message.as_hf()
        role = message.role
        if role == "tool" and not self.tool:
            told = {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
        elif role == "assistant":
            told["content"] = message.text.removeprefix(self.lead)
            if self.splits:
                thought, told["content"] = split_thought(message.text)
                told |= {"reasoning_content": thought, "thinking": thought} if thought else {}
            if message.tool_calls and not self.calls:
                del told["tool_calls"]
                told["content"] = "\n".join(filter(None, [told["content"], write_calls(message.tool_calls)]))
        return told


_FOUND: dict[tuple[Hashable, ...], Dialect] = {}
"""What was found of a template, so that it is tried once."""


def dialect_of(loaded: LoadedModel) -> Dialect:
    """Return how messages are handed to the chat template of a model. Raises ContractError for a template that loses,
    doubles or moves what is said, whatever way it is handed over, and for one whose prompts lack the header of a
    reply."""
    tokenizer = loaded.tokenizer
    # all that decides how messages are rendered
    key = type(tokenizer), str(tokenizer.chat_template), str(tokenizer.special_tokens_map), _picture_of(loaded)
    if key not in _FOUND:
        _FOUND[key] = _tried(loaded)
    return _FOUND[key]


def _tried(loaded: LoadedModel) -> Dialect:
    probe = _Probe(loaded)
    sees = loaded.vision is not None
    found = next((d for d in _ways() if probe.keeps(d, *([_PICTURES] if sees else []), *_TALKS)), None)
    found = found or next((d for d in _ways() if probe.keeps(d, *_TALKS)), None)
    if found is None:
        raise ContractError(
            f"{loaded.name}: the chat template does not show the policy what is said: {probe.losses(Dialect())}. "
            "Expected every message to come back once and in order; set model.chat_template to one of "
            f"{', '.join(TEMPLATES)} or to a Jinja string that shows all messages"
        )
    if header := probe.missing_header(found):
        raise ContractError(
            f"{loaded.name}: the chat template ignores add_generation_prompt: it writes {header!r} before every reply, "
            "and no prompt for one ends with it, so the policy would be asked to go on as somebody else. Set "
            "model.chat_template to the same Jinja string with "
            f"{{% if add_generation_prompt %}}{{{{ {header!r} }}}}{{% endif %}} at its end, or to one of "
            f"{', '.join(TEMPLATES)}"
        )
    found = next(d for d in _with_tools(found) if probe.keeps(d, _RESULTS, _IN_A_ROW))
    split = replace(found, splits=True)
    if probe.ends_thoughts(found) and probe.keeps(split, *_TALKS, _THOUGHT):
        found = split
    return replace(
        found,
        late_system=found.system and probe.keeps(found, *_LATE),
        lead=probe.lead(found),
        calls=probe.keeps(found, _CALLS),
        pictures=sees and probe.keeps(found, _PICTURES),
        thoughts=probe.keeps(found, _ANSWER_AND_THOUGHT),
    )


def shows_tools(loaded: LoadedModel, dialect: Dialect, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the chat template shows the tools to the policy, and beside them all that is said."""
    probe = _Probe(loaded, tools)
    words = {word for tool in tools for word in _words_of(tool.get("function", tool))}
    try:
        texts = [probe.render(dialect.write(talk.messages), True) for talk in _TALKS]
    except OBJECTIONS:
        return False
    return all(word in text for text in texts for word in words) and probe.keeps(dialect, *_TALKS, _RESULTS)


def _picture_of(loaded: LoadedModel) -> str | None:
    return loaded.vision.front.word if loaded.vision is not None else None


def _words_of(function: Mapping[str, Any]) -> set[str]:
    """Return the words that tell what a function is: of its name, of its description, and of its parameters' names."""
    names = _names_in(function.get("parameters"))
    return set(re.findall(r"\w+", " ".join([str(function["name"]), str(function.get("description") or ""), *names])))


def _names_in(schema: Any) -> Iterator[str]:
    """Yield the names of the properties of a JSON schema, at any depth."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        yield from map(str, properties if isinstance(properties, Mapping) else ())
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list | tuple) else ()
    for part in inner:
        yield from _names_in(part)


def _ways() -> Iterator[Dialect]:
    for system in (True, False):
        sets = [frozenset[str](), frozenset(_ROLES)]
        sets += [frozenset(some) for n in (1, 2) for some in combinations(_ROLES, n)]
        yield from (Dialect(parts, system) for parts in sets)


def _with_tools(found: Dialect) -> Iterator[Dialect]:
    for tool in (True, False):
        for joins in (False, True):
            yield replace(found, tool=tool, joins=joins)
            if tool:
                yield replace(found, tool=tool, joins=joins, parts=found.parts | {"tool"})


@dataclass(frozen=True, slots=True)
class _Talk:
    """A conversation whose words must come back."""

    messages: tuple[Message, ...]
    words: tuple[str, ...]


def _talk(*roles: str) -> _Talk:
    """Return a conversation of one word a message; 'user*' shows a picture too."""
    words = tuple(f"w{secrets.randbits(80)}" + (_LONG if role == "tool" else _LINES) for role in roles)
    return _Talk(tuple(_message(role, word) for role, word in zip(roles, words, strict=True)), words)


def _message(role: str, word: str) -> Message:
    if role == "tool":
        return Message("tool", word, name="probe", call_id="probe1234")
    return Message(role.rstrip("*"), word, (_PICTURE,) * role.count("*"))


def _reply(thought: str, answer: str, *words: str) -> _Talk:
    first, last = (f"w{secrets.randbits(80)}" for _ in range(2))
    reply = Message("assistant", f"<think>\n{thought}\n</think>\n\n{answer}")
    return _Talk((Message("user", first), reply, Message("user", last)), (first, *words, last))


_TALKS = (
    _talk("user", "assistant", "user"),
    _talk("system", "user", "assistant", "user", "assistant", "user"),
    _talk("system", *(("user", "assistant") * _MANY), "user"),
)
_PICTURES = _talk("system", "user*", "assistant", "user**", "assistant", "user")
_RESULTS = _talk("user", "assistant", "tool", "tool", "assistant", "tool", "user")
_LATE = (_talk("user", "system", "user"), _talk("system", "user", "assistant", "system", "user"))
_IN_A_ROW = _talk("user", "user", "assistant", "user", "user")
_T, _A = (f"w{secrets.randbits(80)}" for _ in range(2))
_THOUGHT = _reply(_T, _A, _A)
_ANSWER_AND_THOUGHT = _reply(_T, _A, _T, _A)
_NAME, _VALUE = (f"w{secrets.randbits(80)}" for _ in range(2))
_CALLS = _Talk(
    (
        Message("user", _T),
        Message("assistant", "", tool_calls=(ToolCall(_NAME, {"x": _VALUE}, "probe1234"),)),
        Message("tool", _A, name=_NAME, call_id="probe1234"),
    ),
    (_T, _NAME, _VALUE, _A),
)


class _Probe:
    """The chat template of a model, tried."""

    def __init__(self, loaded: LoadedModel, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._tokenizer, self._tools = loaded.tokenizer, [dict(tool) for tool in tools] or None
        self._picture = _picture_of(loaded) or ""

    def render(self, messages: list[dict[str, Any]], prompt: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tools=self._tools, tokenize=False, add_generation_prompt=prompt
        )
        return text

    def keeps(self, dialect: Dialect, *talks: _Talk) -> bool:
        """Return whether all that is said comes back, once and in order."""
        return all(not self._lost(dialect, talk) for talk in talks)

    def losses(self, dialect: Dialect) -> str:
        """Return which messages are lost, in words."""
        return "; ".join(filter(None, (self._lost(dialect, talk) for talk in _TALKS)))

    def lead(self, dialect: Dialect) -> str:
        """Return what the template writes between the prompt for a reply and the reply, where that is white space."""
        talk = _TALKS[0]
        prompt = self.render(dialect.write(talk.messages[:1]), True)
        text = self.render(dialect.write(talk.messages[:2]), False)
        between = text[len(prompt) : text.rfind(talk.words[1])]
        return between if text.startswith(prompt) and not between.strip() else ""

    def missing_header(self, dialect: Dialect) -> str:
        """Return what the template writes before a reply and in no prompt for one, whether it is asked to or not;
        empty: there is nothing, or the policy samples it (a thought)."""
        talk = _TALKS[0]
        asked = dialect.write(talk.messages[:1])
        prompt, answered = self.render(asked, True), self.render(dialect.write(talk.messages[:2]), False)
        try:
            if prompt != self.render(asked, False):
                return ""
        except OBJECTIONS:
            return ""
        same = next((i for i, (a, b) in enumerate(zip(prompt, answered, strict=False)) if a != b), len(prompt))
        header = answered[same : answered.rfind(talk.words[1])]
        return header if split_thought(header)[1].strip() else ""

    def ends_thoughts(self, dialect: Dialect) -> bool:
        """Return whether the template itself writes the end of a thought before a reply."""
        talk = _TALKS[0]
        text = self.render(dialect.write(talk.messages[:2]), False)
        before = text[text.rfind(talk.words[0]) + len(talk.words[0]) : text.rfind(talk.words[1])]
        return END_OF_THOUGHT.search(before) is not None

    def _lost(self, dialect: Dialect, talk: _Talk) -> str:
        """Return what does not come back, in words; empty: all does."""
        roles = clip(", ".join(m.role for m in talk.messages), 80)
        try:
            text = self.render(dialect.write(talk.messages), True)
        except OBJECTIONS as error:
            return f"it objects to {roles} ({error})"
        at = _places(talk.words, text)
        if not at:
            wrong = [word for word in talk.words if text.count(word) != 1]
            lost = dict.fromkeys(m.role for m in talk.messages if any(word in m.text for word in wrong))
            what = f"loses, changes or doubles the text of {', '.join(lost)}" if wrong else "changes the order"
            return f"of {roles} it {what}"
        if self._tools is None and ("{'type': 'text'" in text or '"type": "text"' in text):
            return "it writes typed parts down as they are"
        return self._misplaced(talk, text, at)

    def _misplaced(self, talk: _Talk, text: str, at: Sequence[int]) -> str:
        """Return which pictures do not stand beside the words they came with; empty: all do."""
        pictures = sum(len(m.images) for m in talk.messages)
        if not pictures:
            return ""
        if text.count(self._picture) != pictures:
            return f"of {pictures} pictures it shows {text.count(self._picture)}"
        came = 0
        for message, place in zip(talk.messages, at, strict=True):
            if not came <= text.count(self._picture, 0, place) <= came + len(message.images):
                return "it shows pictures in other places than they came in"
            came += len(message.images)
        return ""


def _places(words: Sequence[str], text: str) -> list[int]:
    """Return where the words stand in a text; empty: some are not there once and in order."""
    places, between, end = [], [], 0
    for word in words:
        at = text.find(word, end)
        if at < 0:
            return []
        places.append(at)
        between.append(text[end:at])
        end = at + len(word)
    rest = "\n".join([*between, text[end:]])
    return [] if any(word in rest for word in words) else places


def as_blocks(calls: Sequence[ToolCall]) -> str:
    """Return calls as text, one block of JSON each."""
    return "\n".join(write_call(call.name, dict(call.arguments)) for call in calls)


def _joined(first: Any, second: Any) -> Any:
    """Return two contents as one."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, [first, second]))
    parts = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second)]
    return [*parts[0], {"type": "text", "text": "\n\n"}, *parts[1]]
