"""From messages to a prompt: how long it is before it is encoded, and the chat templates by the tools they show."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from jinja2 import TemplateError

from uirl.errors import ContractError, EnvironmentFailure
from uirl.inference.models.chat import CallFormat, ChatRenderer
from uirl.inference.models.control_tokens import without_aliases
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.limits import clip
from uirl.serving.protocol.fields import APIProblem, bad_request
from uirl.serving.protocol.messages import WireMessage

T = TypeVar("T")

SMALL = 32 * 1024
"""Characters or bytes that are read and encoded sooner than a thread is woken."""
_PLAIN = 8
"""Characters per token that no ordinary text has. What is longer than so many to a token of the context is looked at
before it is rendered."""
_SLICE = 16 * 1024


async def beside_the_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; on a thread where it goes through more than a few thousand characters or bytes."""
    return work() if size <= SMALL else await asyncio.to_thread(work)


def texts_of(messages: Iterable[WireMessage], tools_key: str) -> list[str]:
    """Everything of a chat call that is encoded, but for what the template adds."""
    texts = [tools_key]
    for message in (wire.message for wire in messages):
        texts.append(message.text)
        texts += [json.dumps(dict(call.arguments), ensure_ascii=False) for call in message.tool_calls]
    return texts


class LengthCheck:
    """Refuses prompts that cannot fit, at a cost that grows with the context and not with the prompt."""

    def __init__(self, tokenizer: Any, max_context: int) -> None:
        self._tokenizer, self._max_context = tokenizer, max_context
        self._longest: int | None = None

    def check(self, texts: Iterable[str], param: str) -> None:
        """Raise a 400 for texts that certainly have more tokens than the context.

        Texts with few characters to a token of the context pass unread: encoding them is cheap, and then their length
        is known. Of longer ones as much is encoded, slice by slice, as it takes to have twice the tokens of the
        context: a cut adds a token or two, not as many again.
        """
        texts = list(texts)
        characters = sum(map(len, texts))
        if characters <= _PLAIN * self._max_context:
            return
        least = characters // self._longest_token()
        slices, count = _slices(texts), 0
        while least <= self._max_context:
            part = next(slices, None)
            if part is None:
                return
            count += len(self._tokenizer(part, add_special_tokens=False)["input_ids"])
            least = max(least, count // 2)
        raise self.problem(f"more than {least}", param)

    def problem(self, tokens: int | str, param: str) -> APIProblem:
        """Return the 400 for a prompt of so many tokens."""
        return bad_request(
            f"the prompt has {tokens} tokens; this model takes {self._max_context} with the reply",
            param,
            "context_length_exceeded",
        )

    def _longest_token(self) -> int:
        if self._longest is None:
            self._longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        return self._longest


def _slices(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _SLICE):
            yield text[start : start + _SLICE]


_PYTHONS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Templates add, index and split what they are given, and raise whatever Python raises. What is not caught here would
make the session a failure, which its agent could then bring about."""
_OBJECTIONS = (ContractError, EnvironmentFailure, TemplateError, *_PYTHONS)


class Renderers:
    """`ChatRenderer`s of one model. Proving a template costs a dozen renderings, so they are kept. Threads may
    share it."""

    def __init__(self, loaded: LoadedModel, capacity: int, calls: CallFormat | None = None) -> None:
        """Keep at most `capacity`; `calls`: how the policy writes calls, for a template that shows no tools."""
        self._loaded, self._capacity, self._calls = loaded, capacity, calls
        self._kept: OrderedDict[str, ChatRenderer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """Return the renderer that shows `tools`, whose key is `key`. Raises a 400 where the template cannot."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            sibling = next(iter(self._kept.values()), None)
        # Outside of the lock: the event loop would wait for a thread that proves a template with a thousand tools.
        with rendering("tools" if tools else "messages"):
            controls = None if sibling is None else sibling.controls
            renderer = ChatRenderer(self._loaded, tools, calls=self._calls, controls=controls)
        with self._lock:
            self._kept[key] = renderer
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        return renderer

    def __len__(self) -> int:
        return len(self._kept)


@contextmanager
def rendering(param: str) -> Iterator[None]:
    """Return a context in which a chat template's objections become a 400 that names `param`."""
    try:
        yield
    except _OBJECTIONS as error:
        problem = clip(without_aliases(str(error)), 300)
        raise bad_request(f"the chat template of this model cannot show that: {problem}", param) from error
