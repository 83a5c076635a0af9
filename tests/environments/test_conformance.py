"""check_environment: each rule of the contract, broken once."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from uirl.environments import BaseEnvironment, check_environment
from uirl.errors import ContractError
from uirl.types import Action, Observation, Task


class Counting(BaseEnvironment):
    """A correct little environment; the tests break one rule of it each."""

    runs_inline = True
    goal = 3

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        self.rng = random.Random(seed)
        self.count, self.start = 0, self.rng.randint(0, 10**6)
        return f"start {self.start}"

    def step(self, action: str) -> Any:
        self.count += 1
        done = self.count == self.goal
        return f"{self.rng.randint(0, 10**6)}", 1.0, done, {"success": done}

    def get_state_description(self) -> str:
        return f"count {getattr(self, 'count', 0)}"

    def expert_action(self) -> Action | str | None:
        return "count"


SHARED = random.Random(0)


class SameSeedOtherStart(Counting):
    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        super().reset(task, seed)
        return f"start {SHARED.random()}"


class SameSeedOtherSteps(Counting):
    def step(self, action: str) -> Any:
        return (f"{SHARED.random()}", *super().step(action)[1:])


class SameSeedOtherReward(Counting):
    def step(self, action: str) -> Any:
        text, _, done, info = super().step(action)
        return text, SHARED.random(), done, info


class SameSeedOtherPicture(Counting):
    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        from PIL import Image

        super().reset(task, seed)
        return Image.new("RGB", (4, 4), (SHARED.randrange(256), SHARED.randrange(256), 0))


class SharedState(Counting):
    log: ClassVar[list[str]] = []

    def step(self, action: str) -> Any:
        self.log.append(action)
        return super().step(action)

    def get_state_description(self) -> str:
        return f"{len(self.log)} steps so far"


class SpawnsItself(Counting):
    def spawn(self) -> BaseEnvironment:
        return self


class NeverEnds(Counting):
    goal = -1

    def expert_action(self) -> None:
        return None


class BadExpert(Counting):
    def step(self, action: str) -> Any:
        return (*super().step(action)[:3], {"success": action != "count"})


class SilentExpert(Counting):
    def step(self, action: str) -> Any:
        return (*super().step(action)[:3], {})


class BrokenPicture(Counting):
    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        import io

        from PIL import Image

        super().reset(task, seed)
        buffer = io.BytesIO()
        Image.effect_noise((64, 64), 50).save(buffer, format="PNG")
        return Observation("look", (buffer.getvalue()[:200],))


class SameTasks(Counting):
    def tasks(self) -> list[Task]:
        return [Task("one"), Task("two"), Task("one")]


class NoTasks(Counting):
    def tasks(self) -> list[Task]:
        return []


class TextTasks(Counting):
    def tasks(self) -> Any:
        return ["one"]


class NoPrefix(Counting):
    def get_prompt_prefix(self) -> Any:
        return None


class BadControl(Counting):
    def controls(self) -> Any:
        return {"constant": 3}


class NoDescription(Counting):
    def get_state_description(self) -> Any:
        return {"count": 1}


class ClosesOnce(Counting):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class RaisesOnSecondReset(Counting):
    resets = 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("device is in use")
        return super().reset(task, seed)


class ZeroTurns(Counting):
    max_turns = 0


class HidesMethod(Counting):
    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        self.tasks = ["one"]  # type: ignore[method-assign,assignment]
        return super().reset(task, seed)


BROKEN = [
    (SameSeedOtherStart, "seed 0 twice on the same instance and the same actions gave different episodes: the text of"),
    (SameSeedOtherSteps, "the text of observation 1 is"),
    (SameSeedOtherReward, "turn 0 gave (reward, done)"),
    (SameSeedOtherPicture, "the images of observation 0 differ"),
    (SharedState, "stepping one spawn() changed another"),
    (SpawnsItself, "spawn returned itself; expected another, independent instance"),
    (NeverEnds, "no episode ended within 200 turns and max_turns is None"),
    (BadExpert, "expert_action does not solve the task of seed 0: after 3 turns the last info['success'] is False"),
    (SilentExpert, "info has no 'success'"),
    (BrokenPicture, "image 0 of observation 0 is no picture"),
    (SameTasks, "the id 'one' twice"),
    (NoTasks, "tasks returned no task"),
    (TextTasks, "expected uirl.types.Task"),
    (NoPrefix, "get_prompt_prefix returned None; expected a str"),
    (BadControl, "controls holds 'constant': 3; expected an environment, an Action or a str"),
    (NoDescription, "get_state_description returned {'count': 1} (dict); expected a str"),
    (ClosesOnce, "close raised RuntimeError: already closed on a second call"),
    (RaisesOnSecondReset, "reset raised RuntimeError: device is in use"),
    (HidesMethod, "sets self.tasks, which is a method of it; choose another name"),
    (ZeroTurns, "max_turns is 0; expected a positive int"),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=[cls.__name__ for cls, _ in BROKEN])
@pytest.mark.parametrize("inline", [True, False])
def test_each_broken_rule_is_named(broken: type[Counting], words: str, inline: bool) -> None:
    env = broken()
    env.runs_inline = inline  # type: ignore[misc]
    with pytest.raises(ContractError) as caught:
        check_environment(env)
    assert f"{broken.__name__} breaks the environment contract" in str(caught.value)
    assert words in str(caught.value)


def test_all_violations_stand_in_one_error() -> None:
    class Worse(SameTasks, NoPrefix, ClosesOnce):
        pass

    with pytest.raises(ContractError) as caught:
        check_environment(Worse())
    assert str(caught.value).count("\n- ") == 3


def test_a_correct_environment_gets_a_report() -> None:
    env = Counting()
    report = check_environment(env, episodes=2, seed=5)
    assert report.environment == "Counting"
    # 2 episodes, 2 x 3 for repeatability, 2 of the expert, 3 turns each.
    assert (report.episodes, report.turns) == (10, 30)
    assert report.seeded
    assert report.expert_success == 1.0
    assert report.notes == []
    assert not hasattr(env, "count"), "the instance itself must not be played"


def test_a_demonstrator_that_may_fail_and_does_is_noted() -> None:
    class Lost(Counting):
        demonstrator_may_fail = True

        def step(self, action: str) -> Any:
            return *super().step(action)[:3], {"success": False, "mistake": f"there is no {action}"}

    report = check_environment(Lost(), episodes=2)
    told = "the demonstrator solved 0 of 2 episodes, and an action of it was refused: there is no count"
    assert (report.expert_success, report.notes) == (0.0, [told])


def test_what_could_not_be_checked_is_noted() -> None:
    class Plain(Counting):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset(seed=1)

        def expert_action(self) -> None:
            return None

    report = check_environment(Plain())
    assert not report.seeded
    assert report.expert_success is None
    assert [note.split(":")[0] for note in report.notes] == ["no expert_action", "reset takes no seed"]


def test_async_methods_and_own_actions() -> None:
    class Later(Counting):
        async def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
            return super().reset(task, seed)

        async def step(self, action: str) -> Any:
            assert action in ("a", "b", "count")
            return super().step(action)

        async def close(self) -> None:  # type: ignore[override]
            return None

    assert check_environment(Later(), actions=["a", Action(text="b")]).expert_success == 1.0
    with pytest.raises(ContractError, match="got no actions"):
        check_environment(Later(), actions=[])
