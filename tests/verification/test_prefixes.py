"""How far a failed episode was right: by fork, by the judge, and what nobody knows."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.inference.stand_in_http import Answer
from tests.verification.episodes import shot
from tests.verification.scripted_judge import ScriptedJudge, judge_of, pictures_in, question
from uirl import FineGrainedTrajectoryAnalyzer
from uirl.environments import ScreenEnvironment
from uirl.errors import ConfigError, JudgeFailure
from uirl.images import Screenshot, screenshot
from uirl.storage import TrajectoryStore
from uirl.types import Action, Observation, Task, Trajectory, Turn, Verdict
from uirl.verification.evidence import Evidence
from uirl.verification.fork import Fork, ForkFinder
from uirl.verification.prefixes import PrefixFinding, bisect, fork_of, step_rewards, with_step_rewards
from uirl.verification.similarity import ScreenMatch, ScreenMatcher, difference_hash, ssim

SHADES = {letter: 9 * i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


def page(letter: str) -> Observation:
    """A page of one letter, whose picture follows from it."""
    return Observation(letter, (shot((SHADES[letter.lower()], 80, 0)),))


def episode(way: str, *, solved: bool = False, id: str = "t", seed: int | None = 1) -> Trajectory:
    """An episode of pages and actions in turn: 'a1b2c' sees a, does 1, sees b, does 2 and ends at c."""
    pages, actions = way[::2], way[1::2]
    turns = [
        Turn(page(seen), action=Action(act), terminated=i == len(actions) - 1)
        for i, (seen, act) in enumerate(zip(pages, actions, strict=False))
    ]
    return Trajectory(
        id,
        Task("order", goal="g"),
        turns,
        "terminated",
        final=page(pages[-1]),
        metrics={"success": float(solved)},
        seed=seed,
    )


# -- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "successes", "fork"),
    [
        ("a1b2c9x", ["a1b2c3d"], (2, 2)),  # differs in its last turn
        ("a1b9x3y", ["a1b2c3d"], (1, 1)),
        ("a9x", ["a1b2c3d"], (0, 0)),
        ("a7b2c9x", ["a1b2c3d"], (2, 2)),  # 7 does what 1 does: the next screens are the same
        ("a1b9b2c9x", ["a1b2c3d"], (1, 1)),  # a miss is wrong, even where the screen stays
        ("a1b2c9x", ["a1b8b2c3d"], (2, 3)),  # the success missed too; the way is the same
        ("a1b9x", ["a7c3d", "a1b2c3d"], (1, 1)),  # the longest of two
        ("a1b2c9x", ["n1b2c3d"], None),  # another first screen
        ("a1b2c9x", ["a1p2c3d"], None),  # the same action led elsewhere: nothing can be said
        ("a1b", ["a1b2c3d"], None),  # it ended where the other went on, by the same action
        ("a1b2c3d", [], None),
    ],
)
def test_where_episodes_part(failed: str, successes: list[str], fork: tuple[int, int] | None) -> None:
    others = [episode(way, solved=True, id=f"s{i}") for i, way in enumerate(successes)]
    found = ForkFinder().find(episode(failed), others)
    assert (None if found is None else (found.at, found.other)) == fork


def test_the_environments_own_key_decides_before_pictures() -> None:
    def keyed(way: str, keys: str) -> Trajectory:
        made = episode(way)
        turns = [
            replace(t, observation=replace(t.observation, state_key=k)) for t, k in zip(made.turns, keys, strict=False)
        ]
        return replace(made, turns=turns, final=replace(made.final, state_key=keys[-1]))  # type: ignore[type-var]

    other = replace(keyed("A1B2c3d", "1234"), id="s")
    assert ForkFinder().find(keyed("a1b2c9x", "1239"), [other]) == Fork(2, 2, "s")
    assert ForkFinder().find(keyed("A1B2c9x", "1939"), [other]) is None


def test_pictures_that_were_not_kept_are_the_same_only_by_hash() -> None:
    def named(way: str) -> Trajectory:
        made = episode(way)
        return replace(made, turns=[
            replace(t, observation=replace(t.observation, images=(t.observation.images[0].hash,))) for t in made.turns
        ])  # fmt: skip

    assert ForkFinder().find(named("a1b2c9x"), [named("a1b2c3d")]) == Fork(2, 2, "t")
    pictures = {page(letter).images[0].hash: page(letter).images[0] for letter in "abcdx"}
    found = ForkFinder(pictures=pictures.__getitem__).find(named("a1b2c9x"), [episode("a1b2c3d", id="s")])
    assert found == Fork(2, 2, "s")


def test_forks_compare_episodes_of_one_instance() -> None:
    with pytest.raises(ConfigError, match="forks compare episodes of one instance"):
        fork_of(episode("a9x"), [episode("a1b", solved=True, seed=2)], ScreenMatcher())


def play(replies: list[Action], seed: int, id: str) -> Trajectory:
    """An episode of the drawn form; after the replies the demonstrator goes on."""
    env = ScreenEnvironment(level=3)
    seen, turns, success = env.reset(seed=seed), [], False
    while not turns or not turns[-1].terminated:
        action = replies[len(turns)] if len(turns) < len(replies) else env.expert_action()
        assert action is not None
        result = env.step(action)
        shown = Observation(seen.text, (screenshot(seen.images[0]),))
        turns.append(Turn(shown, action=action, terminated=result.terminated))
        seen, success = result.observation, bool(result.observation.info["success"])
    final = Observation(seen.text, (screenshot(seen.images[0]),))
    return Trajectory(
        id, Task("screen"), turns, "terminated", final=final, metrics={"success": float(success)}, seed=seed
    )


@pytest.mark.parametrize("seed", range(5))
def test_forks_on_the_drawn_screen(seed: int) -> None:
    solved = play([], seed, "s")
    first = solved.turns[0].action.tool_calls[0]
    near = Action.of("click", x=first.arguments["x"] + 1, y=first.arguments["y"])  # the same button
    wrong = play([near, Action.of("type", text="x")], seed, "f")
    found = fork_of(wrong, [solved], ScreenMatcher())
    assert found is not None
    assert (found.right, found.error_step, found.by, found.other) == (1, 1, "fork", "s")


# -- the same screen -----------------------------------------------------------------------------------------------


def phone(clock: str = "12:00", *, ticked: bool = False) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (60, 27, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((1080, 2400), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 1080, 96), fill="black")
    draw.text((40, 10), clock, fill="white", font_size=70)
    draw.rectangle((120, 1050, 190, 1120), outline="black", width=6, fill="white")
    if ticked:
        draw.line((130, 1060, 180, 1110), fill="black", width=10)
        draw.line((180, 1060, 130, 1110), fill="black", width=10)
    return picture


def jpeg(picture: Image.Image) -> Screenshot:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=85)
    return Screenshot(buffer.getvalue())


def test_what_counts_as_the_same_screen() -> None:
    matcher = ScreenMatcher()
    base = screenshot(phone())
    assert matcher.same(base, jpeg(phone()))  # coded in another way
    assert not matcher.same(base, screenshot(phone(ticked=True)))  # one box of a large screen
    assert not matcher.same(base, screenshot(phone("17:59")))
    assert not matcher.same(base, screenshot(phone().resize((540, 1200))))  # a click would land elsewhere
    unseen = ScreenMatcher(ScreenMatch(ignore=((0, 0, 1, 0.04),)))
    assert unseen.same(base, screenshot(phone("17:59")))
    assert not unseen.same(base, screenshot(phone("17:59", ticked=True)))


def test_colours_of_one_brightness_differ_and_what_is_no_picture_equals_itself() -> None:
    matcher = ScreenMatcher()
    assert not matcher.same(shot((220, 40, 40)), shot((30, 98, 220)))
    broken = Screenshot(b"\x89PNG no picture")
    assert matcher.same(broken, Screenshot(b"\x89PNG no picture"))
    assert not matcher.same(broken, shot())
    assert matcher.same(shot((100, 90, 90), (3, 2)), shot((101, 90, 90), (3, 2)))  # smaller than a window


def test_golden_numbers_of_ssim_and_hash() -> None:
    a = np.zeros((8, 8, 1), np.float32)
    b = np.full((8, 8, 1), 255, np.float32)
    # no variance: (C1)(C2) / ((255^2 + C1)(C2)) = 6.5025 / 65031.5025
    assert math.isclose(float(ssim(a, b).max()), 6.5025 / 65031.5025, rel_tol=1e-6)
    assert ssim(a, a).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    ramp = Image.fromarray(np.tile(np.arange(0, 252, 28, dtype=np.uint8), (8, 1)))
    assert difference_hash(ramp) == 2**64 - 1  # every cell is darker than its right neighbour
    assert difference_hash(ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 0


# -- the judge -----------------------------------------------------------------------------------------------------


def long(turns: int) -> Trajectory:
    letters = [Turn(Observation(f"page {i}", (shot((i, 0, 0)),)), action=Action(f"do {i}")) for i in range(turns)]
    return Trajectory("long", Task("t", goal="g"), letters, "max_turns", final=Observation("end", (shot(),)), seed=1)


def told(seen: Any) -> int:
    """How many steps the judge is told of."""
    return question(seen).count("said 'do ")


def wrong_from(turn: int, silent: tuple[int, ...] = ()) -> Any:
    """A judge that knows that this turn is the first wrong one, and abstains about beginnings of these lengths."""
    return lambda seen: "unclear" if told(seen) in silent else "yes" if told(seen) <= turn else "no"


@pytest.mark.parametrize("turn", [0, 1, 2, 50, 98, 99])
async def test_the_first_wrong_of_a_hundred_turns_takes_seven_questions(server: ScriptedJudge, turn: int) -> None:
    server.on_track = wrong_from(turn)
    judge = judge_of(server)
    found = await bisect(judge, Evidence(long(100)))
    assert (found.right, found.error_step, found.by) == (turn, turn, "judge")
    assert 6 <= len(server.asked("Progress")) <= 7


async def test_a_beginning_is_shown_as_it_ended(server: ScriptedJudge) -> None:
    server.on_track = wrong_from(1)
    judge = judge_of(server)
    await bisect(judge, Evidence(long(20)))
    seen = next(one for one in server.asked("Progress") if told(one) == 10)
    assert "page 10" in question(seen)  # what stood there after ten turns
    assert "page 11" not in question(seen)
    assert pictures_in(seen)[-1].getpixel((0, 0)) == (10, 0, 0)
    assert len(pictures_in(seen)) == 6


async def test_nothing_wrong_but_not_finished(server: ScriptedJudge) -> None:
    judge = judge_of(server)
    found = await bisect(judge, Evidence(long(8)))
    assert (found.right, found.wrong, found.error_step) == (8, None, None)


async def test_an_abstention_is_no_answer(server: ScriptedJudge) -> None:
    judge = judge_of(server)
    server.on_track = wrong_from(3, silent=(4,))
    found = await bisect(judge, Evidence(long(8)))
    assert (found.right, found.wrong, found.error_step) == (3, 5, None)  # turn 3 or 4
    assert "abstains at 4 turns" in found.reason
    server.on_track = wrong_from(6, silent=(4,))
    assert (await bisect(judge, Evidence(replace(long(8), task=Task("u", goal="g"))))).error_step == 6
    server.on_track = lambda seen: "unclear"
    found = await bisect(judge, Evidence(replace(long(8), task=Task("v", goal="g"))))
    assert (found.by, found.right, found.error_step) == ("nobody", 0, None)
    assert found.verdict_on(long(8)).correct_prefix is None


async def test_a_judge_that_fails_half_way_leaves_what_is_known(server: ScriptedJudge) -> None:
    judge = judge_of(server, retries=0)
    server.on_track = wrong_from(6)
    asked: list[int] = []

    def dies(seen: Any) -> str:
        asked.append(told(seen))
        if len(asked) == 2:
            server.faults.extend([Answer("oh no", 500)] * 9)
        return wrong_from(6)(seen)

    server.on_track = dies
    found = await bisect(judge, Evidence(long(16)))
    assert asked == [8, 4]
    assert (found.right, found.wrong, found.error_step, found.by) == (4, 8, None, "judge")
    assert "judge server" in found.reason


async def test_votes_count(server: ScriptedJudge) -> None:
    judge = judge_of(server, votes=3)
    server.on_track = lambda seen: "no" if seen.body["seed"] == 0 else wrong_from(2)(seen)  # one vote is always no
    assert (await bisect(judge, Evidence(long(8)))).error_step == 2


# -- the class of the founding documents ---------------------------------------------------------------------------


def test_its_program_with_another_import(server: ScriptedJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UIRL_LLM_BASE_URL", server.url)
    server.on_track = wrong_from(2)
    trajectory = long(6)

    analyzer = FineGrainedTrajectoryAnalyzer(judge_model="gpt-4", extract_correct_prefix=True)

    correct_prefix, error_step = analyzer.analyze_and_extract(task_goal="Task goal", trajectory=trajectory)

    assert error_step == 2
    assert correct_prefix is not None
    assert [turn.action.text for turn in correct_prefix.turns] == ["do 0", "do 1"]
    assert correct_prefix.final == trajectory.turns[2].observation
    assert "Task goal" in question(server.asked("Progress")[0])
    quiet = FineGrainedTrajectoryAnalyzer("gpt-4", extract_correct_prefix=False)
    assert quiet.analyze_and_extract("Task goal", trajectory) == (None, 2)


def test_who_is_asked(server: ScriptedJudge) -> None:
    analyzer = FineGrainedTrajectoryAnalyzer(judge_of(server, retries=0))
    solved = episode("a1b2c3d", solved=True)
    assert analyzer.analyze_and_extract("g", solved) == (solved, None)
    prefix, error = analyzer.analyze_and_extract("g", episode("a1b9x"), [solved])
    assert (len(prefix or ()), error) == (1, 1)
    assert not server.seen  # a fork needs no judge
    with pytest.raises(JudgeFailure, match="no judge is asked"):
        FineGrainedTrajectoryAnalyzer().analyze_and_extract("g", episode("a1b9x"))
    server.faults.append(Answer("no", 500))
    with pytest.raises(JudgeFailure, match="judge server"):
        analyzer.analyze_and_extract("g", episode("a1b9x"))


# -- what is done with it ------------------------------------------------------------------------------------------


def test_the_store_keeps_the_prefix_and_its_reason(tmp_path: Path) -> None:
    failed = replace(episode("a1b9x"), verdict=Verdict(0.0, False, "the rule says no", "rules"))
    found = fork_of(failed, [episode("a1b2c3d", solved=True, id="s")], ScreenMatcher())
    assert found is not None
    verdict = found.verdict_on(failed)
    assert (verdict.score, verdict.verifier, verdict.correct_prefix) == (0.0, "rules", 1)
    assert "the rule says no; its beginning: fork: the same screens as s" in verdict.reason
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add(failed, step=1)
        store.set_verdict("t", verdict)
        assert store.get("t").verdict == verdict
        assert store.list()[0].success is False
        store.set_verdict("t", replace(verdict, passed=True))
        assert store.list(success=True)[0].id == "t"
    again = found.verdict_on(replace(failed, verdict=verdict))
    assert again == verdict  # said once, however often it is found


def test_a_prefix_is_a_record_of_its_own() -> None:
    whole = episode("a1b2c9x")
    cut = whole.prefix(2)
    assert (len(cut), cut.final, cut.stop_reason, cut.success) == (2, page("c"), "truncated", None)
    assert len(whole) == 3
    assert whole.prefix(3) is whole
    assert len(whole.prefix(0)) == 0
    with pytest.raises(ValueError, match="prefix of 4 turns"):
        whole.prefix(4)


def test_credit_per_step() -> None:
    found = PrefixFinding(2, 3, "fork", "")
    whole = episode("a1b2c9x8y")
    # 1 shared by 4 turns: 0.25 for each of the two right ones; the third is the mistake
    assert step_rewards(whole, found, wrong=-0.5) == [0.25, 0.25, -0.5, 0.0]
    solved = PrefixFinding(4, None, "outcome", "")
    assert sum(step_rewards(whole, solved)) == 1.0
    unknown = PrefixFinding(1, 3, "judge", "")
    assert step_rewards(whole, unknown, wrong=-0.5) == [0.25, 0.0, 0.0, 0.0]
    assert with_step_rewards(whole, [0.25, 0.25, -0.5, 0.0]).rewards == [0.25, 0.25, -0.5, 0.0]
    assert whole.rewards == [0.0] * 4
    with pytest.raises(ValueError, match="got 1 rewards"):
        with_step_rewards(whole, [1.0])
