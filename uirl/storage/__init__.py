"""The record of a run: its directory, its trajectories, and what can be made of them."""

from uirl.storage.export import export_sft
from uirl.storage.learned import Learned, LearnedTokens
from uirl.storage.records import fed_picture
from uirl.storage.run_directory import RunDirectory, RunTaken, clean_run_name, free_run_name, origin_of, run_of
from uirl.storage.trajectories import TrajectoryStore, TrajectorySummary

__all__ = [
    "Learned",
    "LearnedTokens",
    "RunDirectory",
    "RunTaken",
    "TrajectoryStore",
    "TrajectorySummary",
    "clean_run_name",
    "export_sft",
    "fed_picture",
    "free_run_name",
    "origin_of",
    "run_of",
]
