"""Demonstrations: made as they are needed, and kept whole for as long as they are drawn from."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl.errors import ActorFailure, EnvironmentFailure
from uirl.images import ImageStore
from uirl.rollout.collector import not_begun
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training import warm_start
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import GroupRules, LocalChannel
from uirl.training.channels.choose import local_channel
from uirl.training.evaluation.evaluation import EvaluationReport
from uirl.training.interrupt import Interrupt
from uirl.training.record.tally import Tally
from uirl.training.warm_start import Demonstrations, WarmStart
from uirl.types import Sample, Trajectory


def test_the_pictures_of_demonstrations_outlive_the_bound_of_the_store(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.model.model_name = "uirl/tiny-vlm"
    parts = assemble(config, Countdown(length=2, pictures=True))
    small = ImageStore(room=1)
    parts.images = parts.collector.images = parts.learner.images = small

    async def learn() -> None:
        demonstrations = Demonstrations(parts, local_channel(parts), size=2, seed=0)
        made = await demonstrations.batch(2)
        assert len({hash for sample in made for hash in sample.images}) > 1
        for _ in range(2):  # from now on those that were made are drawn again
            gc.collect()
            assert parts.learner.supervised(await demonstrations.batch(2))["sequences"] == 2
        await parts.close()

    asyncio.run(learn())


def test_no_more_demonstrations_are_made_than_pictures_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path)
    config.model.model_name = "uirl/tiny-vlm"
    parts = assemble(config, Countdown(length=2, pictures=True))

    async def learn() -> None:
        demonstrations = Demonstrations(parts, local_channel(parts), size=1000, seed=0)
        await demonstrations.batch(2)
        assert demonstrations.episodes == 2
        monkeypatch.setattr(warm_start, "HELD", 1)
        made = await demonstrations.batch(2)
        assert "of 4 demonstrations" in capsys.readouterr().out
        names = {sample.trajectory_id for sample in [*made, *demonstrations._samples]}
        for _ in range(3):
            assert {sample.trajectory_id for sample in await demonstrations.batch(3)} <= names
        assert demonstrations.episodes == 4
        later = Demonstrations(parts, local_channel(parts), size=1000, seed=0)
        later.load_state_dict(demonstrations.state_dict())
        monkeypatch.setattr(warm_start, "HELD", 2**30)
        again = await later.batch(3)
        assert {sample.trajectory_id for sample in again} <= names
        assert later.episodes == 4
        await parts.close()

    asyncio.run(learn())


class Taught(Countdown):
    """Solved where its seed is even; notes the seeds it was played with."""

    seen: list[int]

    def reset(self, seed: int | None = None) -> Any:
        assert seed is not None
        self.seen.append(seed)
        return super().reset(seed)

    def step(self, action: str) -> Any:
        look, reward, done, info = super().step(action)
        return look, reward, done, {"success": self.seed % 2 == 0} if done else info

    def spawn(self) -> Taught:
        return self


def taught() -> Taught:
    environment = Taught(length=1)
    environment.seen = []
    return environment


def test_the_first_demonstrations_are_new_instances_and_then_they_are_drawn_again(tmp_path: Path) -> None:
    environment = taught()
    parts = assemble(settings(tmp_path), environment)
    demonstrations = Demonstrations(parts, local_channel(parts), size=5, seed=0)
    batches = [asyncio.run(demonstrations.batch(3)) for _ in range(2)]
    # 5 of them in all, so that the second batch holds the 2 that are left, each an instance of its own
    assert [len(batch) for batch in batches] == [3, 2]
    assert len(set(environment.seen)) == len(environment.seen) == 5
    assert demonstrations.episodes == 5
    assert demonstrations.successes == sum(seed % 2 == 0 for seed in environment.seen)
    made = {sample.trajectory_id for batch in batches for sample in batch}
    later = [asyncio.run(demonstrations.batch(count)) for count in (3, 3, 3, 99)]
    assert [len(batch) for batch in later] == [3, 3, 3, 5]
    for batch in later:
        names = {sample.trajectory_id for sample in batch}
        assert len(names) == len(batch)
        assert names <= made
    assert len({frozenset(sample.trajectory_id for sample in batch) for batch in later[:3]}) > 1
    assert len(environment.seen) == 5


def one_at_a_time(folder: Path, environment: Taught) -> tuple[Taught, Assembly]:
    config = settings(folder)
    config.rollout.retries, config.rollout.parallel = 0, 1
    environment.seen = []
    return environment, assemble(config, environment)


def test_demonstrations_that_fail_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Torn(Taught):
        def step(self, action: str) -> Any:
            if len(self.seen) in (2, 4):
                raise OSError(f"the cable was pulled, \x1b[31m{len(self.seen)}")
            return super().step(action)

    _, parts = one_at_a_time(tmp_path, Torn(length=1))
    demonstrations = Demonstrations(parts, local_channel(parts), size=5, seed=0)
    assert len(asyncio.run(demonstrations.batch(3))) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 demonstrations failed, the last with environment: Torn.step raised OSError" in told
    assert "\x1b" not in told
    later = Demonstrations(parts, local_channel(parts), size=5, seed=0)
    later.load_state_dict(demonstrations.state_dict())
    assert later.failed == 1
    # the fourth fails too: a batch of it alone is that after it
    assert [len(asyncio.run(demonstrations.batch(1))) for _ in range(2)] == [1, 1]
    assert (demonstrations.episodes, demonstrations.failed) == (5, 2)
    assert len(asyncio.run(demonstrations.batch(9))) == 3


def test_demonstrations_that_fail_when_they_are_played_again_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Torn(Taught):
        broken = 0

        def step(self, action: str) -> Any:
            if len(self.seen) % 4 < self.broken:
                raise OSError("the cable was pulled")
            return super().step(action)

    environment, parts = one_at_a_time(tmp_path, Torn(length=1))
    first = Demonstrations(parts, local_channel(parts), size=8, seed=0)
    asyncio.run(first.batch(8))
    assert (first.episodes, first.failed) == (8, 0)
    for broken, failed in ((1, 2), (3, 6)):
        later = Demonstrations(parts, local_channel(parts), size=8, seed=0)
        later.load_state_dict(first.state_dict())
        Torn.broken, environment.seen[:] = broken, []
        if broken == 3:
            with pytest.raises(EnvironmentFailure, match=r"6 of 8 demonstrations failed, .*the cable was pulled"):
                asyncio.run(later.batch(4))
            break
        assert len(asyncio.run(later.batch(8))) == 8 - failed
        assert later.failed == failed
        assert later.successes <= 8 - failed
        assert "2 of 8 demonstrations failed" in capsys.readouterr().out


def test_a_demonstrator_that_fails_mostly_stops_the_warm_start(tmp_path: Path) -> None:
    class Torn(Countdown):
        def step(self, action: str) -> Any:
            raise OSError("the cable was pulled")

    config = settings(tmp_path)
    config.rollout.retries = 0
    parts = assemble(config, Torn())
    with pytest.raises(EnvironmentFailure, match=r"2 of 2 demonstrations failed, .*the cable was pulled"):
        asyncio.run(Demonstrations(parts, local_channel(parts), size=5, seed=0).batch(2))


@pytest.mark.parametrize(("retries", "losses", "fails"), [(0, 3, False), (0, 4, True), (1, 1, False)])
def test_a_demonstration_whose_actor_was_lost_is_played_again(
    tmp_path: Path, retries: int, losses: int, fails: bool
) -> None:
    class Losing(LocalChannel):
        """Loses the actor of the first demonstration a number of times."""

        lost = 0

        async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
            if spec.trajectory_id.endswith("000000-0") and self.lost < losses:
                self.lost += 1
                return not_begun(spec, ActorFailure("its machine is gone"))
            return await super().play_once(spec, order)

    config = settings(tmp_path)
    config.rollout.retries = retries
    parts = assemble(config, taught())
    channel = Losing(parts, GroupRules(retries=retries))
    demonstrations = Demonstrations(parts, channel, size=5, seed=0)
    if fails:
        with pytest.raises(EnvironmentFailure, match=r"1 of 1 demonstrations failed.*its machine is gone"):
            asyncio.run(demonstrations.batch(1))
    else:
        samples = asyncio.run(demonstrations.batch(3))
        assert len({sample.trajectory_id for sample in samples}) == 3


class Learned:
    """Stands for the learner: notes what it is taught, and gets better with every step."""

    def __init__(self, parts: Any) -> None:
        self.version, self.policy = 0, parts.learner.policy
        self.batches: list[int] = []

    def supervised(self, samples: Sequence[Sample]) -> dict[str, float]:
        self.batches.append(len(samples))
        self.version += 1
        return {"loss": 0.5}


def run_warm_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, successes: dict[int, float | None], **changes: Any
) -> tuple[dict[str, Any], Learned, list[int], list[str], list[Trajectory]]:
    """(what the warm start did, its learner, the steps at which it was measured, what was said, what was written
    down as training) where the evaluation after a step finds `successes[step]`; None: no success, a reward of 0.5."""
    import uirl.training.warm_start as module

    config = settings(folder)
    for key, value in {"demonstrations": 4, "batch_size": 2, "evaluate_episodes": 6, **changes}.items():
        setattr(config.training.warm_start, key, value)
    parts = assemble(config, taught())
    written: list[Trajectory] = []
    channel = local_channel(parts)
    channel.on_finished = written.append
    parts.learner = learner = Learned(parts)  # type: ignore[assignment]
    measured: list[int] = []

    async def evaluate(*given: Any, **asked: Any) -> Any:
        measured.append(learner.version)
        assert asked["episodes"] == 6
        assert asked["split"] == "warm-start"
        return EvaluationReport(
            1, 0, successes[learner.version], None, 0.5, 1.0, trajectories=(Trajectory(),), tally=Tally(1, 1)
        )

    monkeypatch.setattr(module, "evaluate_episodes", evaluate)
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    rows: list[int] = []
    done = asyncio.run(WarmStart(parts, channel, Interrupt(), lambda step, row: rows.append(step)).run(lambda: None))
    assert rows == list(range(1, done["steps"] + 1))
    return done, learner, measured, said, written


def test_a_warm_start_ends_when_the_policy_succeeds_often_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {2: 0.25, 4: 0.5, 6: 0.75}
    changes = {"steps": 9, "evaluate_every": 2, "stop_at_success": 0.5}
    done, learner, measured, said, written = run_warm_start(tmp_path, monkeypatch, found, **changes)
    assert measured == [2, 4]
    assert learner.batches == [2] * 4
    assert (done["steps"], done["stopped_at_success"], done["demonstrations"]) == (4, 0.5, 4)
    assert 0 <= done["demonstrations_success"] <= 1
    assert len(said) == 2
    assert "4/9" in said[1]
    assert "success 50.0 %, 1 of 1 judged" in said[1]
    assert written == [], "demonstrations are no episodes of the run"


@pytest.mark.parametrize("tokens", [1, 64])
def test_a_demonstration_that_is_longer_than_replies_may_be_is_told(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uirl.training.warm_start as module

    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    config = settings(tmp_path)
    config.inference.max_tokens = tokens
    parts = assemble(config, taught())
    asyncio.run(Demonstrations(parts, local_channel(parts), 4, seed=0).batch(4))
    told = [words for words in said if f"inference.max_tokens={tokens}" in words]
    assert len(told) == (tokens == 1)


@pytest.mark.parametrize(
    ("changes", "found", "measured", "words"),
    [
        ({"steps": 2, "stop_at_success": None}, {2: 1.0}, [2], ["success 100.0 %"]),  # it only ended
        ({"steps": 5, "stop_at_success": None}, {2: 1.0, 4: None}, [2, 4], ["success 100.0 %", "reward 0.500"]),
        # no reward is the success that ends it
        ({"steps": 5, "stop_at_success": 0.3}, {2: None, 4: None}, [2, 4], ["reward 0.500"] * 2),
        ({"steps": 3, "evaluate_every": None}, {}, [], []),
    ],
)
def test_a_warm_start_that_no_success_ends_takes_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, found: Any, measured: list[int], words: list[str]
) -> None:
    changes = {"evaluate_every": 2, **changes}
    done, _, when, said, _ = run_warm_start(tmp_path, monkeypatch, found, **changes)
    assert (when, done["steps"], done["stopped_at_success"]) == (measured, changes["steps"], None)
    assert [word in one for word, one in zip(words, said, strict=True)] == [True] * len(words)
    assert not any("reward" in one and "success" in one for one in said)
