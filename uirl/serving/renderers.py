"""Chat templates by the tools they show: one renderer for each set, the newest kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError

from uirl.errors import ContractError, EnvironmentFailure
from uirl.inference.models.chat import CallFormat, ChatRenderer
from uirl.inference.models.control_tokens import without_aliases
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.limits import clip
from uirl.serving.problems import bad_request

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
