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

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jinja2 import TemplateError

from uirl.errors import ContractError, EnvironmentFailure
from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.inference.models.control_tokens import ControlTokens
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.templates import TEMPLATES
from uirl.runtime.bounded_cache import BoundedCache
from uirl.types import PictureTransform

_PROBE_REPLY = f"ok{secrets.randbits(128)}"
"""Nothing that is said later holds it: where it stands, the reply ends."""
_RENDERED_BYTES = 4 * 2**20
_PROBES = (
    [Message("user", "one")],
    [Message("system", "be brief"), Message("user", "two")],
    [Message("user", "one"), Message("assistant", "a\nb"), Message("user", "three")],
)


class ChatRenderer:
    """The chat template of one model, as token ids."""

    def __init__(
        self,
        loaded: LoadedModel,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        controls: ControlTokens | None = None,
    ) -> None:
        """`tools`: JSON schemas of the functions the policy may call, which the template writes where its model was
        taught to find them. `controls`: those of another renderer of the same model, shared. Raises ContractError for a
        template that does not show the tools."""
        if not loaded.tokenizer.chat_template:
            raise ContractError(
                f"{loaded.name}: the tokenizer has no chat template; set model.chat_template to one of "
                f"{', '.join(TEMPLATES)} or to a Jinja string"
            )
        self._loaded = loaded
        self._tokenizer = loaded.tokenizer
        self.controls = controls if controls is not None else _controls_of(loaded)
        self._tools = [dict(tool) for tool in tools]
        self._hidden_tools = self.controls.hide_all(self._tools) or None
        if self._tools and not self.can_show(loaded, self._tools):
            raise ContractError(
                f"{loaded.name}: the chat template does not show tools to the policy; describe them in the system "
                "prompt instead (environment option describe='prompt'), or set model.chat_template to one that "
                "knows tools"
            )
        self._rendered: BoundedCache[str] = BoundedCache(_RENDERED_BYTES)
        """Texts that the template made, by the messages it made them of: environments say the same again and again."""
        self.end_text, self.incremental = self._prove_incremental()

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, with the prompt for the next reply. Raises EnvironmentFailure for a
        picture that cannot be shown."""
        return self._expand(self._whole_text(messages), [image for m in messages for image in m.images])

    def following(self, messages: Sequence[Message], *, after_end: bool) -> list[int]:
        """Return the ids that `messages` add after a reply, with the prompt for the next one.

        `after_end`: the reply's ids end with the template's end token; otherwise (cut off) it is added here.
        """
        if not self.incremental:
            raise ContractError("this chat template rewrites history; render the whole conversation instead")
        key = (tuple(_bare(m) for m in messages), after_end)
        text = self._rendered.get(key, lambda: self._render_suffix(*key), _bytes_of)
        return self._expand(text, [image for m in messages for image in m.images])

    def demonstration(self, reply: str, control_words: Sequence[str] = ()) -> list[int]:
        """Return the ids of a reply as the policy would have sampled it, with its end token.

        `control_words`: those of the tokens that the format of the reply writes (`ActionParser.control_words`); the
        words of all others in it are letters.
        """
        return self.controls.encode(self.controls.hide_reply(reply, control_words) + self.end_text)

    def beginning(self, reply: str, control_words: Sequence[str] = ()) -> list[int]:
        """Return the ids of the beginning of a reply; `control_words` as for `demonstration`."""
        return self.controls.encode(self.controls.hide_reply(reply, control_words))

    def transforms(self, images: Sequence[Screenshot]) -> tuple[PictureTransform | None, ...]:
        """Return what became of each picture before the model saw it; None: not known."""
        return self._loaded.vision_for(images).transforms(images) if images else ()

    async def prepare(self, images: Sequence[Screenshot]) -> None:
        """Have large pictures encoded aside, so that rendering them stops no other episode."""
        if images and self._loaded.vision is not None:
            await self._loaded.vision.prepare(images)

    def check_sampled(self, ids: Sequence[int]) -> None:
        """Check the ids of a reply; see `LoadedModel.check_sampled`."""
        self._loaded.check_sampled(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _text(self, messages: Sequence[Message], *, prompt: bool) -> str:
        """Return what the template makes of hidden messages."""
        hidden = [self.controls.hide(m.as_hf()) for m in messages]
        return self._tokenizer.apply_chat_template(
            hidden, tools=self._hidden_tools, tokenize=False, add_generation_prompt=prompt
        )

    def _whole_text(self, messages: Sequence[Message]) -> str:
        """Return the text of a whole conversation, with the prompt for the next reply."""
        if any(m.tool_calls for m in messages):  # their arguments are no key
            return self._text(messages, prompt=True)
        bare = tuple(_bare(m) for m in messages)
        return self._rendered.get((bare, None), lambda: self._text(bare, prompt=True), _bytes_of)

    @staticmethod
    def can_show(loaded: LoadedModel, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the chat template shows the tools to the policy."""
        messages = [message.as_hf() for message in _PROBES[1]]
        text = loaded.tokenizer.apply_chat_template(messages, tools=[dict(tool) for tool in tools], tokenize=False)
        return all(name in text for name in _names(tools))

    def _expand(self, text: str, images: Sequence[Screenshot]) -> list[int]:
        """Return the ids of a rendered text, in the place of each picture's word what the processor makes of it."""
        if self._loaded.vision is None and not images:
            return self.controls.encode(text)
        vision = self._loaded.vision_for(images)
        try:
            encoded = vision.describe(images)
        except (ValueError, ArithmeticError) as error:  # cut off, or a shape that the image processor cannot take
            raise EnvironmentFailure(f"a picture cannot be shown to {self._loaded.name}: {error}") from error
        ids = self.controls.encode(vision.expand(text, images))
        word = vision.front.word_id
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

    def _render_suffix(self, messages: tuple[Message, ...], after_end: bool) -> str:
        history = (Message("user", "one"), Message("assistant", _PROBE_REPLY))
        return self._difference(history, messages, after_end)

    def _difference(self, history: Sequence[Message], messages: Sequence[Message], after_end: bool) -> str:
        """Return the text that `messages` add to `history`, which ends with a reply: cut after the reply's end
        token."""
        whole = self._text([*history, *messages], prompt=True)
        at = whole.rfind(history[-1].text + (self.end_text if after_end else ""))
        if at < 0:
            raise ContractError("the chat template does not keep an earlier reply as it was")
        return whole[at + len(history[-1].text) + (len(self.end_text) if after_end else 0) :]

    def _prove_incremental(self) -> tuple[str, bool]:
        """Return (text of the end token, whether what a message adds is independent of the history)."""
        prompt = self._text(_PROBES[0], prompt=True)
        closed = self._text([*_PROBES[0], Message("assistant", _PROBE_REPLY)], prompt=False)
        tail = closed[closed.rfind(_PROBE_REPLY) + len(_PROBE_REPLY) :]
        ends = [self._tokenizer.convert_ids_to_tokens(i) for i in self._loaded.end_ids]
        closing = [word for word in ends if word in tail]
        if not closing:
            raise ContractError(
                f"the chat template closes a reply with {tail!r}, which holds none of the model's end tokens {ends}; "
                "sampling could not know when to stop"
            )
        end = min(closing, key=tail.index)
        self.end_text = tail[: tail.index(end) + len(end)]
        return self.end_text, closed.startswith(prompt + _PROBE_REPLY) and self._suffixes_agree()

    def _suffixes_agree(self) -> bool:
        from_user = [Message("user", "next words\nand more")]
        from_tool = [Message("tool", "12", name=_names(self._tools)[0]) for _ in range(2)] if self._tools else []
        return all(self._grows_alike(following) for following in (from_user, from_tool) if following)

    def _grows_alike(self, following: list[Message]) -> bool:
        """Return whether `following` adds the same text after every history, and changes nothing before it."""
        try:
            texts = {
                self._difference([*history, Message("assistant", _PROBE_REPLY)], following, True) for history in _PROBES
            }
            grows = all(
                self._text([*h, Message("assistant", _PROBE_REPLY), *following], prompt=True).startswith(
                    self._text(h, prompt=True) + _PROBE_REPLY
                )
                for h in _PROBES
            )
        except ContractError:
            return False
        return len(texts) == 1 and grows


