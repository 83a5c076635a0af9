"""Rules and judge together: who decides, what is recorded, whom nobody believes any more; over real HTTP."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.inference.stand_in_http import Answer
from tests.patience import PATIENCE
from tests.verification.episodes import record
from tests.verification.scripted_judge import ScriptedJudge, green, judge_of, points, red
from uirl.errors import JudgeFailure
from uirl.types import Task, Trajectory, Verdict
from uirl.verification.evidence import Evidence
from uirl.verification.hybrid import ASKED, JUDGE, PROCESS, RULE, SAVED, HybridOptions, HybridVerifier
from uirl.verification.quality import Channel
from uirl.verification.rules import RuleBook, read_rule

RULES = RuleBook(
    {
        "sure": read_rule({"equals": {"of": "state.sent", "value": True, "no": "decisive"}}),
        "weak": read_rule({"equals": {"of": "state.sent", "value": True}}),
    }
)


def episode(task: str, sent: bool, picture: Any, id: str = "t", group: str = "") -> Trajectory:
    made = record({"sent": sent}, task=Task(task, goal=f"goal of {task}"), final=picture, id=id, reply=f"I am {id}")
    made.group_id = group
    return made


def verifier(server: ScriptedJudge, prefer_rules: bool = True, **options: Any) -> HybridVerifier:
    return HybridVerifier(
        judge_of(server), prefer_rules, rules=RULES, options=HybridOptions(**{"audit": 0.0} | options)
    )


async def found(judge: HybridVerifier, made: Trajectory) -> Verdict:
    return await judge.judge_episode(made)


async def test_the_preferred_one_decides_where_it_knows(server: ScriptedJudge) -> None:
    cases = [  # task, what the rules see, what the judge sees -> with rules preferred, with the judge preferred
        ("sure", True, red(), ("rules", True), ("judge", False)),
        ("sure", False, green(), ("rules", False), ("judge", True)),
        ("weak", True, red(), ("rules", True), ("judge", False)),
        ("weak", False, green(), ("judge", True), ("judge", True)),
        ("none", False, red(), ("judge", False), ("judge", False)),
    ]
    for prefer in (True, False):
        judge = verifier(server, prefer)
        for task, sent, picture, by_rules, by_judge in cases:
            said = await found(judge, episode(task, sent, picture))
            assert (said.verifier, said.passed) == (by_rules if prefer else by_judge)
            assert said.score == float(said.passed)
            assert said.reason


async def test_what_is_written_on_the_record(server: ScriptedJudge) -> None:
    judge = verifier(server, ask="always")
    made = episode("sure", True, red())
    await found(judge, made)
    assert {name: made.metrics[name] for name in (RULE, JUDGE, ASKED, PROCESS)} == {
        RULE: 1.0, JUDGE: 0.0, ASKED: 1.0, PROCESS: 0.5}  # fmt: skip
    assert judge.counts["disagreed"] == 1
    await found(judge, episode("sure", True, green(), id="u"))
    assert judge.counts["agreed"] == 1
    assert judge.quality().overall.false_rejects == 1
    lazy = verifier(server)
    made = episode("sure", True, red())
    await found(lazy, made)
    assert (made.metrics[SAVED], lazy.counts["saved"], lazy.counts["asked"]) == (1.0, 1, 0)
    assert JUDGE not in made.metrics


async def test_a_share_of_what_rules_decide_is_asked_all_the_same(server: ScriptedJudge) -> None:
    judge = verifier(server, audit=0.3)
    for i in range(100):
        await found(judge, episode("sure", i % 2 == 0, green(), id=f"e{i}"))
    assert judge.counts["asked"] + judge.counts["saved"] == 100
    assert 15 <= judge.counts["asked"] <= 45
    assert judge.quality().overall.n == judge.counts["asked"]


@pytest.mark.parametrize("fault", [Answer("busy", 429), "no verdict"], ids=["server", "words"])
async def test_a_judge_that_fails_changes_no_score(server: ScriptedJudge, fault: Answer | str) -> None:
    def break_it() -> None:
        if isinstance(fault, str):
            server.replies += [fault]
        else:
            server.faults.extend([fault])

    for prefer in (True, False):
        for sent in (True, False):
            asked = judge_of(server, retries=0, timeout=PATIENCE)
            judge = HybridVerifier(asked, prefer, rules=RULES, options=HybridOptions(ask="always"))
            await asked.client.ask(*points("goal of sure"))
            break_it()
            said = await found(judge, episode("sure", sent, green(), id=f"{prefer}{sent}"))
            assert (said.verifier, said.score) == ("rules", float(sent))
            assert judge.counts["no answer"] == 1
            await asked.client.ask(*points("goal of weak"))
            break_it()
            break_it()  # what it is asked to know whether it answers anybody
            made = episode("weak", False, green())
            with pytest.raises(JudgeFailure, match=r"^judge "):
                await found(judge, made)
            assert made.verdict is None
            assert judge.quality().overall.n == 0


async def test_where_nobody_knows_it_is_not_solved(server: ScriptedJudge) -> None:
    rules_alone = HybridVerifier(None, rules=RULES)
    assert (await found(rules_alone, episode("weak", True, red()))).score == 1.0
    said = await found(rules_alone, episode("weak", False, red()))
    assert (said.score, said.passed, said.verifier) == (0.0, False, "rules")
    assert re.search("the rules do not know .* nobody else was asked", said.reason)
    judge = verifier(server)
    server.outcome = lambda seen: "unclear"
    said = await found(judge, episode("weak", False, red()))
    assert (said.score, said.passed, said.verifier) == (0.0, False, "judge")
    assert "the judge abstains" in said.reason


async def test_a_judge_that_accepts_too_much_is_not_believed_alone(
    server: ScriptedJudge, caplog: pytest.LogCaptureFixture
) -> None:
    judge = verifier(server, ask="always", precision_limit=0.7, window=30)
    server.outcome = lambda seen: "success"  # accepts everything
    assert (await found(judge, episode("weak", False, red(1)))).score == 1.0  # nothing is known of it yet
    with caplog.at_level(logging.WARNING):
        for i in range(12):
            await found(judge, episode("sure", i % 4 == 0, red(), id=f"e{i}"))
        made = episode("weak", False, red(2))
        said = await found(judge, made)
    assert (said.score, said.verifier) == (0.0, "rules")
    assert "not believed alone: precision 0.25 [0.08, 0.56] of 12 accepted" in said.reason
    assert "is no longer believed alone: precision 0.25" in caplog.text
    assert (await found(judge, episode("sure", True, red(3), id="s"))).verifier == "rules"
    prefers = HybridVerifier(judge.judge, False, rules=RULES, options=judge.options)
    assert (await found(prefers, episode("sure", False, red(4), id="p"))).verifier == "rules"
    server.outcome = server.look
    for i in range(30):
        await found(judge, episode("sure", True, green(), id=f"f{i}"))
    assert (await found(judge, episode("weak", False, red(5)))).score == 0.0  # it is again
    assert "is believed alone" in caplog.text


async def test_whom_nobody_believes_is_asked_only_to_know_how_good_it_is(server: ScriptedJudge) -> None:
    judge = verifier(server, audit=1.0, precision_limit=0.7, window=30)
    server.outcome = lambda seen: "success"
    for i in range(12):
        await found(judge, episode("sure", i % 4 == 0, red(), id=f"e{i}"))
    asked, made = len(server.seen), episode("weak", False, red(2))
    assert "not believed alone" in (await found(judge, made)).reason
    assert (len(server.seen), judge.counts["saved"], made.metrics[SAVED]) == (asked, 1, 1.0)
    server.outcome = server.look
    for i in range(30):
        await found(judge, episode("sure", True, green(), id=f"f{i}"))
    assert (await found(judge, episode("weak", False, red(5)))).score == 0.0  # it is believed again


@pytest.mark.slow
async def test_the_corrected_reward_is_unbiased_and_one_in_a_group(server: ScriptedJudge) -> None:
    judge = verifier(server, ask="always", correct_noise=True)
    with pytest.raises(JudgeFailure, match=r"^judge uncorrected: .* 0 solved and 0 unsolved"):
        await found(judge, episode("weak", False, green(), group="g0"))  # nothing is known yet: no judge is perfect
    server.error = 0.2
    for i in range(200):
        solved = i % 2 == 0
        await found(judge, episode("sure", solved, (green if solved else red)(100 + i // 2), id=f"e{i}"))
    channel = Channel.of(judge.quality().newest)
    assert channel is not None
    first = await found(judge, episode("weak", False, green(), id="a", group="g1"))
    assert first.score == pytest.approx(channel.corrected(float(first.passed)))
    scores = {first.passed: first.score}
    for i in range(40):  # the estimate moves on; the group keeps its own
        await found(judge, episode("sure", False, red(50 + i), id=f"x{i}"))
        said = await found(judge, episode("weak", False, green(i), id=f"m{i}", group="g1"))
        assert said.score == scores.setdefault(said.passed, said.score)
    assert len(scores) == 2
    assert Channel.of(judge.quality().newest) != channel
    sure = await found(judge, episode("sure", True, green(), id="s"))
    assert sure.score == 1.0  # what rules say needs no correction


@pytest.mark.parametrize(("solved_accepted", "unsolved_accepted"), [(18, 2), (2, 18), (10, 10)])
async def test_a_judge_is_corrected_whichever_way_it_errs(
    server: ScriptedJudge, solved_accepted: int, unsolved_accepted: int
) -> None:
    """Of 20 solved and 20 unsolved episodes it accepts so many: what it says then is worth what that says, on average
    1 for a solved episode and 0 for another, and nothing where it accepts both alike."""
    judge = verifier(server, ask="always", correct_noise=True)
    for solved, accepted in ((True, solved_accepted), (False, unsolved_accepted)):
        for i in range(20):
            server.outcome = lambda seen, yes=i < accepted: "success" if yes else "failure"
            await found(judge, episode("sure", solved, green(i) if solved else red(i), id=f"{solved}{i}"))
    server.outcome = server.look
    if solved_accepted == unsolved_accepted:
        with pytest.raises(JudgeFailure, match=r"^judge uncorrected: .* accept rates that differ by 0.1"):
            await found(judge, episode("weak", False, green(90)))
        return
    yes, no = [await found(judge, episode("weak", False, picture(90), id=picture.__name__)) for picture in (green, red)]
    t, f = solved_accepted / 20, unsolved_accepted / 20
    assert t * yes.score + (1 - t) * no.score == pytest.approx(1.0, abs=0.05)
    assert f * yes.score + (1 - f) * no.score == pytest.approx(0.0, abs=0.05)
    assert (yes.passed, no.passed) == (t > f, t < f)


async def test_a_judge_is_asked_until_its_error_rates_are_known(server: ScriptedJudge) -> None:
    judge = verifier(server, audit=0.0, correct_noise=True)
    for i in range(15):
        await found(judge, episode("sure", True, green(i), id=f"s{i}"))
        await found(judge, episode("sure", False, red(i), id=f"u{i}"))
    assert judge.counts["asked"] == 20  # ten of each, and no more for the rates
    assert (await found(judge, episode("weak", False, green(90)))).score > 1.0


async def test_in_a_group_only_answers_that_matter_are_asked(server: ScriptedJudge) -> None:
    judge = verifier(server, ask="always")
    group = [
        episode("weak", False, green(), id="a"),
        replace(episode("weak", False, green(), id="a"), id="b"),  # the same as a
        episode("weak", True, red(), id="c"),  # the rules know
        episode("weak", False, red(), id="d"),
    ]
    results = await judge.verify_group([Evidence(one) for one in group])
    assert [result.score for result in results if not isinstance(result, JudgeFailure)] == [1.0, 1.0, 1.0, 0.0]
    assert (judge.counts["asked"], judge.counts["saved"]) == (2, 2)
    (alone,) = await judge.verify_group([Evidence(episode("weak", False, green(7), id="z"))])
    assert isinstance(alone, JudgeFailure)
    assert judge.counts["asked"] == 2


def test_the_plain_calls(server: ScriptedJudge) -> None:
    judge = HybridVerifier(judge_model=judge_of(server), prefer_rule_verification=True)
    score, reason = judge.verify(task_name="t", task_goal="g", trajectory=record(success=False, final=green()))
    assert (score, reason) == (0.0, "the environment says success=false")
    score, reason = judge.verify(task_name="t", task_goal="g", trajectory=record(final=green()))
    assert (score, reason) == (1.0, "it looks like success")
    made = record(final=red())
    assert judge(made) == 0.0
    assert made.verdict is not None
    assert made.verdict.passed is False
    assert made.success is False


def test_a_model_by_name_is_asked_at_the_address_in_the_environment(
    server: ScriptedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UIRL_LLM_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    score, _ = HybridVerifier("gpt-4").verify("t", "g", record(final=green()))
    assert score == 1.0
    assert {seen.body["model"] for seen in server.seen} == {"gpt-4"}
    assert not any("authorization" in seen.headers for seen in server.seen)  # OpenAI's key is for OpenAI


async def test_what_processes_hear_is_shared(server: ScriptedJudge, tmp_path: Path) -> None:
    file = tmp_path / "judge.sqlite"
    first, second = (
        HybridVerifier(judge_of(server, file), rules=RULES, options=HybridOptions(ask="always")) for _ in range(2)
    )
    await found(first, episode("sure", True, green(), id="a"))
    await found(first, episode("sure", True, green(), id="a"))  # played again: it counts once
    await found(second, episode("sure", False, red(), id="b"))
    for one in (first, second):
        assert (one.quality().overall.true_accepts, one.quality().overall.true_rejects) == (1, 1)


async def test_runs_that_share_a_memory_share_no_rates(server: ScriptedJudge, tmp_path: Path) -> None:
    def of_run(name: str) -> HybridVerifier:
        judge = judge_of(server, tmp_path / "judge.sqlite")
        judge.client.budget = name
        return HybridVerifier(judge, rules=RULES, options=HybridOptions(audit=1.0, correct_noise=True))

    first, second = of_run("first"), of_run("second")
    with pytest.raises(JudgeFailure, match=r"^judge uncorrected: "):
        await found(first, episode("weak", False, green(), "a", group="train-000000"))
    for i in range(40):  # of its failures the judge accepts every second one
        solved = i < 20
        made = episode("sure", solved, green() if solved or i % 2 else red(), f"e{i}", group=f"train-{i + 1:06d}")
        await found(second, made)
    assert (second.quality().overall.n, first.quality().overall.n) == (40, 0)
    corrected = (await found(second, episode("weak", False, green(), "b", group="train-000000"))).score
    known = Channel.of(second.quality().newest)
    assert known is not None
    assert corrected == pytest.approx(known.corrected(1.0))
    assert corrected > 1.0
    again = of_run("second")  # a run that goes on knows what it knew
    assert again.quality().overall.n == 40
