"""The agent loop of phones under its name in verl; what it plays is tested without verl."""

from __future__ import annotations

import pytest
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from tests.integrations.test_mobile_world import says
from tests.integrations.verl.worlds import TwoLooks
from uirl.errors import ContractError
from uirl.integrations.verl import EnvironmentAgentLoop, MobileWorldAgentLoop
from uirl.integrations.verl.rollout.registration import AGENT_LOOPS


def test_it_is_registered_and_plays_alone_too() -> None:
    assert AGENT_LOOPS["mobile_world"] is MobileWorldAgentLoop
    assert issubclass(MobileWorldAgentLoop, EnvironmentAgentLoop)
    assert "mobile_world" in _agent_loop_registry
    loop = MobileWorldAgentLoop(env=TwoLooks(), agent_type="text", engine=says("ab"), max_step=3)
    assert loop.run_full_interaction("a", "letters/few")["reward"] == 1.0
    assert loop.alone is not None
    loop.alone.close()


def test_a_loop_that_verl_made_has_no_environment() -> None:
    loop = MobileWorldAgentLoop.__new__(MobileWorldAgentLoop)
    loop.alone = None
    with pytest.raises(ContractError, match="give it env="):
        loop.run_full_interaction("a")
