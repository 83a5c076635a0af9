"""The token sequence of one episode, and the one policy on what of the history a generation sees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from uirl.errors import ConfigError, EnvironmentFailure, did_you_mean
from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.runtime.limits import is_whole, shown
from uirl.types import Observation, PictureTransform

DROPPED_PICTURE = "(earlier picture)"


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How much history a generation sees. Generation, storage and training share it."""

    max_images: int | None = None
    """The newest so many pictures stay; older ones become a few words, or what the style says. None: all."""
    token_budget: int | None = None
    """Prompt tokens at most; the oldest exchanges after the opening are left out. The opening and what was observed
    last stay, however long they are. None: all."""
    keep_images: int | None = None
    """Once there are more than `max_images`, the newest so many stay, and those of the newest message as far as
    `max_images` allows: fewer rewritings of the history. None: `max_images`."""


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """How observations and replies become messages."""

    text_apart: bool = False
    """The text of an observation is a message of its own, before that of its pictures."""
    dropped: str = DROPPED_PICTURE
    """What stands in the place of an older picture; empty: nothing, and a message of nothing else is left out."""
    strip_replies: bool = False
    """A reply is remembered without the white space around it."""
    text_parts: bool = False
    """A server is sent what users say as a list of parts, text alone too."""


STYLES = {"plain": MessageStyle(), "mai_ui": MessageStyle(True, "", True, True)}
"""Name, as `BaseEnvironment.message_style` has it -> style. 'mai_ui': as MobileWorld's agent `mai_ui_agent`."""


def style_of(name: str) -> MessageStyle:
    """Return the style of this name. Raises ConfigError where there is none."""
    if name not in STYLES:
        raise ConfigError(f"unknown message_style {name!r:.60}; {did_you_mean(str(name)[:60], STYLES)}")
    return STYLES[name]


@dataclass(frozen=True, slots=True)
class Context:
    """What the engine is fed for one turn."""

    prompt_ids: tuple[int, ...]
    images: tuple[Screenshot, ...]
    new_ids: tuple[int, ...]
    """The part of `prompt_ids` that is new since the previous response; all of it where a segment starts."""
    new_images: tuple[Screenshot, ...]
    starts_segment: bool
    messages: tuple[Message, ...] = ()
    """The same prompt as messages, for servers that take no token ids."""
    pictures: tuple[PictureTransform | None, ...] = ()
    """What became of each of `new_images` before the model saw it; None: not known."""


