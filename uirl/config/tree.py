"""The tree of all sections. Rules between keys read it; `ConfigStore` adds files, checks and overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from uirl.config.keys import KeyedModel
from uirl.config.section import Section
from uirl.config.sections.actors import ActorsConfig
from uirl.config.sections.algorithm import AlgorithmConfig
from uirl.config.sections.checkpoint import CheckpointConfig
from uirl.config.sections.curriculum import CurriculumConfig
from uirl.config.sections.environment import EnvironmentConfig
from uirl.config.sections.evolve import EvolveConfig
from uirl.config.sections.inference import InferenceConfig
from uirl.config.sections.logging import LoggingConfig
from uirl.config.sections.model import ModelConfig
from uirl.config.sections.ray import RayConfig
from uirl.config.sections.rollout import RolloutConfig
from uirl.config.sections.training import GROUP_ESTIMATORS, TrainingConfig
from uirl.config.sections.verification import VerificationConfig


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine reads of a config."""

    model: ModelConfig
    inference: InferenceConfig
    actors: ActorsConfig
    seed: int
    """Of the run."""
    sleep_level: int
    """`ConfigTree.engine_sleep_level`."""


class ConfigTree(Section):
    """Every setting of a run, by section."""

    key: ClassVar[str] = ""

    model: ModelConfig = Field(default_factory=ModelConfig)
    inference: InferenceConfig = Field(default_factory=InferenceConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    actors: ActorsConfig = Field(default_factory=ActorsConfig)
    verification: VerificationConfig = Field(default_factory=VerificationConfig)
    evolve: EvolveConfig = Field(default_factory=EvolveConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    ray: RayConfig = Field(default_factory=RayConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)

    @property
    def turn_limit(self) -> int:
        """Number of turns after which an episode is cut: `rollout.max_turns`, resolved."""
        if self.rollout.max_turns is not None:
            return self.rollout.max_turns
        return self.inference.max_turns if self.inference.multi_turn else 1

    @property
    def wants_warm_start(self) -> bool:
        """Whether a run begins with supervised learning where it can: `training.warm_start.enabled`, resolved."""
        wanted = self.training.warm_start.enabled
        return self.model.built_in if wanted is None else wanted

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus: `training.entropy_coef`, resolved."""
        written = self.training.entropy_coef
        return (0.02 if self.model.built_in else 0.0) if written is None else written

    @property
    def group_floor(self) -> int:
        """Usable episodes without which a group is not learned from: `actors.group_floor`, resolved."""
        if self.actors.group_floor is not None:
            return self.actors.group_floor
        return 2 if self.training.adv_estimator in GROUP_ESTIMATORS else 1

    @property
    def engines_in_ray(self) -> int:
        """How many engines of a run are in Ray."""
        return self.actors.engines if self.ray.use_ray and self.inference.backend == "transformers" else 0

    @property
    def draws_seed(self) -> int:
        """Seed of the draws of tokens: `inference.seed`, resolved."""
        return self.training.seed if self.inference.seed is None else self.inference.seed

    @property
    def engine_sleep_level(self) -> int:
        """How deep an engine on the learner's GPU sleeps during an update: `inference.sleep`, resolved. 0: not at
        all."""
        inference = self.inference
        if inference.backend != "vllm" or inference.server_url is not None or inference.sleep == "off":
            return 0
        if inference.sleep != "auto":
            return inference.sleep
        if self.actors.run_ahead:
            return 0
        return 1 if self.model.use_lora else 2

    @property
    def engine_settings(self) -> EngineSettings:
        """What an engine reads of this."""
        return EngineSettings(self.model, self.inference, self.actors, self.training.seed, self.engine_sleep_level)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model takes part in the loss or the reward."""
        return self.training.use_kl_in_reward or self.algorithm.kl_loss_coef > 0


KeyedModel.config_tree = ConfigTree
