"""The policy that learns, one update, checkpoints."""

from uirl.learner.batch import Batch, collate, micro_batches
from uirl.learner.checkpoint import (
    export_hf,
    export_peft,
    latest_checkpoint,
    load_checkpoint,
    load_policy,
    save_checkpoint,
)
from uirl.learner.policy import Policy, PolicyValueModel, TokenScores
from uirl.learner.update import Learner
from uirl.learner.view import ResponseView, response_view
from uirl.learner.vlm_wrapper import VLMWrapper

PPOBatch = Batch
"""The same class under its other name."""

__all__ = [
    "Batch",
    "Learner",
    "PPOBatch",
    "Policy",
    "PolicyValueModel",
    "ResponseView",
    "TokenScores",
    "VLMWrapper",
    "collate",
    "export_hf",
    "export_peft",
    "latest_checkpoint",
    "load_checkpoint",
    "load_policy",
    "micro_batches",
    "response_view",
    "save_checkpoint",
]
