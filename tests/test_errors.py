"""The words of errors: no address of an object in them, whoever wrote them and wherever they go."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest

import uirl.errors
from uirl import Tool, ToolRegistry
from uirl.errors import UirlError, without_addresses
from uirl.http.guard import Refusal
from uirl.runtime.limits import InputError, shown
from uirl.serving import APIProblem
from uirl.tools import ToolError
from uirl.types import ToolCall


class Opaque:
    """An object without a repr of its own."""


THINGS = [Opaque(), partial(print, Opaque()), Opaque.__init__.__get__(Opaque()), (lambda: 0), [Opaque()]]
KINDS = [kind for kind in vars(uirl.errors).values() if isinstance(kind, type) and issubclass(kind, UirlError)]


@pytest.mark.parametrize("kind", [*KINDS, InputError])
def test_no_error_tells_where_an_object_lies(kind: type[UirlError]) -> None:
    for thing in THINGS:
        assert "0x" in repr(thing)
        error = kind(f"expected a number, got {thing!r}; try 3")
        assert "0x" not in str(error)
        assert "0x" not in repr(error)
        assert "got <" in str(error) or "got [" in str(error) or "functools" in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert "0x" not in shown(thing, 200)


def test_other_words_stay_as_they_are() -> None:
    for text in ("byte 0x7f1234567890 is wrong", "read at 0x1F", "at 0", "<Foo object>", ""):
        assert without_addresses(text) == text
        assert str(UirlError(text)) == text
    assert UirlError("a", 3).args == ("a", 3)
    assert without_addresses("<A at 0x7f00ff001122> and <B at 0x7F00FF001123>") == "<A> and <B>"


def test_what_servers_answer_holds_none() -> None:
    assert "0x" not in APIProblem(400, f"got {Opaque()!r}", code="x").body["error"]["message"]
    assert "0x" not in str(Refusal(409, "order", f"got {Opaque()!r}"))


class Careless(Tool):
    """Says what it holds."""

    def execute(self) -> Any:
        raise ToolError(f"nothing to do with {Opaque()!r}")


async def test_a_policy_reads_the_same_words_in_every_run() -> None:
    result = await ToolRegistry([Careless()]).call(ToolCall("careless", {}))
    assert "Opaque object>" in result.text
    assert "0x" not in result.text
