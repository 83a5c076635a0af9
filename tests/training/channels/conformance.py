"""`check_channel`: the public contract suite of channels. Its messages teach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError, ContractError
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel, Group, GroupRules
from uirl.types import Action, Task, Trajectory

WAIT = 600.0
"""Seconds after which an answer counts as missing."""
MakeChannel = Callable[[Assembly, GroupRules], Channel]


class ProbeEnvironment(BaseEnvironment):
    """Does what its task says: 'plays', 'fails once', 'fails', 'hangs' or 'breaks'.

    It ends after two replies. A file in `folder` stands for every instance that is open, so that who is left behind can
    be counted from any process.
    """

    def __init__(self, folder: str, split: str = "train") -> None:
        super().__init__()
        self._folder, self._split = Path(folder), split
        self._open: Path | None = None
        self._task = Task(id="none")
        self._seed = 0
        self._turns = 0

    async def reset(self, task: Task | None = None, seed: int = 0) -> str:
        """Begin, or break where the task says so."""
        assert task is not None
        if self._open is None:
            self._open = self._folder / f"open-{os.getpid()}-{id(self)}"
            self._open.touch()
        self._task, self._seed, self._turns = task, seed, 0
        if task.goal == "breaks":
            raise ConfigError("the probe was told to break: this is for the person")
        return self.get_state_description()

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take a reply; the second one ends the episode."""
        self._turns += 1
        if self._task.goal == "hangs":
            (self._folder / f"hangs-{self._seed}").touch()
            await asyncio.sleep(10 * WAIT)
        failed = self._folder / f"failed-{self._seed}"
        if self._task.goal == "fails" or (self._task.goal == "fails once" and not failed.exists()):
            failed.touch()
            raise RuntimeError("the probe was told to fail")
        done = self._turns == 2
        return self.get_state_description(), float(len(action)), done, {"success": done, "split": self._split}

    def get_state_description(self) -> str:
        """Return task, seed and turn."""
        return f"{self._task.goal} {self._seed} {self._turns}"

    def expert_action(self) -> str:
        """Return the same words every time."""
        return "expert"

    def controls(self) -> Mapping[str, BaseEnvironment | Action | str]:
        """Return a reply, and a variant that tells what it is."""
        return {"a reply": "nothing", "a variant": ProbeEnvironment(str(self._folder), "variant")}

    def tasks(self) -> Sequence[Task]:
        """Return one task."""
        return [Task(id="plays", goal="plays")]

    def close(self) -> None:
        """Take the file away."""
        if self._open is not None:
            self._open.unlink(missing_ok=True)
            self._open = None


class _CountedEngine(InferenceEngine):
    """Counts the episodes that were not released."""

    def __init__(self, inner: InferenceEngine) -> None:
        self.inner = inner
        self.kept: set[str] = set()
        self.shares_weights, self.takes_weights = inner.shares_weights, inner.takes_weights

    async def generate(self, request: GenerationRequest) -> Generation:
        if request.session_id is not None:
            self.kept.add(request.session_id)
        return await self.inner.generate(request)

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        await self.inner.update_weights(weights, version, adapter=adapter)
        self.policy_version = version

    def release(self, session_id: str) -> None:
        self.kept.discard(session_id)
        self.inner.release(session_id)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """What `check_channel` saw."""

    groups: list[Group]
    """Of the first exchange: every kind of channel plays the same ones."""
    left_behind: list[str]
    """Instances of environments that nobody closed; empty."""


