"""Which task comes next: tasks sorted by how often they are solved now, and how sure that is."""

from uirl.curriculum.curriculum import TaskCurriculum
from uirl.curriculum.levels import LEVELS
from uirl.curriculum.mixed import MixedCurriculum, Spread

__all__ = ["LEVELS", "MixedCurriculum", "Spread", "TaskCurriculum"]
