"""A viewer over one small run, asked without a network; and one in real Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models

from tests.viewer.browsing import SECONDS, OpenTab, Tab, viewer
from tests.viewer.runs import make_run, passed, picture, trajectory, turn
from uirl.environments.browser.process import Chromium
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs

ADDRESS = "http://127.0.0.1:8123"


def client_of(runs: Runs, **options: Any) -> TestClient:
    """Asks a viewer of these runs."""
    return TestClient(create_app(runs, Access("127.0.0.1", 8123)), base_url=ADDRESS, **options)


def get(client: TestClient, path: str, status: int = 200) -> Any:
    """What is answered, with this status."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


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
    with client_of(runs) as opened:
        yield opened


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Every byte is a token."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of a file of tests are: whatever a test makes there is shown at once."""
    made = tmp_path_factory.mktemp("pages") / "runs"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with viewer(folder) as served:
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Chromium]:
    """One for all tests of the viewer; it reaches this machine alone, whatever the port."""
    opened = Chromium(allow=["http://127.0.0.1"], timeout=SECONDS)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_tab(browser: Chromium, address: str) -> AsyncIterator[OpenTab]:
    pages = []

    async def opened(width: int = 1280, height: int = 900) -> Tab:
        pages.append(await browser.new_page(width, height))
        return Tab(pages[-1], address)

    yield opened
    for page in pages:
        await page.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tab(open_tab: OpenTab) -> Tab:
    return await open_tab()
