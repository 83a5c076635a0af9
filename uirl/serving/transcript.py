"""All calls of one agent, as a tree: what each call was fed, which reply it goes on from, and the turns they become.

A client sends its whole history with every call. Where the history begins as an earlier call did, up to our reply as
it was returned, the prompt goes on from the ids that were sampled then. Two calls may go on from the same reply, and a
client may rewrite what it said: then a new segment begins, whose prompt is recorded whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.serving.protocol.messages import WireMessage, assistant_key
from uirl.serving.replies import Reply
from uirl.types import Observation, PictureTransform, ToolResult, Turn


@dataclass(slots=True, eq=False)
class Exchange:
    """One call that was answered. Ids are kept once: those of the history stand in the exchanges before it."""

    parent: Exchange | None
    new_ids: tuple[int, ...]
    """Fed behind the parent's reply; the whole prompt where there is no parent."""
    new_images: tuple[Screenshot, ...]
    observation: Observation
    reply: Reply
    info: dict[str, Any]
    cache_id: str
    """The engine's name for the cache that ends with this reply."""
    sent: bool = True
    """False: the client never saw this reply, it got the next one (`tool_choice`)."""
    pictures: tuple[PictureTransform | None, ...] = ()
    """What became of each of `new_images` before the model saw it; empty: nobody says."""
    followers: int = 0
    """How many calls went on from here."""

    @property
    def response_ids(self) -> tuple[int, ...]:
        return self.reply.generation.token_ids

    def line(self) -> list[Exchange]:
        """Return this exchange and those it goes on from, oldest first."""
        exchange: Exchange | None = self
        line: list[Exchange] = []
        while exchange is not None:
            line.append(exchange)
            exchange = exchange.parent
        return line[::-1]

    def ids(self) -> tuple[int, ...]:
        """Return the whole sequence: prompt and reply."""
        return tuple(token for e in self.line() for token in (*e.new_ids, *e.response_ids))

    def images(self) -> tuple[Screenshot, ...]:
        """Return the pictures of the whole sequence."""
        return tuple(shot for e in self.line() for shot in e.new_images)

    def transforms(self) -> tuple[PictureTransform | None, ...]:
        """Return what became of each of these pictures."""
        return tuple(one for e in self.line() for one in e.pictures)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is fed for one call."""

    ids: tuple[int, ...]
    images: tuple[Screenshot, ...]
    messages: tuple[Message, ...]
    """The same as messages; empty for a prompt that never was."""
    parent: Exchange | None
    new_ids: tuple[int, ...]
    new_images: tuple[Screenshot, ...]
    observation: Observation
    key: str
    """Of everything the client sent, tools included."""
    pictures: tuple[PictureTransform | None, ...] = ()
    """What becomes of each of `new_images` before the model sees it; None: not known."""
    new_messages: tuple[Mapping[str, Any], ...] = ()
    """The new messages (role, text, number of pictures) where `observation` does not tell them apart; else empty."""


@dataclass(slots=True)
class Transcript:
    """Every call of one session."""

    exchanges: list[Exchange] = field(default_factory=list)
    """In the order in which they were answered."""
    _states: dict[str, list[Exchange]] = field(default_factory=dict)
    """Key of a history that ends with a reply of ours -> the exchanges that ended so."""
    _written_texts: dict[str, str] = field(default_factory=dict)
    """Key of a reply as the client got it -> the text that the policy wrote."""

    def chat_prompt(self, messages: Sequence[WireMessage], tools_key: str, chat: ChatRenderer) -> Prompt:
        """Return the prompt for `messages`: the longest known history goes on, all else is rendered anew."""
        keys = _history_keys(tools_key, messages)
        parent, covered = self._longest(messages, keys) if chat.incremental else (None, 0)
        new = messages[covered:]
        whole = tuple(self._as_written(m) for m in messages)
        shots = tuple(shot for m in new for shot in m.message.images)
        if parent is None:
            ids = tuple(chat.whole(whole))
            fed, said = chat.transforms(shots), _new_messages(new, whole)
            return Prompt(ids, shots, whole, None, ids, shots, _observation(new), keys[-1], fed, said)
        following = [m.message for m in new]
        after_end = parent.reply.ended and chat.closes(parent.response_ids[-1], following)
        added = tuple(chat.following(following, after_end=after_end))
        images, added_messages = parent.images() + shots, _new_messages(new, whole[covered:])
        fed = chat.transforms(shots)
        return Prompt(
            parent.ids() + added, images, whole, parent, added, shots, _observation(new), keys[-1], fed, added_messages
        )

    def token_prompt(self, ids: tuple[int, ...], text: str, messages: tuple[Message, ...] = ()) -> Prompt:
        """Return the prompt of a completion; it goes on from the longest recorded sequence that `ids` begin with."""
        parent, length = None, 0
        for exchange in self.exchanges:
            sequence = exchange.ids()
            if (
                exchange.sent
                and length < len(sequence) < len(ids)
                and ids[: len(sequence)] == sequence
                and not exchange.images()
            ):
                parent, length = exchange, len(sequence)
        return Prompt(ids, (), messages, parent, ids[length:], (), Observation(text), _chained("completion", str(ids)))

    def add(self, prompt: Prompt, reply: Reply, info: dict[str, Any], cache_id: str, *, sent: bool = True) -> None:
        """Record one reply to `prompt`. Nothing goes on from one that was not `sent`."""
        parent = prompt.parent
        new_ids = (*prompt.new_ids, *reply.opening_ids)
        # what an export needs beside the observation: who said what
        info |= {"messages": [dict(one) for one in prompt.new_messages]} if prompt.new_messages else {}
        exchange = Exchange(
            parent, new_ids, prompt.new_images, prompt.observation, reply, info, cache_id, sent, prompt.pictures
        )
        self.exchanges.append(exchange)
        if not sent:
            return
        if parent is not None:
            parent.followers += 1
        key = assistant_key(reply.content, reply.calls)
        self._states.setdefault(_chained(prompt.key, key), []).append(exchange)
        self._written_texts[key] = reply.text

    def turns(self) -> list[Turn]:
        """Return the turns, segment by segment: every segment is one unbroken token sequence.

        The first call that goes on from a reply continues its segment; every other one begins its own, and so does a
        reply that was not sent. Segments stand
        in the order in which they ended, so the last turn is the one that was answered last.
        """
        segments: dict[Exchange, list[Exchange]] = {}
        for exchange in self.exchanges:
            before = segments.get(exchange.parent) if exchange.parent is not None else None
            goes_on = exchange.sent and before is not None and before[-1] is exchange.parent
            segment = before if goes_on and before is not None else []
            segment.append(exchange)
            segments[exchange] = segment
        last = {id(segment): (i, segment) for i, segment in enumerate(segments.values())}
        ordered = [segment for _, segment in sorted(last.values(), key=lambda item: item[0])]
        results = self._results()
        return [
            _turn(exchange, results.get(exchange, ()), starts=i == 0)
            for segment in ordered
            for i, exchange in enumerate(segment)
        ]

    def _longest(self, messages: Sequence[WireMessage], keys: Sequence[str]) -> tuple[Exchange | None, int]:
        """Return (the exchange that the history goes on from, how many messages it covers). None: the history is new,
        or somebody else's reply stands behind ours."""
        for n in range(len(messages) - 1, 0, -1):
            if messages[n - 1].message.role != "assistant":
                continue
            candidates = self._states.get(keys[n - 1], ())
            # the same text may have been sampled as different ids: the newest that nobody went on from
            best = min(reversed(candidates), key=lambda e: e.followers, default=None)
            return best, n if best is not None else 0
        return None, 0

    def _as_written(self, message: WireMessage) -> Message:
        """Return the message; a reply of ours as the policy wrote it, calls included."""
        text = self._written_texts.get(message.key) if message.message.role == "assistant" else None
        return message.message if text is None else Message("assistant", text)

    def _results(self) -> dict[Exchange, tuple[ToolResult, ...]]:
        """Exchange -> what its calls came back with, told by the first call that went on from it."""
        found: dict[Exchange, tuple[ToolResult, ...]] = {}
        for exchange in self.exchanges:
            if exchange.parent is not None and exchange.parent not in found:
                results = {result.id: result for result in exchange.observation.tool_results}
                calls = exchange.parent.reply.calls
                found[exchange.parent] = tuple(
                    replace(results[call.id], arguments=call.arguments) for call in calls if call.id in results
                )
        return found


