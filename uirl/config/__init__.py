"""The config of a run: `ConfigStore` and its sections."""

from uirl.config.section import Section
from uirl.config.sections.actors import ActorsConfig
from uirl.config.sections.algorithm import AlgorithmConfig
from uirl.config.sections.checkpoint import CheckpointConfig
from uirl.config.sections.curriculum import CurriculumConfig
from uirl.config.sections.environment import EnvironmentConfig
from uirl.config.sections.evolve import EvolveConfig
from uirl.config.sections.inference import InferenceConfig
from uirl.config.sections.logging import LoggingConfig
from uirl.config.sections.model import LoraConfig, ModelConfig, TinyConfig
from uirl.config.sections.ray import RayConfig
from uirl.config.sections.rollout import RolloutConfig
from uirl.config.sections.training import DEFAULT_GROUP_SIZE, GROUP_ESTIMATORS, TrainingConfig, WarmStartConfig
from uirl.config.sections.verification import VerificationConfig
from uirl.config.store import ConfigStore, load_config
from uirl.config.tree import EngineSettings

__all__ = [
    "DEFAULT_GROUP_SIZE",
    "GROUP_ESTIMATORS",
    "ActorsConfig",
    "AlgorithmConfig",
    "CheckpointConfig",
    "ConfigStore",
    "CurriculumConfig",
    "EngineSettings",
    "EnvironmentConfig",
    "EvolveConfig",
    "InferenceConfig",
    "LoggingConfig",
    "LoraConfig",
    "ModelConfig",
    "RayConfig",
    "RolloutConfig",
    "Section",
    "TinyConfig",
    "TrainingConfig",
    "VerificationConfig",
    "WarmStartConfig",
    "load_config",
]
