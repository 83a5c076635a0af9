"""The stock client of OpenEnv (openenv-core) plays what `uirl serve` serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.clients


@pytest.fixture
def url() -> Iterator[str]:
    """Where `uirl serve` serves the guessing game."""
    server = subprocess.Popen(
        [sys.executable, "-m", "uirl.cli.main", "serve", "--env", "guess_number", "--port", "0"],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        (address,) = re.findall(r"http://[\w.:]+", said)
        yield address
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)


async def test_the_generic_client_plays_to_the_end(url: str) -> None:
    from openenv.core import GenericEnvClient

    async with GenericEnvClient(base_url=url) as env:
        begun = await env.reset(seed=3)
        assert (begun.observation["text"], begun.done) == ("guess 1-7", False)
        low, high, rewards = 1, 7, []
        result = begun
        while not result.done:
            guess = (low + high) // 2
            result = await env.step({"text": str(guess)})
            rewards.append(result.reward)
            low, high = (guess + 1, high) if "higher" in result.observation["text"] else (low, guess - 1)
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert (await env.state())["step_count"] == len(rewards)
        again = await env.reset(seed=3)
        assert again.observation == begun.observation


def test_the_synchronous_client_and_a_mistake_of_the_agent(url: str) -> None:
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as env:
        env.reset(seed=1)
        with pytest.raises(Exception, match="no_such_field"):
            env.step({"no_such_field": 1})
        assert env.step({"text": "not a number"}).reward == 0.0
        assert env.state()["step_count"] == 1


async def test_clients_side_by_side_have_episodes_of_their_own(url: str) -> None:
    from openenv.core import GenericEnvClient

    async with GenericEnvClient(base_url=url) as one, GenericEnvClient(base_url=url) as other:
        await one.reset(seed=1)
        await other.reset(seed=2)
        await one.step({"text": "4"})
        assert (await one.state())["step_count"] == 1
        assert (await other.state())["step_count"] == 0
