"""Runs: the loop, its warm start, the channel between actors and learner, evaluation, the record."""

from uirl.training.channels.base import Channel, Group, LocalChannel
from uirl.training.checks.preflight import Finding, preflight
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, report_on
from uirl.training.evaluation.measure import measure
from uirl.training.loop import Callback, RayPPOTrainer, RLTrainer
from uirl.training.tasks.curriculum import CurriculumTasks
from uirl.training.tasks.sources import TaskSource, UniformTasks, tasks_of
from uirl.training.trainer import Trainer

__all__ = [
    "Callback",
    "Channel",
    "CurriculumTasks",
    "EvaluationReport",
    "Finding",
    "Group",
    "LocalChannel",
    "RLTrainer",
    "RayPPOTrainer",
    "TaskSource",
    "Trainer",
    "UniformTasks",
    "evaluate_episodes",
    "measure",
    "preflight",
    "report_on",
    "tasks_of",
]
