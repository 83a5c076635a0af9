"""A viewer over one small run, asked without a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models

from tests.viewer.runs import make_run, passed, picture, trajectory, turn
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs

ADDRESS = "http://127.0.0.1:8123"


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def run(tmp_path):
    shots = [picture("red"), picture("blue")]
    episodes = [
        trajectory("a/1", [turn("press red", shots[0]), turn("press blue", shots[1])], verdict=passed()),
        trajectory("b", [turn("scroll", shots[0])], success=False, task="other", stop_reason="max_turns"),
        trajectory("c", [turn("?" * 64)], success=None),
    ]
    return make_run(tmp_path / "runs" / "first", episodes)


@pytest.fixture
def runs(run) -> Runs:
    return Runs([run.parent])


@pytest.fixture
def client(runs) -> Iterator[TestClient]:
    with TestClient(create_app(runs, Access("127.0.0.1", 8123)), base_url=ADDRESS) as opened:
        yield opened


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Every byte is a token."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made
