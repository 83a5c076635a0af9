"""Which task comes next: tasks sorted by how often they are solved now, and how sure that is."""

from uirl.curriculum.curriculum import MixedCurriculum, Spread, TaskCurriculum
from uirl.curriculum.levels import LEVELS

__all__ = ["LEVELS", "MixedCurriculum", "Spread", "TaskCurriculum"]
