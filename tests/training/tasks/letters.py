"""Tasks of known difficulty for a policy that learned nothing."""

from __future__ import annotations

from typing import Any

from uirl import BaseEnvironment, Task

COUNT = 7


class Letters(BaseEnvironment):
    """One turn. Task 'k' is solved by replies that fall into `k` of six parts, so that 0 never is and 6 always."""

    runs_inline = True
    max_turns = 1

    def __init__(self, broken: str = "", judged: bool = True) -> None:
        super().__init__()
        self.broken, self.judged = broken, judged

    def tasks(self) -> list[Task]:
        return [Task(str(k), goal=f"task {k}") for k in range(COUNT)]

    def reset(self, task: Task | None = None, seed: int | None = None) -> str:
        self.task, self.seed = task or self.tasks()[0], seed or 0
        return "say"

    def step(self, action: str) -> Any:
        if self.task.id == self.broken:
            raise OSError("the cable was pulled")
        solved = (sum(map(ord, action)) + self.seed) % 6 < int(self.task.id)
        return "", float(solved), True, {"success": solved} if self.judged else {}

    def get_state_description(self) -> str:
        return "say"
