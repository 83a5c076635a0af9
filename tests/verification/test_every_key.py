"""Every key of the section `verification` has an effect that is seen, at a judge's server over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.inference.stand_in_http import Answer
from tests.verification.episodes import record, shot
from tests.verification.scripted_judge import ScriptedJudge, green, pictures_in, red, said, verdict
from uirl import ConfigStore
from uirl.config import VerificationConfig
from uirl.errors import ConfigError, JudgeFailure
from uirl.types import Task, Trajectory
from uirl.verification.hybrid import HybridVerifier
from uirl.verification.setup import verifier_of

RULES = """
tasks:
  sure: {equals: {of: state.sent, value: true, no: decisive}}
  weak: {equals: {of: state.sent, value: true}}
"""


@dataclass
class World:
    """A config, its server and a folder."""

    folder: Path
    server: ScriptedJudge

    def verifier(self, *changes: str) -> HybridVerifier:
        (self.folder / "rules.yaml").write_text(RULES)
        config = ConfigStore().override([
            "verification.enabled=true",
            f"verification.rules={self.folder}/rules.yaml",
            "verification.judge=eye",
            f"verification.judge_url={self.server.url}",
            "verification.audit=0.0",
            f"logging.runs_dir={self.folder}/runs",
            *changes,
        ])  # fmt: skip
        made = verifier_of(config.verification, config.logging, "run")
        assert made is not None
        return made

    async def says(self, changes: list[str], episodes: list[Trajectory]) -> list[Any]:
        """What is found of each episode: (who, score), or the beginning of a failure."""
        made, found = self.verifier(*changes), []
        for one in episodes:
            try:
                said = await made.judge_episode(one)
                found.append((said.verifier, said.score))
            except JudgeFailure as failure:
                found.append(str(failure).partition(":")[0])
        await made.close()
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ScriptedJudge() as server:
        yield World(tmp_path, server)


def weak(picture: Any = None, id: str = "w", **about: Any) -> Trajectory:
    return record({"sent": False}, task=Task("weak", goal="g"), final=picture or green(), id=id, **about)


def sure(picture: Any = None, id: str = "s", sent: bool = True, **about: Any) -> Trajectory:
    return record({"sent": sent}, task=Task("sure", goal="g"), final=picture or green(), id=id, **about)


def asked(world: World) -> int:
    return len(world.server.asked("Judgement"))


async def enabled(world: World) -> Any:
    off = ConfigStore()
    return [verifier_of(off.verification, off.logging, "run") is None, world.verifier() is None]


async def rules(world: World) -> Any:
    (world.folder / "other.yaml").write_text("default: {equals: {of: state.sent, value: false, no: decisive}}")
    other = f"verification.rules={world.folder}/other.yaml"
    return [await world.says(changes, [sure()]) for changes in ([], [other])]


async def judge(world: World) -> Any:
    seen = []
    for name in ("eye", "ear"):
        await world.says([f"verification.judge={name}", f"verification.memory={world.folder}/{name}"], [weak()])
        seen.append(world.server.seen[-1].body["model"])
    return seen


async def judge_url(world: World) -> Any:
    with ScriptedJudge() as other:
        await world.says([f"verification.judge_url={other.url}"], [weak()])
        return [len(world.server.seen), len(other.seen)]


async def api_key_env(world: World) -> Any:
    await world.says([], [weak()])
    await world.says(["verification.api_key_env=MY_KEY"], [weak(red())])
    return [world.server.seen[i].headers.get("authorization") for i in (0, -1)]


async def prefer_rules(world: World) -> Any:
    return [await world.says([f"verification.prefer_rules={v}"], [sure(red())]) for v in ("true", "false")]


async def ask(world: World) -> Any:
    counts = []
    for value in ("undecided", "always"):
        await world.says([f"verification.ask={value}"], [sure()])
        counts.append(asked(world))
    return counts


async def audit(world: World) -> Any:
    counts = []
    for share in (0.0, 1.0):
        await world.says([f"verification.audit={share}"], [sure()])
        counts.append(asked(world))
    return counts


async def votes(world: World) -> Any:
    world.server.replies = [verdict(), verdict("failure", met="no"), verdict("failure", met="no")]
    one = await world.says(["verification.votes=1"], [weak()])
    return [one, await world.says(["verification.votes=2"], [weak(id="v")])]


async def key_screens(world: World) -> Any:
    for i, count in enumerate((6, 2)):
        await world.says([f"verification.key_screens={count}"], [weak(green(i + 1), turns=9)])
    return [len(pictures_in(seen)) for seen in world.server.asked("Judgement")]


async def screen_size(world: World) -> Any:
    for i, size in enumerate((1280, 64)):
        await world.says([f"verification.screen_size={size}"], [weak(shot((0, 9 + i, 0), (400, 100)))])
    return [pictures_in(seen)[-1].size for seen in world.server.asked("Judgement")]


async def timeout(world: World) -> Any:
    world.server.replies = [said_late(), said_late()]  # the second: whether it answers anybody
    slow = await world.says(["verification.timeout=0.2"], [weak()])
    world.server.replies = [said_late()]
    return [slow, await world.says([], [weak(red())])]


def said_late() -> Any:
    late = said(verdict())
    late.seconds = 0.6
    return late


async def retries(world: World) -> Any:
    found = []
    for i, (count, faults) in enumerate(((0, 2), (1, 1))):  # without: about the episode, and about anybody
        world.server.faults.extend([Answer("busy", 429, {"retry-after": "0"})] * faults)
        found.append(await world.says([f"verification.retries={count}"], [weak(green(9 + i))]))
    return found


async def concurrent(world: World) -> Any:
    made = [world.verifier(f"verification.concurrent={count}") for count in (8, 1)]
    return [one.judge.client._slot()._value for one in made if one.judge is not None]


async def max_calls(world: World) -> Any:
    limited = await world.says(["verification.max_calls=1"], [weak()])
    return [limited, await world.says([], [weak()])]


async def max_tokens(world: World) -> Any:
    limited = await world.says(["verification.max_tokens=150"], [weak(), weak(red())])
    return [limited, await world.says([], [weak(), weak(red())])]


async def precision_limit(world: World) -> Any:
    world.server.outcome = lambda seen: "success"
    found = []
    for limit in ("null", "0.9"):
        wrong = [sure(red(i + 1), f"s{i}", sent=False) for i in range(12)]
        changes = [f"verification.precision_limit={limit}", "verification.ask=always"]
        found.append((await world.says(changes, [*wrong, weak()]))[-1])
    return found


async def correct_noise(world: World) -> Any:
    found = []
    for value in ("false", "true"):
        world.server.error = 0.1
        known = [sure((green if i % 2 else red)(i + 1), f"s{i}", sent=i % 2 == 1, reply=f"{i}") for i in range(60)]
        changes = [f"verification.correct_noise={value}", "verification.ask=always"]
        await world.says(changes, known)
        world.server.error = 0.0
        found.append((await world.says(changes, [weak(green(250), id=f"n{value}")]))[0])
    return [found[0] == ("judge", 1.0), found[1][1] > 1.0]


async def memory(world: World) -> Any:
    mine, usual = world.folder / "mine" / "judge.sqlite", world.folder / "runs" / "judge.sqlite"
    await world.says([f"verification.memory={mine}"], [weak()])
    first = (mine.is_file(), usual.is_file())
    await world.says([], [weak()])
    return [first, (mine.is_file(), usual.is_file())]


CASES: dict[str, tuple[Callable[[World], Any], Any]] = {
    "enabled": (enabled, [True, False]),
    "rules": (rules, [[("rules", 1.0)], [("rules", 0.0)]]),
    "judge": (judge, ["eye", "ear"]),
    "judge_url": (judge_url, [0, 2]),
    "api_key_env": (api_key_env, [None, "Bearer sk-mine"]),
    "prefer_rules": (prefer_rules, [[("rules", 1.0)], [("judge", 0.0)]]),
    "ask": (ask, [0, 1]),
    "audit": (audit, [0, 1]),
    "votes": (votes, [[("judge", 1.0)], [("judge", 0.0)]]),
    "key_screens": (key_screens, [6, 2]),
    "screen_size": (screen_size, [(400, 100), (64, 16)]),
    "timeout": (timeout, [["judge timeout"], [("judge", 1.0)]]),
    "retries": (retries, [["judge rate limit"], [("judge", 1.0)]]),
    "concurrent": (concurrent, [8, 1]),
    "max_calls": (max_calls, [["judge budget"], [("judge", 1.0)]]),
    "max_tokens": (max_tokens, [[("judge", 1.0), "judge budget"], [("judge", 1.0), ("judge", 0.0)]]),
    "precision_limit": (precision_limit, [("judge", 1.0), ("rules", 0.0)]),
    "correct_noise": (correct_noise, [True, True]),
    "memory": (memory, [(True, False), (True, True)]),
}


@pytest.mark.parametrize("key", CASES)
async def test_the_key_has_its_effect(key: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    for name in ("UIRL_LLM_API_KEY", "UIRL_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    play, expected = CASES[key]
    assert await play(world) == expected


def test_no_key_is_left_out() -> None:
    assert set(CASES) == set(VerificationConfig.model_fields)


def test_rules_that_leave_open_what_nobody_could_say_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"checks whose no is 'unknown' \(equals\), and there is no judge"):
        world.verifier("verification.judge=null")


@pytest.mark.parametrize(
    "change", ["verification.judge=x", "verification.rules=x", "verification.votes=3", "verification.audit=0.5"]
)
def test_a_key_that_nobody_reads_is_refused(change: str) -> None:
    with pytest.raises(ConfigError, match=r"where verification\.enabled is true"):
        ConfigStore().override([change]).check(training=True)
