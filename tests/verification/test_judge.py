"""The judge over real HTTP: its three steps, its votes, its memory, and no failure that is ever a score."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.inference.stand_in_http import Answer
from tests.verification.episodes import record, shot
from tests.verification.scripted_judge import (
    ScriptedJudge,
    green,
    judge_of,
    numbers,
    pictures_in,
    question,
    red,
    said,
    verdict,
)
from uirl.errors import JudgeFailure
from uirl.http.client import HTTPClient, Response
from uirl.images import Screenshot
from uirl.types import Action, Observation, Task, Trajectory, Turn
from uirl.verification.client import JudgeClient, cause_of
from uirl.verification.evidence import Evidence
from uirl.verification.judge import digest
from uirl.verification.outcome import Outcome, Votes, count_votes

P, F, U = Outcome.PASSED, Outcome.FAILED, Outcome.UNKNOWN


async def test_key_points_then_screens_then_the_verdict(server: ScriptedJudge) -> None:
    judge = judge_of(server)
    good, bad = record(final=green(), id="a"), record(final=red(), id="b")
    assert (await judge.judge(Evidence(good))).outcome is P
    assert (await judge.judge(Evidence(bad))).outcome is F
    assert len(server.asked("KeyPoints")) == 1  # of one goal once
    assert not server.asked("ScreenScores")  # three screens are few
    assert [len(pictures_in(seen)) for seen in server.asked("Judgement")] == [3, 3]
    assert "- it is done" in question(server.asked("Judgement")[0])
    assert "saw 'screen 1', then said 'done'" in question(server.asked("Judgement")[0])
    assert "as the person set it:\nOrder two apples." in question(server.asked("KeyPoints")[0])
    assert judge.client.counts["calls"] == 3
    assert judge.client.counts["tokens"] == 300


async def test_many_large_screens_fit_the_request(server: ScriptedJudge) -> None:
    turns, same = [], shot((250, 0, 0), size=(270, 1300))
    for i in range(100):
        picture = shot((i, 100, 0), size=(270, 1300)) if i % 2 else same
        turns.append(Turn(Observation(f"page {i}", (picture,)), action=Action(f"step {i} " + "x" * 5000)))
    long = Trajectory("long", Task("t", goal="g"), turns, "max_turns", final=Observation("end", (green(),)))
    judge = judge_of(server)
    found = await judge.judge(Evidence(long))
    assert found.outcome is P
    counts = found.screens
    assert (counts.taken, counts.repeated) == (101, 49)  # every second one is the same
    assert counts.left_out == 52 - 6
    choices = server.asked("ScreenScores")
    assert [len(pictures_in(seen)) for seen in choices] == [8, 8, 8]
    assert max(max(p.size) for seen in choices for p in pictures_in(seen)) == 512
    (asked,) = server.asked("Judgement")
    shown = numbers(asked)[: len(pictures_in(asked))]
    assert len(shown) == 6
    assert shown == sorted(shown)
    assert shown[-1] == 100  # the last one always
    assert all(1 + n % 5 == 5 for n in shown[:-1]) or len({1 + n % 5 for n in shown[:-1]}) > 1
    assert max(max(p.size) for p in pictures_in(asked)) == 1280
    assert counts.shrunk == 5
    assert len(question(asked)) < 60_000


async def test_what_cannot_be_shown_is_counted_and_not_sent(server: ScriptedJudge) -> None:
    named = Turn(Observation("x", ("a hash that nobody has",)), action=Action("a"))
    broken = Turn(Observation("y", (Screenshot(b"\x89PNG no picture"),)), action=Action("b"))
    made = Trajectory("m", Task("t", goal="g"), [named, broken], "terminated", final=Observation("z", (green(),)))
    judge = judge_of(server)
    found = await judge.judge(Evidence(made))
    assert found.screens.missing == 2
    assert len(pictures_in(server.asked("Judgement")[0])) == 1


FAULTS: dict[str, list[Answer]] = {
    "rate limit": [Answer("slow down", 429)] * 3,
    "server": [Answer("oh no", 500)] * 3,
    "refused request": [Answer("no such key", 401)],
    "connection": [Answer({"a": "b" * 1000}, keep=0.5)] * 3,
    "timeout": [Answer({}, seconds=1.0)],
    "junk": [Answer("<html>busy</html>")],
}


@pytest.mark.parametrize("tokens", [10**30, -5, 2**63])
async def test_a_count_of_tokens_that_no_request_has_is_junk(server: ScriptedJudge, tokens: int) -> None:
    judge = judge_of(server)
    server.replies = [said(verdict())]
    server.replies[0].body["usage"]["total_tokens"] = tokens
    with pytest.raises(JudgeFailure, match=r"^judge junk: .*usage\.total_tokens"):
        await judge.judge(Evidence(record(final=green())))


@pytest.mark.parametrize("cause", FAULTS)
async def test_a_server_that_fails_is_never_a_score(server: ScriptedJudge, cause: str) -> None:
    judge = judge_of(server, timeout=0.3 if cause == "timeout" else 5.0, retries=2)
    server.faults.extend(FAULTS[cause])
    with pytest.raises(JudgeFailure, match=f"^judge {cause}: ") as caught:
        await judge.judge(Evidence(record(final=green())))
    assert caught.value.kind == "judge"
    assert judge.client.counts[cause] == 1
    assert not server.faults
    assert (await judge.judge(Evidence(record(final=green())))).outcome is P  # nothing of it was kept


JUNK = {
    "junk": [
        "",
        "success",
        "The outcome is success.",
        '{"outcome": "success"}',
        '{"success": true}',
        verdict() + verdict(),
        verdict("perhaps"),
        verdict(process=7),
        verdict(process=1e30),
        verdict(process=10**400),
        verdict()[:-5],
        "[" * 100_000,
        '{"outcome": NaN}',
        "\ud800",
    ],
    "refusal": ["I'm sorry, I can't help with that.", "I cannot judge this.", "As an AI I do not look at screens."],
}


@pytest.mark.parametrize(("cause", "text"), [(cause, text) for cause, texts in JUNK.items() for text in texts])
async def test_a_reply_that_is_no_verdict_is_never_a_score(server: ScriptedJudge, cause: str, text: str) -> None:
    judge = judge_of(server)
    server.replies = [text]
    with pytest.raises(JudgeFailure, match=f"^judge {cause}: "):
        await judge.judge(Evidence(record(final=green())))


async def test_refusals_that_the_protocol_says(server: ScriptedJudge) -> None:
    judge = judge_of(server)
    filtered = said(verdict())
    filtered.body["choices"][0]["finish_reason"] = "content_filter"
    server.replies = [said("", refusal="no"), filtered]
    for _ in range(2):
        with pytest.raises(JudgeFailure, match=r"^judge refusal: "):
            await judge.judge(Evidence(record(final=green())))


@pytest.mark.parametrize("text", [f"```json\n{verdict()}\n```", f"<think>hm {verdict('failure')}</think>\n{verdict()}"])
async def test_thoughts_and_fences_around_a_verdict_are_read(server: ScriptedJudge, text: str) -> None:
    judge = judge_of(server)
    server.replies = [text]
    assert (await judge.judge(Evidence(record(final=red())))).outcome is P


@pytest.mark.parametrize(
    ("votes", "outcome"),
    [
        ("PPF", P),
        ("FFP", F),
        ("PF", U),
        ("PFU", U),
        ("P--", U),  # fewer than half can be read
        ("PP--", P),
        ("UU", U),
        ("P", P),
        ("", U),
    ],
)
def test_the_majority_counts_and_a_tie_is_an_abstention(votes: str, outcome: Outcome) -> None:
    kinds = {"P": P, "F": F, "U": U, "-": None}
    assert count_votes([kinds[vote] for vote in votes]).outcome is outcome


def test_votes_are_settled_when_the_rest_can_change_nothing() -> None:
    assert Votes(passed=2).settled(1)
    assert not Votes(passed=2).settled(2)
    assert not Votes(passed=1, unreadable=2).settled(0)
    for passed in range(4):
        for failed in range(4):
            for left in range(4):
                if Votes(passed, failed).settled(left):
                    ends = {Votes(passed + a, failed + b, left - a - b).outcome for a in range(left + 1)
                            for b in range(left + 1 - a)}  # fmt: skip
                    assert ends == {Votes(passed, failed).outcome}


async def test_votes_over_http(server: ScriptedJudge) -> None:
    yes, no, junk = verdict(), verdict("failure", met="no"), "hm"
    cases: list[tuple[int, list[Any], Outcome]] = [
        (3, [yes, yes], P),  # the third is not asked
        (3, [yes, no, no], F),
        (2, [yes, no], U),
        (3, [junk, yes, yes], P),
        (3, [verdict(met="no"), yes, no], U),  # the first contradicts itself
    ]
    for number, (votes, replies, outcome) in enumerate(cases):
        judge = judge_of(server, votes=votes)
        server.replies, before = list(replies), len(server.asked("Judgement"))
        found = await judge.judge(Evidence(record(final=green(), id=str(number))))
        assert (found.outcome, len(server.asked("Judgement")) - before) == (outcome, len(replies)), number
    judge = judge_of(server, votes=3)
    for replies in ([junk, junk, junk], [junk, yes, junk]):  # what cannot be read leaves it open
        server.replies = list(replies)
        with pytest.raises(JudgeFailure, match=r"^judge junk: "):
            await judge.judge(Evidence(record(final=green(), id=str(replies))))
    assert {seen.body["seed"] for seen in server.asked("Judgement")} == {0, 1, 2}


async def test_process_is_apart_from_outcome(server: ScriptedJudge) -> None:
    judge = judge_of(server)
    server.replies = [verdict("failure", met="no", process=0.9, obstacle="environment", mistakes="")]
    found = await judge.judge(Evidence(record(final=green())))
    assert (found.outcome, found.process, found.obstacle) == (F, 0.9, "environment")


async def test_answers_are_kept_by_content_over_processes(server: ScriptedJudge, tmp_path: Path) -> None:
    for _ in range(2):
        judge = judge_of(server, tmp_path / "judge.sqlite")
        same = [record(final=green(), id=id) for id in "ab"]
        assert [found.outcome for found in await asyncio.gather(*(judge.judge(Evidence(r)) for r in same))] == [P, P]
        judge.client.memory.close()
    assert len(server.seen) == 2  # the key points and one verdict


def variants() -> dict[str, Trajectory]:
    """Episodes that differ in one thing each, also in what no request shows."""
    long = "x" * 9000
    return {
        "plain": record(final=green()),
        "final": record(final=green(201)),
        "reply": record(final=green(), reply="done."),
        "end of a long reply": record(final=green(), reply=long + "a"),
        "end of another": record(final=green(), reply=long + "b"),
        "text": record(final=green(), text="another page"),
        "turns": record(final=green(), turns=3),
        "goal": record(final=green(), task=Task("order-1", goal="Order three apples.")),
        "task": record(final=green(), task=Task("order-2", goal="Order two apples.")),
    }


async def test_different_episodes_never_share_an_answer(server: ScriptedJudge) -> None:
    made = variants()
    assert len({digest(r) for r in made.values()}) == len(made)
    judge = judge_of(server)
    for one in made.values():
        await judge.judge(Evidence(one))
    assert len(server.asked("Judgement")) == len(made)
    assert judge.client.counts["kept"] == len(made) - 2  # key points of the same goal
    other = JudgeClient("another model", server.url, memory=judge.client.memory)
    judge.client = other
    await judge.judge(Evidence(made["plain"]))
    assert len(server.asked("Judgement")) == len(made) + 1


async def test_a_budget_outlives_the_process(server: ScriptedJudge, tmp_path: Path) -> None:
    file = tmp_path / "judge.sqlite"
    judge = judge_of(server, file, max_calls=2)
    assert (await judge.judge(Evidence(record(final=green())))).outcome is P
    judge.client.memory.close()
    again = judge_of(server, file, max_calls=2)
    with pytest.raises(JudgeFailure, match=r"^judge budget: 2 calls and 200 tokens are spent of 2 calls"):
        await again.judge(Evidence(record(final=red())))
    assert (await again.judge(Evidence(record(final=green())))).outcome is P  # kept answers cost nothing
    tokens = judge_of(server, tmp_path / "other.sqlite", max_tokens=150)
    assert (await tokens.judge(Evidence(record(final=red())))).outcome is F
    with pytest.raises(JudgeFailure, match=r"^judge budget: "):
        await tokens.judge(Evidence(record(final=green())))
    assert len(server.seen) == 4


async def test_at_most_so_many_calls_at_once(server: ScriptedJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    together, most = 0, 0
    judge = judge_of(server, concurrent=2)
    send = HTTPClient.send

    async def watched(self: HTTPClient, *request: Any, **options: Any) -> Response:
        nonlocal together, most
        together += 1
        most = max(most, together)
        try:
            return await send(self, *request, **options)
        finally:
            together -= 1

    monkeypatch.setattr(HTTPClient, "send", watched)
    await asyncio.gather(*(judge.judge(Evidence(record(final=green(level)))) for level in range(100, 110)))
    assert most == 2


async def test_a_server_that_knows_no_schemas_is_asked_without(server: ScriptedJudge) -> None:
    old, refused = server.answer, []

    def picky(seen: Any) -> Answer:
        body = seen.body
        for name, told in (("response_format", "unknown field response_format"), ("temperature", "temperature: only 1"),
                           ("max_tokens", "use max_completion_tokens instead of max_tokens")):  # fmt: skip
            if name in body:
                refused.append(name)
                return Answer({"error": {"message": told}}, 400)
        form = "Judgement" if "Judge the process" in question(seen) else "KeyPoints"
        seen.body["response_format"] = {"json_schema": {"name": form}}
        return old(seen)

    server.answer = picky  # type: ignore[method-assign]
    judge = judge_of(server)
    assert (await judge.judge(Evidence(record(final=green())))).outcome is P
    assert refused == ["response_format", "response_format", "temperature", "max_tokens"]  # once, not per question


async def test_the_key_is_sent_and_never_told(
    server: ScriptedJudge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("UIRL_LLM_API_KEY", "sk-secret")
    server.faults += [Answer("response_format of sk-secret", 400), Answer("your key sk-secret is wrong", 401)]
    judge = judge_of(server)
    with pytest.raises(JudgeFailure, match="is the key in UIRL_LLM_API_KEY right") as caught:
        await judge.judge(Evidence(record(final=green())))
    assert server.seen[0].headers["authorization"] == "Bearer sk-secret"
    assert "asked again without: 'response_format of ***'" in caplog.text
    assert "sk-secret" not in str(caught.value) + caplog.text


def test_the_cause_of_a_failure_is_read_from_its_message() -> None:
    assert cause_of("judge rate limit: http://x after 3 tries: 429") == "rate limit"
    assert cause_of("the reward function failed: ValueError") == "other"
    assert cause_of("judge") == "other"
