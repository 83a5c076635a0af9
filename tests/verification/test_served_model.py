"""A judge that is a real served model: a tiny one that says junk, which is counted and never a score."""

from __future__ import annotations

import pytest

from tests.cli.test_serve_model import SMALL, serving
from tests.verification.episodes import record
from uirl.errors import JudgeFailure
from uirl.types import Task, Trajectory
from uirl.verification.client import CallLimits, JudgeClient
from uirl.verification.evidence import Evidence
from uirl.verification.hybrid import HybridOptions, HybridVerifier
from uirl.verification.judge import Judge
from uirl.verification.rules import RuleBook, read_rule

pytestmark = pytest.mark.actors


async def test_junk_of_a_served_model_is_counted_and_never_scored() -> None:
    rules = RuleBook({"sure": read_rule({"equals": {"of": "state.sent", "value": True, "no": "decisive"}})})
    small = [word.replace("max_tokens=6", "max_tokens=24") for word in SMALL]
    with serving("uirl/tiny-vlm", *small) as url:
        judge = Judge(JudgeClient("uirl/tiny-vlm", url, limits=CallLimits(timeout=60)))
        verifier = HybridVerifier(judge, rules=rules, options=HybridOptions(ask="always"))
        sure = record({"sent": True}, task=Task("sure", goal="Send it."))
        verdict = await verifier.judge_episode(sure)
        assert (verdict.verifier, verdict.score) == ("rules", 1.0)
        for i in range(3):
            open_one: Trajectory = record(task=Task(f"open-{i}", goal=f"Send {i}."))
            with pytest.raises(JudgeFailure, match=r"^judge junk: "):
                await verifier.verify_evidence(Evidence(open_one))
            assert open_one.verdict is None
        assert verifier.counts["no answer: junk"] == 4
        # where it is needed it is asked about the beginning too: it answers nobody, so that is not the episode's doing
        assert judge.client.counts["junk"] == 1 + 3 * 2
        assert verifier.quality().overall.n == 0
        await verifier.close()


def test_actors_in_processes_make_the_verifier_of_the_config(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from tests.verification.scripted_judge import ScriptedJudge
    from tests.verification.test_runs import config_of, judged, train
    from uirl import TrajectoryStore

    with ScriptedJudge() as server:
        server.outcome = lambda seen: "success"
        changes = judged(server, "verification.prefer_rules=false", "verification.precision_limit=null")
        run = train(config_of(tmp_path, *changes, "actors.processes=1"))
        with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
            episodes = list(store)
        assert episodes
        assert all(e.verdict is not None and e.verdict.score == e.total_reward() == 1.0 for e in episodes)
        assert (tmp_path / "judge.sqlite").is_file()