def _turn(exchange: Exchange, results: tuple[ToolResult, ...], *, starts: bool) -> Turn:
    generation = exchange.reply.generation
    parent = exchange.parent if starts else None
    before_ids = parent.ids() if parent is not None else ()
    images = (*(parent.images() if parent is not None else ()), *exchange.new_images)
    after = {} if parent is None else {"after": parent.info["call"]}  # the call that this branch goes on from
    return Turn(
        observation=exchange.observation,
        context_ids=before_ids + exchange.new_ids,
        response_ids=generation.token_ids,
        rollout_log_probs=generation.log_probs or (),
        action=exchange.reply.action,
        policy_version=generation.policy_version,
        starts_segment=starts,
        context_images=tuple(shot.hash for shot in images),
        pictures=(*(parent.transforms() if parent is not None else ()), *exchange.pictures),
        finish_reason=generation.finish_reason,
        info=exchange.info | after,
        tool_results=results,
    )


def _observation(messages: Sequence[WireMessage]) -> Observation:
    """Return what the policy is shown by `messages`; the roles of all but the user's are told."""
    texts, results = [], []
    for message in (wire.message for wire in messages):
        if message.role == "tool":
            results.append(ToolResult(message.name, result=message.text, id=message.call_id))
        else:
            text = "\n".join(part for part in [message.text, *map(_written_call, message.tool_calls)] if part)
            texts.append(text if message.role == "user" else f"{message.role}: {text}")
    shots = tuple(shot.hash for wire in messages for shot in wire.message.images)
    return Observation("\n".join(texts), shots, tool_results=tuple(results))


def _new_messages(new: Sequence[WireMessage], whole: Sequence[Message]) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of `new`, replies of ours as the policy wrote them (`whole`); empty where they are answers of
    tools and then one message of the user, which is how the observation reads."""
    roles = [wire.message.role for wire in new]
    if set(roles[:-1]) <= {"tool"} and roles[-1:] in (["tool"], ["user"]):
        return ()
    entries = []
    for wire, message in zip(new, whole, strict=True):
        calls = map(_written_call, message.tool_calls)
        text = "\n".join(part for part in [message.text, *calls] if part)
        entries.append({"role": wire.message.role, "text": text, "images": len(wire.message.images)})
    return tuple(entries)


def _written_call(call: Any) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _history_keys(tools_key: str, messages: Sequence[WireMessage]) -> list[str]:
    """Return the key of every beginning of `messages`."""
    keys, key = [], _chained("tools", tools_key)
    for message in messages:
        key = _chained(key, message.key)
        keys.append(key)
    return keys


def _chained(before: str, text: str) -> str:
    return hashlib.blake2b(f"{before}\n{text}".encode(), digest_size=16).hexdigest()