def _controls_of(loaded: LoadedModel) -> ControlTokens:
    """Return the control tokens of a model: also those that its tokenizer does not flag, and its chat template builds
    with."""

    def rendered(*messages: Message) -> str:
        try:
            return loaded.tokenizer.apply_chat_template([m.as_hf() for m in messages], tokenize=False)
        except (TemplateError, TypeError):  # not every template takes every role
            return ""

    exchange = (Message("user", "1"), Message("assistant", _PROBE_REPLY))
    turns = rendered(Message("system", "1"), *exchange, Message("user", "2")) or rendered(*exchange)
    result = rendered(*exchange, Message("tool", "12", name="probe", call_id="probe1234")).rpartition(_PROBE_REPLY)[2]
    # a tokenizer may also keep words, runs of spaces or tags of HTML as tokens of their own: they are no control tokens
    added = [token.content for token in loaded.tokenizer.added_tokens_decoder.values()]
    words = [word for word in added if any(map(str.isalpha, word)) and not word.strip().isalnum()]
    return ControlTokens(loaded, [word for word in words if word in turns], [word for word in words if word in result])


def _bare(message: Message) -> Message:
    """Return the message with its pictures made alike: the text around them is the same for all."""
    if not message.images:
        return message
    blank = Screenshot(b"", "picture")
    return replace(message, images=(blank,) * len(message.images))


def _bytes_of(text: str) -> int:
    return 8 * len(text)


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(tool.get("function", tool)["name"]) for tool in tools]
