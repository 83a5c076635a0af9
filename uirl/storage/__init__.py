"""The record of a run: its directory, its trajectories, and what can be made of them."""

from uirl.storage.export import export_sft
from uirl.storage.run_directory import RunDirectory, clean_run_name, free_run_name, run_of
from uirl.storage.trajectories import TrajectoryStore, TrajectorySummary

__all__ = [
    "RunDirectory",
    "TrajectoryStore",
    "TrajectorySummary",
    "clean_run_name",
    "export_sft",
    "free_run_name",
    "run_of",
]
