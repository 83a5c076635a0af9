"""A policy that cannot be judged where it loses gains nothing; where the judge answers nobody, nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inference.stand_in_http import Answer, Seen
from tests.verification.episodes import record
from tests.verification.scripted_judge import ScriptedJudge, green, judge_of, points, question, red, said, verdict
from uirl.errors import JudgeFailure
from uirl.training.evaluation.evaluation import EvaluationReport, report_on
from uirl.types import Failure, Trajectory
from uirl.verification.hybrid import NOBODY, HybridOptions, HybridVerifier
from uirl.verification.judge import JudgeOptions
from uirl.verification.rules import RuleBook, read_rule

WAYS: dict[str, Answer | str] = {
    "abstains": verdict("unclear"),
    "contradicts itself": verdict("success", met="no"),
    "junk": "hm",
    "refusal": "I'm sorry, I can't judge this.",
    "filter": said("", refusal="no"),
    "no answer of the API": Answer("<html>busy</html>"),
    "too long": Answer("context length exceeded", 400),
    "too large": Answer("payload too large", 413),
    "unprocessable": Answer("no", 422),
    "crashes the server": Answer("oh no", 500),
    "more than the rate allows": Answer("request too large", 429),
    "takes too long": Answer({}, seconds=4.0),
    "breaks the connection": Answer({"a": "b" * 1000}, keep=0.5),
}
EPISODES = 8


def waiting(way: str, *more: Any) -> Any:
    """A way as a parameter; a second is waited for every answer of one."""
    return pytest.param(way, *more, marks=pytest.mark.slow if way == "takes too long" else ())


class Coverable(ScriptedJudge):
    """Cannot judge what says 'cover me', or nothing at all where it is `down`."""

    fault: Answer | str = ""
    down = False

    def answer(self, seen: Seen) -> Answer:
        form = seen.body.get("response_format", {}).get("json_schema", {}).get("name")
        if self.down or (form in (None, "Judgement") and "cover me" in question(seen)):
            return said(self.fault) if isinstance(self.fault, str) else self.fault
        return super().answer(seen)


SERVER = Coverable
UNSURE = RuleBook({}, default=read_rule({"equals": {"of": "state.sent", "value": True}}))


async def played(judge: HybridVerifier, *, knows: bool = False, retries: int = 1) -> EvaluationReport:
    """One episode in four is solved; the others say 'cover me'. Those that fail are played again."""
    done: list[Trajectory] = []
    attempts: list[Trajectory] = []
    for i in range(EPISODES):
        solved = i % 4 == 0
        for attempt in range(retries + 1):
            made = record(
                {"sent": solved and knows},
                final=green(100 + i) if solved else red(100 + i),
                reply=f"all done {i}" if solved else f"cover me {i}",
                id=f"e{i}-{attempt}",
            )
            try:
                made.verdict = await judge.judge_episode(made)
            except JudgeFailure as error:
                made.failure = Failure(error.kind, str(error))
                attempts.append(made)
                continue
            break
        if made.failure is not None:
            attempts.pop()
        done.append(made)
    return report_on(done, attempts)


@pytest.mark.parametrize(
    ("way", "votes"), [*(waiting(way, 1) for way in WAYS), waiting("abstains", 3), waiting("junk", 3)]
)
async def test_what_only_this_episode_causes_is_a_loss(server: Coverable, way: str, votes: int) -> None:
    server.fault = WAYS[way]
    asked = judge_of(server, timeout=1.0 if way == "takes too long" else 20.0, retries=0)
    asked.options = JudgeOptions(votes=votes)
    judge = HybridVerifier(asked, rules=UNSURE, options=HybridOptions(audit=0.0))
    report = await played(judge)
    assert (report.success, report.judged, report.failures) == (0.25, EPISODES, 0)
    assert report.tally.success_if_lost == 0.25
    lost = [one for one in report.trajectories if not one.success]
    for one in lost:
        assert one.verdict is not None
        assert (one.verdict.score, one.metrics[NOBODY]) == (0.0, 1.0)
        assert "not solved as far as anybody can say" in one.verdict.reason


@pytest.mark.parametrize("way", [waiting(way) for way in WAYS if way not in ("abstains", "contradicts itself")])
async def test_what_hits_every_episode_is_a_failure_and_its_cost_is_told(server: Coverable, way: str) -> None:
    server.fault = WAYS[way]
    asked = judge_of(server, timeout=1.0 if way == "takes too long" else 20.0, retries=0)
    judge = HybridVerifier(asked, rules=UNSURE, options=HybridOptions(audit=0.0))
    await asked.client.ask(*points("Order two apples."))
    server.down = True
    report = await played(judge, knows=True)  # the rules know the solved ones: those alone are judged
    assert (report.success, report.judged, report.failures) == (1.0, 2, 6)
    assert report.tally.success_if_lost == 2 / (2 + 6 + 6)
    assert report.tally.noteworthy


async def test_an_answer_lost_by_chance_is_asked_for_again(server: Coverable) -> None:
    judge = HybridVerifier(judge_of(server, retries=0), rules=UNSURE, options=HybridOptions(audit=0.0))
    server.replies = ["hm"]
    made = record({"sent": False}, final=green())
    assert (await judge.judge_episode(made)).passed


async def test_a_judge_that_nobody_believes_and_rules_that_only_know_a_yes_make_no_winners(server: Coverable) -> None:
    options = HybridOptions(audit=0.0, precision_limit=0.9, ask="always", window=40)
    judge = HybridVerifier(judge_of(server), rules=UNSURE, options=options)
    judge._is_believed = lambda: False  # type: ignore[method-assign]
    report = await played(judge, knows=True)
    assert (report.success, report.judged, report.failures) == (0.25, EPISODES, 0)


async def test_an_abstention_is_worth_no_more_than_a_loss_where_errors_are_corrected(server: Coverable) -> None:
    judge = HybridVerifier(
        judge_of(server), rules=UNSURE, options=HybridOptions(audit=0.0, correct_noise=True, ask="always")
    )
    judge._corrected = lambda score, group: 2 * score - 0.5  # type: ignore[method-assign]
    server.fault = WAYS["abstains"]
    lost = await judge.judge_episode(record({"sent": False}, final=red(), reply="I lost"))
    covered = await judge.judge_episode(record({"sent": False}, final=red(), reply="cover me"))
    assert covered.score == lost.score == -0.5


async def test_rules_alone_that_do_not_know_say_no(server: Coverable) -> None:
    report = await played(HybridVerifier(None, rules=UNSURE), knows=True)
    assert (report.success, report.judged, report.failures) == (0.25, EPISODES, 0)