class Conversation:
    """Grows by what is sampled and what is observed; sampled ids are kept as they are.

    Only the window may rewrite history. It then renders the remaining messages anew, and the next context says
    `starts_segment`.
    """

    def __init__(self, chat: ChatRenderer, window: ContextWindow, style: MessageStyle = STYLES["plain"]) -> None:
        self._chat = chat
        self._window, self._style = window, style
        self._opening: list[Message] = []
        self._exchanges: list[list[Message]] = []
        """Each a reply and what answered it; of the oldest one the reply may have been left out."""
        self._pending: list[Message] = []
        self._ids: list[int] = []
        self._images: list[Screenshot] = []
        self._ended = True

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, as the window has left them."""
        return (*self._shown_messages(), *self._pending)

    def add(self, message: Message) -> None:
        """Add a message that the next context shows."""
        self._pending.append(message)

    def observe(self, observation: Observation) -> None:
        """Add what the agent sees next: the results of its tool calls, then text and pictures. Raises
        EnvironmentFailure for half a character, which no tokenizer takes."""
        messages = messages_of(observation, self._style)
        for message in messages:
            if not is_whole(message.text):
                raise EnvironmentFailure(
                    f"an observation holds half a character (a lone \\ud800-\\udfff): {shown(message.text, 80)}; "
                    "expected whole ones, as text.encode('utf-8', 'replace').decode() makes them"
                )
        self._pending += messages

    def context(self) -> Context:
        """Return the prompt for the next reply."""
        new = self._pending
        (self._exchanges[-1] if self._exchanges else self._opening).extend(new)
        self._pending = []
        shortened = self._drop_pictures()
        if self._ids and self._chat.incremental and not shortened:
            added = self._chat.following(new, after_end=self._ended and self._chat.closes(self._ids[-1], new))
            if self._fits(len(self._ids) + len(added)):
                self._ids += added
                images = tuple(image for m in new for image in m.images)
                self._images += images
                return self._shown(tuple(added), images, starts_segment=False)
        return self._rewritten()

    def reply(self, ids: Sequence[int], text: str, *, ended: bool) -> None:
        """Add what the policy answered. `ended`: the ids close with an end token."""
        self._ids += ids
        self._ended = ended
        self._exchanges.append([Message("assistant", text.strip() if self._style.strip_replies else text)])

    def _rewritten(self) -> Context:
        ids = self._chat.whole(self._shown_messages())
        while not self._fits(len(ids)) and self._drop_oldest():
            ids = self._chat.whole(self._shown_messages())
        self._ids = ids
        self._images = [image for m in self._shown_messages() for image in m.images]
        return self._shown(tuple(ids), tuple(self._images), starts_segment=True)

    def _shown_messages(self) -> list[Message]:
        """Return the history. What answered a reply that was left out goes on in the opening: roles alternate."""
        exchanges = [message for exchange in self._exchanges for message in exchange]
        answers = list(itertools.takewhile(lambda message: message.role != "assistant", exchanges))
        if not answers:
            return [*self._opening, *exchanges]
        said = [message for message in self._opening if message.role == "user"]
        words = "\n".join(part for part in [m.text for m in (*said, *answers)] if part)
        joined = Message("user", words, tuple(image for m in (*said, *answers) for image in m.images))
        return [*self._opening[: len(self._opening) - len(said)], joined, *exchanges[len(answers) :]]

    def _shown(self, new_ids: tuple[int, ...], new_images: tuple[Screenshot, ...], *, starts_segment: bool) -> Context:
        return Context(
            prompt_ids=tuple(self._ids),
            images=tuple(self._images),
            new_ids=new_ids,
            new_images=new_images,
            starts_segment=starts_segment,
            messages=tuple(self._shown_messages()),
            pictures=self._chat.transforms(new_images),  # now, while the pictures are still encoded
        )

    def _fits(self, length: int) -> bool:
        return self._window.token_budget is None or length <= self._window.token_budget

    def _drop_pictures(self) -> bool:
        """Replace pictures beyond the newest `max_images` by words, or by nothing; True where something changed."""
        limit = self._window.max_images
        if limit is None:
            return False
        messages = self._shown_messages()
        shown = sum(len(m.images) for m in messages)
        newest = next((len(m.images) for m in reversed(messages) if m.images), 0)
        kept = max(self._window.keep_images or limit, min(limit, newest))
        if shown > limit:
            self._drop_first_pictures(shown - kept)
        return shown > limit

    def _drop_first_pictures(self, count: int) -> None:
        """Replace the oldest `count` pictures by words, or by nothing."""
        for part in (self._opening, *self._exchanges):
            left: list[Message] = []
            for message in part:
                gone = min(count, len(message.images))
                count -= gone
                if gone:
                    words = "\n".join(part for part in [message.text, *[self._style.dropped] * gone] if part)
                    message = replace(message, text=words, images=message.images[gone:])
                if not gone or message.text or message.images:
                    left.append(message)
            part[:] = left

    def _drop_oldest(self) -> bool:
        """Leave out the oldest exchange after the opening, of the newest one the reply and the pictures of the opening;
        False: the opening and what was observed last are all there is."""
        if len(self._exchanges) > 1:
            del self._exchanges[0]  # a reply goes with what answered it
            return True
        if not any(message.role == "assistant" for message in itertools.chain(*self._exchanges)):
            return False
        self._drop_first_pictures(sum(len(message.images) for message in self._opening))
        del self._exchanges[0][0]
        return True


def messages_of(observation: Observation, style: MessageStyle = STYLES["plain"]) -> list[Message]:
    """Return what the agent sees, as messages: one per tool result, then text and pictures."""
    messages = [Message("tool", r.text, name=r.name, call_id=r.id) for r in observation.tool_results]
    text, images = observation.text, observation.images
    if style.text_apart and text and images:
        return [*messages, Message("user", text), Message("user", "", images)]
    if text or images or not messages:
        messages.append(Message("user", text, images))
    return messages
