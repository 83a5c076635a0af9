"""verl's keys that nobody would read are refused with what takes their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import TwoLooks
from uirl.errors import ConfigError

pytestmark = pytest.mark.verl
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {f"{MULTI_TURN}.enable": True},
            r"multi_turn.enable=True has no effect.*inference.max_turns of the section uirl",
        ),
        ({f"{MULTI_TURN}.max_assistant_turns": 5}, r"multi_turn.max_assistant_turns=5 has no effect"),
        ({f"{MULTI_TURN}.tool_config_path": "tools.yaml"}, r"tool_config_path='tools.yaml' has no effect"),
        ({"reward.custom_reward_function.path": "mine.py"}, r"custom_reward_function.path='mine.py' has no effect"),
    ],
)
def test_keys_of_verls_own_loop_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(config(tmp_path), TwoLooks(), verl=keys)


def test_a_dataset_of_somebody_elses_may_name_that_loop(tmp_path: Path) -> None:
    dataset = {"data.custom_cls.path": None, "data.custom_cls.name": None, "data.train_files": "rows.parquet"}
    keys = {f"{MULTI_TURN}.enable": True, "reward.custom_reward_function.path": "mine.py"}
    made = trainer(config(tmp_path), TwoLooks(), verl=dataset | keys).config
    assert made.actor_rollout_ref.rollout.multi_turn.enable is True