def probe_config(folder: Path, **changes: Any) -> ConfigStore:
    """Return the config of a run in `ProbeEnvironment`; `changes`: section -> keys."""
    values: dict[str, Any] = {
        "environment": {
            "name": f"{ProbeEnvironment.__module__}:{ProbeEnvironment.__name__}",
            "options": {"folder": str(folder)},
            "eval_options": {"split": "eval"},
        },
        "model": {
            "model_name": "uirl/tiny-lm",
            "device": "cpu",
            "tiny": {"hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "num_layers": 1},
        },
        "inference": {"max_tokens": 6},
        "training": {"batch_size": 8, "group_size": 4},
        "rollout": {"parallel": 8},
    }
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    return ConfigStore.from_dict(values)


async def check_channel(make: MakeChannel, folder: Path, **changes: Any) -> ChannelReport:
    """Report on a kind of channel that keeps the contract; raises ContractError that names the first breach.

    `make(parts, rules)` makes one. `folder`: an empty one that all processes see. `changes`: section -> keys of the
    config. Checked: groups come back whole, each in the order in which it was ordered; failed episodes are repeated
    and those that fail for good are told; turns carry the version that was published; episodes of evaluations are
    played with their own options, and by the demonstrator or a control where one is ordered; groups that are given up
    leave the channel usable; `receive` raises what broke an actor; a channel that is closed while it plays leaves no
    instance and no cache behind.
    """
    parts = assemble(probe_config(folder, **changes))
    engine = parts.engine = _CountedEngine(parts.engine)
    channel = make(parts, GroupRules(retries=1))
    try:
        groups = await _check_groups(channel, 3)
        await _check_failures(channel)
        await _check_versions(channel, 4)
        await _check_splits(channel)
        await _check_players(channel)
        await _check_giving_up(channel, folder)
        await _check_broken(channel)
        channel.submit(_specs("last", ["hangs"] * 2, seed=900))
        await _until(lambda: (folder / "hangs-900").exists(), "an episode that begins")
    finally:
        await _within(channel.close(), "close() while episodes are under way")
    await _within(channel.close(), "close() a second time")
    await parts.close()
    await _until(lambda: not engine.kept, f"the release of {sorted(engine.kept)[:3]} by actors that were stopped")
    # an instance whose process was killed cannot take its file away
    left = [path.name for path in folder.glob("open-*") if Path(f"/proc/{path.name.split('-')[1]}").exists()]
    _expect(not left, f"instances of the environment were left open: {left}; close the sessions that play")
    return ChannelReport(groups, left)


async def _check_groups(channel: Channel, version: int) -> list[Group]:
    await channel.publish(None, version)
    ordered = [_specs(f"group-{i}", ["plays"] * 4, seed=10 * i) for i in range(3)]
    groups = await _within(channel.exchange(ordered), "groups that were ordered")
    for specs, group in zip(ordered, groups, strict=True):
        _expect(group.id == specs[0].group_id, f"got group {group.id!r} in the place of {specs[0].group_id!r}")
        ids = [trajectory.id for trajectory in group.trajectories]
        _expect(ids == [spec.trajectory_id for spec in specs], f"{group.id}: got {ids}; expected the order ordered")
        for spec, trajectory in zip(specs, group.trajectories, strict=True):
            _expect(trajectory.failure is None, f"{trajectory.id} failed: {trajectory.failure}")
            _expect(len(trajectory.turns) == 2, f"{trajectory.id} has {len(trajectory.turns)} turns, expected 2")
            _expect(trajectory.seed == spec.environment_seed, f"{trajectory.id}: another instance than ordered")
            _expect(_versions(trajectory) == {version}, f"{trajectory.id}: versions {_versions(trajectory)}")
    _expect(not channel.outstanding, f"groups that were received are outstanding: {channel.outstanding}")
    return groups


async def _check_failures(channel: Channel) -> None:
    heard: list[str] = []
    channel.on_finished = lambda trajectory: heard.append(trajectory.id)
    kinds = ["plays", "fails once", "fails", "plays"]
    (group,) = await _within(channel.exchange([_specs("repaired", kinds, seed=100)]), "a group with failures")
    channel.on_finished = None
    first, once, always, last = group.trajectories
    _expect(first.failure is None and last.failure is None, "a failure took other members of its group with it")
    _expect(once.failure is None and once.id.endswith("-r1"), f"{once.id} was not repeated: {once.failure}")
    _expect(
        always.failure is not None and "told to fail" in always.failure.message,
        f"{always.id} fails always, and came back with failure={always.failure}, which does not say why",
    )
    attempts = sorted(attempt.id for attempt in group.attempts)
    _expect(attempts == ["repaired-1", "repaired-2"], f"got the attempts {attempts}; expected those that were repeated")
    _expect(
        sorted(heard) == sorted([*attempts, *(t.id for t in group.trajectories)]),
        f"on_finished heard of {sorted(heard)}; expected every attempt once",
    )


async def _check_versions(channel: Channel, version: int) -> None:
    await channel.publish(None, version)
    (group,) = await _within(channel.exchange([_specs("newer", ["plays"] * 2, seed=200)]), "a group of new weights")
    for trajectory in group.trajectories:
        _expect(_versions(trajectory) == {version}, f"after publish({version}): versions {_versions(trajectory)}")


async def _check_splits(channel: Channel) -> None:
    spec = _specs("evaluated", ["plays"], seed=300)[0]
    greedy = [await _within(channel.play_once(spec, Order("eval", 0.0)), "an evaluation") for _ in range(2)]
    _expect(greedy[0].failure is None, f"an episode of an evaluation failed: {greedy[0].failure}")
    split = greedy[0].turns[-1].info.get("split")
    _expect(split == "eval", f"an evaluation was played with the options of {split!r}; expected eval_options")
    same = greedy[0].turns[0].response_ids == greedy[1].turns[0].response_ids
    _expect(same, "temperature 0 gave two replies to one prompt")


async def _check_players(channel: Channel) -> None:
    spec = _specs("shown", ["plays"], seed=350)[0]
    orders = {
        ("expert", "train"): Order(expert=True),
        ("nothing", "eval"): Order("eval", control="a reply"),
        (None, "variant"): Order("eval", 0.0, control="a variant"),
    }
    for (text, split), order in orders.items():
        (trajectory,) = await _within(channel.player(order).collect([spec]), f"an episode of {order}")
        _expect(trajectory.failure is None, f"an episode of {order} failed: {trajectory.failure}")
        last = trajectory.turns[-1]
        _expect(last.info.get("split") == split, f"{order} was played in the environment of {last.info.get('split')!r}")
        if text is not None:
            _expect(last.action.text == text, f"{order} said {last.action.text!r}; expected {text!r}")


async def _check_giving_up(channel: Channel, folder: Path) -> None:
    channel.submit(_specs("hanging", ["hangs"] * 2, seed=400))
    await _until(lambda: (folder / "hangs-400").exists(), "an episode that begins")
    given_up = await _within(channel.give_up(), "give_up() while an episode hangs")
    _expect(given_up == {"hanging-0", "hanging-1"}, f"give_up() told of {sorted(given_up)}")
    (group,) = await _within(channel.exchange([_specs("after", ["plays"] * 8, seed=500)]), "a group after give_up()")
    _expect(all(t.failure is None for t in group.trajectories), "after give_up() episodes fail")


async def _check_broken(channel: Channel) -> None:
    channel.submit(_specs("broken", ["breaks"], seed=600))
    try:
        await _within(channel.receive(), "what broke an actor")
    except ConfigError as error:
        _expect("told to break" in str(error), f"receive() raised other words than the actor: {error}")
        await channel.give_up()
    else:
        raise ContractError("an environment raised a ConfigError, which is for the person; receive() returned a group")


def _specs(group: str, goals: Sequence[str], *, seed: int) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(Task(id=goal, goal=goal), seed + i * (goal != "hangs"), seed + i, f"{group}-{i}", group)
        for i, goal in enumerate(goals)
    ]


def _versions(trajectory: Trajectory) -> set[int]:
    return {turn.policy_version for turn in trajectory.turns}


async def _within(awaitable: Awaitable[Any], what: str) -> Any:
    try:
        return await asyncio.wait_for(awaitable, WAIT)
    except TimeoutError:
        raise ContractError(f"waited {WAIT:g} s for {what}") from None


async def _until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(int(WAIT / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise ContractError(f"waited {WAIT:g} s for {what}")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)
