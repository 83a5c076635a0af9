"""Reinforcement learning for vision-language agents that use things.

The public names live here and are imported when they are first used: `import uirl` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "uirl.types": (
        "Action Failure Observation RolloutData Sample StepResult Task ToolCall ToolResult Trajectory Turn Verdict"
    ),
    "uirl.errors": (
        "AlignmentError CheckpointError ConfigError ContractError EngineFailure EnvironmentFailure EpisodeTimeout "
        "JudgeFailure RolloutFailure StorageError UirlError"
    ),
    "uirl.images": "ImageStore Screenshot screenshot",
    "uirl.metrics": "Metrics MetricsLogger clustered_interval pass_at_k read_metrics success_interval",
    "uirl.config": (
        "AlgorithmConfig CheckpointConfig ConfigStore EnvironmentConfig InferenceConfig LoggingConfig ModelConfig "
        "RayConfig RolloutConfig TrainingConfig load_config"
    ),
    "uirl.environments": (
        "BaseEnvironment CalculatorEnvironment DataEntryEnvironment ENVIRONMENTS EnvironmentSession "
        "GuessNumberEnvironment GymEnv GymnasiumEnvironment LookupEnvironment MiniWobEnvironment "
        "MobileWorldEnvironment ScreenEnvironment SimpleGameEnvironment ToolEnvironment WebEnvironment "
        "check_environment create_environment"
    ),
    "uirl.tools": (
        "CalculatorTool EnvironmentStepTool FunctionTool LookupTool MCPServer MCPTool PythonTool SearchTool Tool "
        "ToolDefinition ToolError ToolRegistry"
    ),
    "uirl.parsers": (
        "ActionParser FunctionCallingParser JSONActionParser MAIUIActionParser PARSERS ReActActionParser TextParser "
        "check_parser create_parser"
    ),
    "uirl.inference": (
        "BaseInferenceEngine BatchInferenceManager ChatRenderer Generation GenerationOutput GenerationRequest "
        "InferenceEngine LoadedModel Message SamplingParams "
        "ScriptedInferenceEngine TextEngine TransformersInferenceEngine check_engine "
        "create_engine create_inference_engine load_model recompute_with"
    ),
    "uirl.inference.openai.engine": "OpenAIInferenceEngine",
    "uirl.inference.sglang.engine": "SGLangInferenceEngine",
    "uirl.inference.vllm.arguments": "vllm_server_command",
    "uirl.inference.vllm.engine": "VLLMInferenceEngine",
    "uirl.algorithms": (
        "ALGORITHMS AdvantageInputs GRPO GiGPO KLController PPO RLOO ReinforcePlusPlus RejectionSampling TurnLevel "
        "apply_kl_penalty compute_entropy compute_gae_advantage_return compute_gigpo_advantage "
        "compute_grpo_advantage compute_policy_loss compute_reinforce_plus_plus_advantage "
        "compute_reinforce_plus_plus_baseline_advantage compute_rloo_advantage compute_value_loss"
    ),
    "uirl.rollout": (
        "Agent Collector ContextWindow Conversation EngineAgent Episode EpisodeLimits EpisodeOptions EpisodeSpec "
        "EpisodeSummary ExpertAgent MultiTurnInferenceEngine MultiTurnManager run_episode samples_of"
    ),
    "uirl.rollout.multi_actor_runner": "MultiActorOptions MultiActorRunner",
    "uirl.rollout.task_runner": "TaskRunner TaskRunnerOptions",
    "uirl.storage": "RunDirectory TrajectoryStore export_sft",
    "uirl.learner": (
        "Batch Learner PPOBatch Policy PolicyValueModel VLMWrapper export_hf export_peft latest_checkpoint "
        "load_checkpoint load_policy save_checkpoint"
    ),
    "uirl.curriculum": "TaskCurriculum",
    "uirl.verification": "FineGrainedTrajectoryAnalyzer HybridVerifier JudgeQuality RuleBook",
    "uirl.integrations.mobile_world": "MobileWorldAgentLoop",
    "uirl.training": (
        "Callback Channel EvaluationReport LocalChannel RLTrainer RayPPOTrainer TaskSource Trainer UniformTasks "
        "measure preflight"
    ),
    "uirl.training.attack": "AttackReport attack",
}
_NAMES = {name: module for module, names in _HOME.items() for name in names.split()}
_MODULES = (
    "algorithms",
    "config",
    "curriculum",
    "environments",
    "inference",
    "learner",
    "parsers",
    "rollout",
    "storage",
    "tools",
    "training",
    "verification",
)

__all__ = sorted([*_NAMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"uirl.{name}")
    raise AttributeError(f"module 'uirl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
