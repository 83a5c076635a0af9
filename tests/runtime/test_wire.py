"""The models of all protocols: what they refuse, and how they say it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from uirl.runtime.wire import Items, Object, Text, WireAnswer, WireError, WireModel, dumps, loads


class _Part(WireModel):
    name: Text
    size: float = 0.0


class _Whole(WireModel):
    id: int
    parts: Items[_Part] = Field(default_factory=list)
    info: Object = Field(default_factory=dict)


class _Answer(WireAnswer):
    id: int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "body is []; expected an object"),
        ({}, "body.id is missing"),
        ({"id": None}, "body.id is missing"),
        ({"id": True}, "body.id is True; expected a whole number"),
        ({"id": "1"}, "body.id is '1'; expected a whole number"),
        ({"parts": {}}, "body.parts is {}; expected a list"),
        ({"id": 1, "parts": [{"name": "a"}, {"name": 2}]}, "body.parts[1].name is 2; expected a string"),
        ({"id": 1, "parts": [{"name": "a", "size": 1e400}]}, "body.parts[0].size is inf; expected a finite number"),
        ({"id": 1, "info": [1]}, "body.info is [1]; expected an object"),
        ({"id": 1, "infos": {}}, "body.infos is not known here; did you mean 'info'?"),
        ({"id": 1, "\ud800": {}}, "body.\ufffd is not known here; known: id, info, parts"),
    ],
)
def test_the_first_wrong_field_is_named(value: Any, message: str) -> None:
    with pytest.raises(WireError) as told:
        _Whole.read(value, "body")
    assert str(told.value) == message


def test_a_null_is_an_absent_field() -> None:
    assert _Whole.read({"id": 1, "parts": None, "other": None}) == _Whole(id=1)


def test_an_answer_may_hold_more_than_is_read() -> None:
    assert _Answer.read({"id": 1, "other": 2}).write() == {"id": 1}


def test_what_was_never_set_is_not_written() -> None:
    assert _Whole.read({"id": 1, "info": {}}).write() == {"id": 1, "info": {}}


def test_json_is_bounded_and_has_no_nan() -> None:
    assert loads(dumps({"half": "\ud800"})) == {"half": "\ud800"}
    for text in ("NaN", "[" * 100 + "]" * 100, "{"):
        with pytest.raises(WireError, match=r"the text|NaN"):
            loads(text)
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(float("nan"))
