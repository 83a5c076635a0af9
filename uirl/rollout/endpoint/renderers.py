"""Chat templates by the tools they show: one renderer for each set, the newest kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError

from uirl.errors import ContractError, EnvironmentFailure
from uirl.inference.chat import ChatRenderer
from uirl.inference.models import LoadedModel
from uirl.rollout.endpoint.problems import bad_request


class Renderers:
    """`ChatRenderer`s of one model. Proving a template costs a dozen renderings, so they are kept. Threads may
    share it."""

    def __init__(self, loaded: LoadedModel, capacity: int) -> None:
        self._loaded, self._capacity = loaded, capacity
        self._kept: OrderedDict[str, ChatRenderer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """The renderer that shows `tools`, whose key is `key`. Raises a 400 where the template cannot."""
        with self._lock:
            if key not in self._kept:
                with rendering("tools" if tools else "messages"):
                    known = next(iter(self._kept.values()), None)
                    controls = None if known is None else known.controls
                    self._kept[key] = ChatRenderer(self._loaded, tools, controls=controls)
            self._kept.move_to_end(key)
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
            return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)


@contextmanager
def rendering(param: str) -> Iterator[None]:
    """A context in which a chat template's objections become a 400 that names `param`."""
    try:
        yield
    # TypeError: templates add and index what they are given, and raise whatever Python raises
    except (ContractError, EnvironmentFailure, TemplateError, TypeError, RecursionError) as error:
        raise bad_request(f"the chat template of this model cannot show that: {error}", param) from error
