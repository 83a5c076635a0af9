"""The config of a run: `ConfigStore` and its sections."""

from uirl.config.algorithm import AlgorithmConfig
from uirl.config.checkpoint import CheckpointConfig
from uirl.config.environment import EnvironmentConfig
from uirl.config.inference import InferenceConfig
from uirl.config.logging import LoggingConfig
from uirl.config.model import LoraConfig, ModelConfig, TinyConfig
from uirl.config.ray import RayConfig
from uirl.config.rollout import RolloutConfig
from uirl.config.section import Section
from uirl.config.store import ConfigStore, load_config
from uirl.config.training import DEFAULT_GROUP_SIZE, GROUP_ESTIMATORS, TrainingConfig, WarmStartConfig

__all__ = [
    "DEFAULT_GROUP_SIZE",
    "GROUP_ESTIMATORS",
    "AlgorithmConfig",
    "CheckpointConfig",
    "ConfigStore",
    "EnvironmentConfig",
    "InferenceConfig",
    "LoggingConfig",
    "LoraConfig",
    "ModelConfig",
    "RayConfig",
    "RolloutConfig",
    "Section",
    "TinyConfig",
    "TrainingConfig",
    "WarmStartConfig",
    "load_config",
]
