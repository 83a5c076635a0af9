"""GRPO's settings, written into a config of ours and into one of verl's."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl import ConfigError, ConfigStore
from uirl.integrations.verl.config.grpo import CustomGRPOTrainer

GRPO = CustomGRPOTrainer(eps_low=0.1, eps_high=0.35, normalize_by_std=False, kl_coef=0.001)


def test_a_config_of_ours() -> None:
    before = ConfigStore()
    config = GRPO.update_config_for_verl(before)
    assert config.training.adv_estimator == "grpo"
    assert config.training.clip_range == (0.1, 0.35)
    assert (config.algorithm.normalize_by_std, config.algorithm.kl_loss_coef) == (False, 0.001)
    assert before == ConfigStore()


@pytest.mark.parametrize("wrong", [{"eps_low": 1.0}, {"eps_high": 0.0}, {"kl_coef": -0.1}, {"eps_low": float("nan")}])
def test_numbers_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected 0 < eps_low < 1"):
        CustomGRPOTrainer(**wrong)  # type: ignore[arg-type]


def test_something_else() -> None:
    with pytest.raises(ConfigError, match="expected a ConfigStore or verl's config, got dict"):
        GRPO.update_config_for_verl({})


@pytest.mark.verl
def test_a_config_of_verls() -> None:
    from uirl.integrations.verl.config.mapping import create_verl_config

    before = create_verl_config(ConfigStore().override(["model.model_name=/models/seven"]))
    config = GRPO.update_config_for_verl(before)
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.35)
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.001)
    assert (config.algorithm.adv_estimator, config.algorithm.norm_adv_by_std_in_grpo) == ("grpo", False)
    assert before.actor_rollout_ref.actor.clip_ratio_low != 0.1
    from omegaconf import OmegaConf

    with pytest.raises(ConfigError, match=r"Expected a whole config of verl's.*load_verl_config"):
        GRPO.update_config_for_verl(OmegaConf.create({"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {}}))
    # the same as by way of a config of ours
    own = GRPO.update_config_for_verl(ConfigStore().override(["model.model_name=/models/seven"]))
    ours = create_verl_config(own)
    for key in ("clip_ratio_low", "clip_ratio_high", "use_kl_loss", "kl_loss_coef"):
        assert ours.actor_rollout_ref.actor[key] == actor[key]


@pytest.mark.verl
def test_a_multi_turn_engine_says_turns_prompt_and_tools(tmp_path: Path) -> None:
    from tests.integrations.verl.worlds import TwoLooks
    from uirl import CalculatorTool, MultiTurnInferenceEngine, ToolRegistry, create_inference_engine, create_parser
    from uirl.environments.tool_use import ToolEnvironment
    from uirl.integrations.verl import create_trainer
    from uirl.integrations.verl.config.settings import Settings
    from uirl.rollout import MultiTurnManager

    engine = create_inference_engine("uirl/tiny-lm")
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), create_parser("qwen"), TwoLooks())
    multi_turn = MultiTurnInferenceEngine(engine, 3, "look twice", tool_manager=manager, enable_tools=True)
    store = ConfigStore().override(["model.model_name=uirl/tiny-lm", f"logging.runs_dir={tmp_path}"])
    trainer = create_trainer(store, TwoLooks(), multi_turn_engine=multi_turn)
    told = Settings.read(trainer.config.data).store()
    assert told.inference.max_turns == 3
    assert told.inference.system_prompt.startswith("look twice\n\n- calculator(")
    assert isinstance(trainer._environment, ToolEnvironment)
    assert told.environment.name == "object:uirl.environments.tool_use.environment:ToolEnvironment"
    with pytest.raises(ConfigError, match="handed over in code"):
        create_trainer(told)
    assert store.inference.max_turns != 3
    engine.close()
    manager.close()
