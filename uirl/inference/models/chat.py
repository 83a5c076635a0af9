"""Messages -> token ids, one message at a time.

The ids of a conversation only ever grow: what one more message adds is rendered alone and appended to the ids that
were sampled, which are never decoded and encoded again. At construction the renderer proves that the chat template
allows this (what a message adds does not depend on what came before); where it does not, `incremental` is False and
every turn renders the whole conversation and starts a new segment.

Texts, names, arguments and schemas are content: the words of control tokens in them stay letters, see
`uirl.inference.models.control_tokens`. A template reads content as it is, but for those words: where it looks for one
of them in content, it finds none.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from uirl.errors import ContractError, EnvironmentFailure
from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.control_tokens import ControlTokens, without_aliases
from uirl.inference.models.dialect import OBJECTIONS, Dialect, as_blocks, dialect_of, shows_tools
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.templates import TEMPLATES
from uirl.runtime.bounded_cache import BoundedCache
from uirl.thoughts import MARKS
from uirl.types import Action, PictureTransform, ToolCall

_LOG = logging.getLogger(__name__)
_TOLD: set[tuple[str, str]] = set()
"""What was told of a model, so that it is told once."""

_PROBE_REPLY = f"ok{secrets.randbits(128)}"
"""Nothing that is said later holds it: where it stands, the reply ends."""
_PROBE_NEXT = f"next{secrets.randbits(128)}"
_RENDERED_BYTES = 4 * 2**20
_PROBES = (
    [Message("user", "one")],
    [Message("system", "be brief"), Message("user", "two")],
    [Message("user", "one"), Message("assistant", "a\nb"), Message("user", "three")],
)


class CallFormat(Protocol):
    """How the policy writes calls: an `ActionParser`."""

    def describe(self) -> str:
        """Return how to write a call, in a sentence for a system prompt."""

    def render(self, action: Action) -> str:
        """Return the text of calls."""


class ChatRenderer:
    """The chat template of one model, as token ids."""

    def __init__(
        self,
        loaded: LoadedModel,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        calls: CallFormat | None = None,
        controls: ControlTokens | None = None,
    ) -> None:
        """`tools`: JSON schemas of the functions the policy may call, which the template writes where its model was
        taught to find them; where it does not show them, they stand in the system prompt, with how `calls` writes one.
        `controls`: those of another renderer of the same model, shared. Raises ContractError for a template that does
        not show all that is said, see `uirl.inference.models.dialect`."""
        if not loaded.tokenizer.chat_template:
            raise ContractError(
                f"{loaded.name}: the tokenizer has no chat template; set model.chat_template to one of "
                f"{', '.join(TEMPLATES)} or to a Jinja string"
            )
        self._loaded = loaded
        self._tokenizer = loaded.tokenizer
        self.dialect = dialect_of(loaded)
        self.controls = controls if controls is not None else _controls_of(loaded, self.dialect)
        self._tools = [dict(tool) for tool in tools]
        self._calls = calls
        self.described = ""
        """What the system prompt says of the tools, where the template does not show them."""
        shown = self._tools
        if shown and not shows_tools(loaded, self.dialect, shown):
            self.described, shown = _described(shown, calls), []
        self._hidden_tools = self.controls.hide_all(shown) or None
        self._left_out = _left_out_of_replies(loaded)
        for note in self.notes():
            _tell(loaded.name, note)
        self._rendered: BoundedCache[str] = BoundedCache(_RENDERED_BYTES)
        """Texts that the template made, by the messages it made them of: environments say the same again and again."""
        self.end_text, self.incremental = self._prove_incremental()
        self._encode(self._whole_text(_PROBES[0]))

    def notes(self) -> list[str]:
        """Return what the chat template does not take as it is said, in words."""
        tools = ["it shows no tools: they are described in the system prompt"] if self.described else []
        return [*self.dialect.notes(), *tools]

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, with the prompt for the next reply. Raises EnvironmentFailure for a
        picture that cannot be shown."""
        return self._expand(self._whole_text(messages), [image for m in messages for image in m.images])

    def following(self, messages: Sequence[Message], *, after_end: bool) -> list[int]:
        """Return the ids that `messages` add after a reply, with the prompt for the next one.

        `after_end`: the reply's ids end with the end token that the template writes there (`closes`); otherwise (cut
        off, or ended by another) it is added here.
        """
        if not self.incremental:
            raise ContractError("this chat template rewrites history; render the whole conversation instead")
        text = self._suffix(messages)
        closing = self._closing(text) if after_end else None
        ids = self._expand(text, [image for m in messages for image in m.images])
        if closing is None:
            return ids
        # encoded with the end token before it, as in a whole conversation: some tokenizers begin a text with a space,
        # and some tokens swallow white space behind them
        return ids[ids.index(self._tokenizer.convert_tokens_to_ids(closing)) + 1 :]

    def closes(self, token: int, messages: Sequence[Message]) -> bool:
        """Return whether the last token of a reply is the end token that the template writes between a reply and
        `messages`: of several that a model knows, some end a reply and leave its message open."""
        closing = self._closing(self._suffix(messages))
        return closing is not None and self._tokenizer.convert_tokens_to_ids(closing) == token

    def demonstration(self, reply: str, control_words: Sequence[str] = ()) -> list[int]:
        """Return the ids of a reply as the policy would have sampled it, with its end token.

        `control_words`: those of the tokens that the format of the reply writes (`ActionParser.control_words`); the
        words of all others in it are letters.
        """
        return self.beginning(reply, control_words, self.end_text)

    def beginning(self, reply: str, control_words: Sequence[str] = (), end: str = "") -> list[int]:
        """Return the ids of the beginning of a reply, and of the template's own words behind it; `control_words` as for
        `demonstration`."""
        lead = "" if reply.startswith((self.dialect.lead, *control_words)) else self.dialect.lead
        return self.controls.encode(lead + self.controls.hide_reply(reply, control_words) + end)

    def transforms(self, images: Sequence[Screenshot]) -> tuple[PictureTransform | None, ...]:
        """Return what became of each picture before the model saw it; None: not known."""
        if not images:
            return ()
        return tuple(image.transform for image in self._loaded.vision_for(images).describe(images))

    async def prepare(self, images: Sequence[Screenshot]) -> None:
        """Have large pictures encoded aside, so that rendering them stops no other episode."""
        if images and self._loaded.vision is not None:
            await self._loaded.vision.cache.prepare(images)

    def check_sampled(self, ids: Sequence[int]) -> None:
        """Check the ids of a reply; see `LoadedModel.check_sampled`."""
        self._loaded.check_sampled(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, without special tokens but those around a thought."""
        if self._left_out is None:
            return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        shown = [i for i in ids if i not in self._left_out]
        return self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _text(self, messages: Sequence[Message], *, prompt: bool) -> str:
        """Return what the template makes of hidden messages. Raises ContractError where it objects to them, and for
        pictures that it does not show."""
        if self._loaded.vision is not None and not self.dialect.pictures and any(m.images for m in messages):
            raise ContractError(
                f"{self._loaded.name}: the chat template drops pictures, or writes placeholders of its own; set "
                "model.chat_template to one that writes the model's placeholder for every part of type 'image'"
            )
        told = self.dialect.write(self._with_tools(messages), self._written)
        hidden = [self.controls.hide(message) for message in told]
        try:
            text: str = self._tokenizer.apply_chat_template(
                hidden, tools=self._hidden_tools, tokenize=False, add_generation_prompt=prompt
            )
        except OBJECTIONS as error:
            roles, problem = ", ".join(message.role for message in messages[-8:]), without_aliases(str(error))
            raise ContractError(
                f"{self._loaded.name}: the chat template objects to messages of {roles}: {problem}. "
                "Expected what every conversation of a run is, a user and an assistant who take turns; set "
                "model.chat_template to one that takes others"
            ) from error
        return text

    def _whole_text(self, messages: Sequence[Message]) -> str:
        """Return the text of a whole conversation, with the prompt for the next reply."""
        if any(m.tool_calls for m in messages):  # their arguments are no key
            return self._text(messages, prompt=True)
        bare = tuple(_bare(m) for m in messages)
        return self._rendered.get((bare, None), lambda: self._text(bare, prompt=True), _bytes_of)

    @staticmethod
    def can_show(loaded: LoadedModel, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the chat template shows the tools to the policy."""
        return shows_tools(loaded, dialect_of(loaded), tools)

    def _with_tools(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with the tools in the system prompt, where the template does not show them."""
        if not self.described:
            return messages
        own = messages[:1] if messages and messages[0].role == "system" else ()
        text = "\n\n".join(part for part in [*(m.text for m in own), self.described] if part)
        return [Message("system", text), *messages[len(own) :]]

    def _written(self, calls: Sequence[ToolCall]) -> str:
        """Return calls of somebody else as the policy writes them: without the ids that an endpoint gave them."""
        if self._calls is None:
            return as_blocks(calls)
        return self._calls.render(Action(tool_calls=tuple(ToolCall(call.name, call.arguments) for call in calls)))

    def _expand(self, text: str, images: Sequence[Screenshot]) -> list[int]:
        """Return the ids of a rendered text, in the place of each picture's word what the processor makes of it."""
        if self._loaded.vision is None and not images:
            return self._encode(text)
        vision = self._loaded.vision_for(images)
        try:
            encoded = vision.describe(images)
        except (ValueError, ArithmeticError) as error:  # cut off, or a shape that the image processor cannot take
            raise EnvironmentFailure(f"a picture cannot be shown to {self._loaded.name}: {error}") from error
        word = vision.front.word_id
        ids = self._encode(vision.expand(text, images), word)
        at = [i for i, token in enumerate(ids) if token == word]
        if len(at) != len(images):
            raise ContractError(
                f"the rendered text holds {len(at)} image token(s) for {len(images)} picture(s): the chat template "
                "drops pictures, or writes placeholders of its own"
            )
        out: list[int] = []
        before = 0
        for i, image in zip(at, encoded, strict=True):
            out += ids[before:i] + image.expansion.ids.tolist()
            before = i + 1
        return out + ids[before:]

    def _encode(self, text: str, picture: int | None = None) -> list[int]:
        """Return the ids of a text, in which `picture` stands for one. Raises ContractError for a token that the model
        does not have."""
        ids = self.controls.encode(text)
        rows = self._loaded.vocabulary
        absent = sorted({token for token in ids if token >= rows and token != picture})
        if absent:
            words = [self._tokenizer.convert_ids_to_tokens(token) for token in absent[:4]]
            raise ContractError(
                f"the prompt holds tokens without a row in the embedding of {self._loaded.name}: got {words} "
                f"({absent[0]} ...), expected ids below {rows}. Take a chat template without them, or make the model "
                "larger (model.resize_token_embeddings(len(tokenizer))) and save both"
            )
        return ids

    def _suffix(self, messages: Sequence[Message]) -> str:
        """Return the text that `messages` add right behind the text of a reply."""
        key = tuple(_bare(m) for m in messages)
        history = (Message("user", "one"), Message("assistant", _PROBE_REPLY))
        return self._rendered.get((key, False), lambda: self._difference(history, key), _bytes_of)

    def _difference(self, history: Sequence[Message], messages: Sequence[Message]) -> str:
        """Return the text that `messages` add to `history`, which ends with a reply: what stands behind its text."""
        whole = self._text([*history, *messages], prompt=True)
        at = whole.rfind(history[-1].text)
        if at < 0:
            raise ContractError("the chat template does not keep an earlier reply as it was")
        return whole[at + len(history[-1].text) :]

    def _closing(self, suffix: str) -> str | None:
        """Return the end token that ends a reply in what follows its text; None: it is none of the model's."""
        if suffix.startswith(self.end_text):
            return self._end_word
        ends = [(suffix.find(word), word) for word in self._end_words]
        at, word = min(((at, word) for at, word in ends if at >= 0), default=(0, ""))
        return word if word and not suffix[:at].strip() else None

    def _prove_incremental(self) -> tuple[str, bool]:
        """Return (text of the end token, whether what a message adds is independent of the history).

        An end token closes the message of a reply, or opens the next one."""
        prompt = self._text(_PROBES[0], prompt=True)
        closed = self._text([*_PROBES[0], Message("assistant", _PROBE_REPLY)], prompt=False)
        tail = closed[closed.rfind(_PROBE_REPLY) + len(_PROBE_REPLY) :]
        following = [Message("user", _PROBE_NEXT)]
        behind = self._difference((*_PROBES[0], Message("assistant", _PROBE_REPLY)), following)
        behind = behind[: behind.find(_PROBE_NEXT)]
        self._end_words = [self._tokenizer.convert_ids_to_tokens(i) for i in self._loaded.end_ids]
        text = next((t for t in (tail, behind) if any(word in t for word in self._end_words)), None)
        if text is None:
            raise ContractError(
                f"{self._loaded.name}: the chat template closes a reply with {tail!r} and goes on with {behind!r}, "
                f"which hold none of the model's end tokens {self._end_words}; sampling could not know when to stop. "
                "Name the one that the model was taught in eos_token_id of its generation_config.json"
            )
        self._end_word = min((word for word in self._end_words if word in text), key=text.index)
        self.end_text = text[: text.index(self._end_word) + len(self._end_word)]
        return self.end_text, closed.startswith(prompt + self.dialect.lead + _PROBE_REPLY) and self._suffixes_agree()

    def _suffixes_agree(self) -> bool:
        from_user = [Message("user", "next words\nand more")]
        names = [str(tool.get("function", tool)["name"]) for tool in self._tools]
        from_tool = [Message("tool", "12", name=name) for name in 2 * names[:1]]
        return all(self._grows_alike(following) for following in (from_user, from_tool) if following)

    def _grows_alike(self, following: list[Message]) -> bool:
        """Return whether `following` adds the same text after every history, and changes nothing before it."""
        try:
            texts = {self._difference([*history, Message("assistant", _PROBE_REPLY)], following) for history in _PROBES}
            grows = all(
                self._text([*h, Message("assistant", _PROBE_REPLY), *following], prompt=True).startswith(
                    self._text(h, prompt=True) + self.dialect.lead + _PROBE_REPLY
                )
                for h in _PROBES
            )
        except ContractError:
            return False
        return len(texts) == 1 and grows


def _controls_of(loaded: LoadedModel, dialect: Dialect) -> ControlTokens:
    """Return the control tokens of a model: also those that its tokenizer does not flag, and its chat template builds
    with."""

    def rendered(*messages: Message) -> str:
        text: str = loaded.tokenizer.apply_chat_template(dialect.write(messages), tokenize=False)
        return text

    exchange = (Message("user", "1"), Message("assistant", _PROBE_REPLY))
    turns = rendered(Message("system", "1"), *exchange, Message("user", "2"))
    result = rendered(*exchange, Message("tool", "12", name="probe", call_id="probe1234")).rpartition(_PROBE_REPLY)[2]
    # a tokenizer may also keep words, runs of spaces or tags of HTML as tokens of their own: they are no control tokens
    added = [token.content for token in loaded.tokenizer.added_tokens_decoder.values()]
    words = [word for word in added if any(map(str.isalpha, word)) and not word.strip().isalnum()]
    return ControlTokens(loaded, [word for word in words if word in turns], [word for word in words if word in result])


def _left_out_of_replies(loaded: LoadedModel) -> frozenset[int] | None:
    """Return the special tokens that are no part of the text of a reply, where those around a thought are. None: all
    are none."""
    added = loaded.tokenizer.added_tokens_decoder
    special = {i for i, token in added.items() if token.special} | {*loaded.tokenizer.all_special_ids}
    marks = {i for i, token in added.items() if token.content in MARKS} - {*loaded.end_ids}
    return frozenset(special - marks) if special & marks else None


def _described(tools: Sequence[Mapping[str, Any]], calls: CallFormat | None) -> str:
    """Return what a system prompt says of the tools."""
    functions = [json.dumps(dict(tool.get("function", tool)), ensure_ascii=False) for tool in tools]
    how = "" if calls is None else f"\n\n{calls.describe()}"
    return "You can call these functions:\n" + "\n".join(functions) + how


def _tell(name: str, note: str) -> None:
    if (name, note) not in _TOLD:
        _TOLD.add((name, note))
        _LOG.warning("the chat template of %s: %s", name, note)


def _bare(message: Message) -> Message:
    """Return the message with its pictures made alike: the text around them is the same for all."""
    if not message.images:
        return message
    blank = Screenshot(b"", "picture")
    return replace(message, images=(blank,) * len(message.images))


def _bytes_of(text: str) -> int:
    return 8 * len(text)
