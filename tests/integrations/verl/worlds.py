"""Environments, rewards and curricula for the tests under verl. Ray's processes import this module by its name."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.inference.pictures import picture
from uirl.environments import BaseEnvironment
from uirl.types import Observation, Task

LETTERS, GOOD = "abcdefgh", "abcd"


def share_of_good(text: str) -> float:
    """Share of good letters among the characters of a reply; 0 for an empty one."""
    return sum(c in GOOD for c in text) / max(1, len(text))


class TwoLooks(BaseEnvironment):
    """Two turns. The first shows words, the second pictures, one or two of them, so that sequences differ in length.
    Both pay for good letters; the demonstrator knows the letters, but not which are good."""

    runs_inline = True
    max_turns = 2
    demonstrator_may_fail = True

    def __init__(self, config: Any = None, pictures: bool = True, leases: Path | None = None) -> None:
        """`leases`: a folder in which every instance has a file from its first reset until it is closed."""
        super().__init__(config)
        self._pictures, self._leases = pictures, leases
        self._lease: Path | None = None

    def tasks(self) -> list[Task]:
        return [Task(id=f"letters/{name}", goal=f"write {name}") for name in ("few", "some", "many")]

    def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        self._turn, self._seed = 0, seed or 0
        self.task = task
        if self._leases is not None and self._lease is None:
            self._lease = self._leases / uuid.uuid4().hex
            self._lease.touch()
            (self._leases / "ever").touch()
        return Observation(f"say {self._seed % 97}")

    def step(self, action: str) -> Any:
        self._turn += 1
        done = self._turn == 2
        paid = share_of_good(action) / 2
        info = {"success": paid > 0.25} if done else {}
        shown = tuple(picture(self._seed + i) for i in range(1 + self._seed % 2)) if self._pictures else ()
        words = "more" + " please" * (self._seed % 3)
        return Observation(words, () if done else shown), paid, done, info

    def get_state_description(self) -> str:
        return f"turn {self._turn}"

    def close(self) -> None:
        if self._lease is not None:
            self._lease.unlink()
            self._lease = None

    def expert_action(self) -> str:
        return LETTERS[(self._seed // 7 + 3 * self._turn) % len(LETTERS)]


BROKEN = "letters/broken"


class Fragile(TwoLooks):
    """Breaks in the second turn of every episode whose instance's seed is a multiple of 4."""

    def step(self, action: str) -> Any:
        if self._seed % 4 == 0 and self._turn == 1:
            raise OSError("the cable was pulled")
        return super().step(action)


class OneBrokenTask(TwoLooks):
    """Has a fourth task, whose every episode breaks in its second turn."""

    def tasks(self) -> list[Task]:
        return [*super().tasks(), Task(id=BROKEN, goal="write nothing")]

    def step(self, action: str) -> Any:
        if self.task is not None and self.task.id == BROKEN and self._turn == 1:
            raise OSError("the cable was pulled")
        return super().step(action)


class Asking(TwoLooks):
    """Solved where the variables of a judge have the values that it was told to expect."""

    max_turns = 1

    def __init__(self, config: Any = None, url: str = "", key_hash: str = "") -> None:
        super().__init__(config, pictures=False)
        self._expected = (url, key_hash)

    def step(self, action: str) -> Any:
        key = os.environ.get("UIRL_LLM_API_KEY", "")
        found = (os.environ.get("UIRL_LLM_BASE_URL", ""), hashlib.sha256(key.encode()).hexdigest())
        return Observation("thanks"), share_of_good(action), True, {"success": found == self._expected}


class Reaper(TwoLooks):
    """A text world that ends a process of the run, once, in step `fatal_step`, counted in updates of the server's
    weights: 'worker' (the one that plays), 'learner' or 'server 0'. `mark`: a file that says it has been done."""

    def __init__(self, config: Any = None, *, whom: str, mark: Path, fatal_step: int = 2) -> None:
        super().__init__(config, pictures=False)
        self._whom, self._mark, self._fatal = whom, mark, fatal_step

    def step(self, action: str) -> Any:
        import ray

        from tests.integrations.verl.cpu.rollout import server_name

        if not self._mark.exists():
            # the last server: the first may be the one that dies
            servers = [name for name in ray.util.list_named_actors() if name.startswith(server_name(0)[:-1])]
            if len(ray.get(ray.get_actor(max(servers)).updates.remote())) >= self._fatal:
                self._mark.touch()
                self._kill(ray)
        return super().step(action)

    def _kill(self, ray: Any) -> None:
        from tests.integrations.verl.cpu.rollout import server_name

        if self._whom == "worker":
            os._exit(1)
        learner = next(name for name in ray.util.list_named_actors() if "WorkerDict" in name)
        victim = ray.get_actor(server_name(0) if self._whom == "server 0" else learner)
        with suppress(ray.exceptions.RayActorError):
            ray.get(victim.__ray_call__.remote(_end))


def _end(actor: Any) -> None:
    os._exit(1)


class Ladder:
    """A curriculum with a memory: it hands out tasks in turn and remembers every report."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.asked = 0
        self.reports: list[list[Any]] = []

    def register_tasks(self, names: list[str]) -> None:
        self.names = list(names)

    def sample_task(self, difficulty_level: str | None = None) -> str:
        self.asked += 1
        return self.names[(self.asked + len(self.reports)) % len(self.names)]

    def update_success_rate(self, task_name: str, success: bool, step: int) -> None:
        self.reports.append([task_name, success, step])

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "reports": self.reports}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked, self.reports = state["asked"], [list(r) for r in state["reports"]]
