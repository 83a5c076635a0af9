"""Episodes: one, a group, many at once; and the samples they become."""

from uirl.rollout.collector import Collector
from uirl.rollout.conversation import Context, ContextWindow, Conversation
from uirl.rollout.episode import (
    Agent,
    ConstantAgent,
    EngineAgent,
    Episode,
    EpisodeLimits,
    EpisodeOptions,
    EpisodeSpec,
    ExpertAgent,
    Response,
    derive_seed,
    run_episode,
)
from uirl.rollout.multi_turn import EpisodeSummary, MultiTurnInferenceEngine, MultiTurnManager, ToolUsage
from uirl.rollout.samples import samples_of, samples_of_all

__all__ = [
    "Agent",
    "Collector",
    "ConstantAgent",
    "Context",
    "ContextWindow",
    "Conversation",
    "EngineAgent",
    "Episode",
    "EpisodeLimits",
    "EpisodeOptions",
    "EpisodeSpec",
    "EpisodeSummary",
    "ExpertAgent",
    "MultiTurnInferenceEngine",
    "MultiTurnManager",
    "Response",
    "ToolUsage",
    "derive_seed",
    "run_episode",
    "samples_of",
    "samples_of_all",
]
