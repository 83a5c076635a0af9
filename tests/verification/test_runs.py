"""Whole runs with a verifier: trained, evaluated and judged again from the store, by a judge over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inference.stand_in_http import Answer
from tests.verification.scripted_judge import ScriptedJudge, said
from uirl import ConfigStore, RayPPOTrainer, RunDirectory, TrajectoryStore, read_metrics
from uirl.cli.main import main
from uirl.errors import ConfigError, RolloutFailure
from uirl.storage.labels import Label, LabelStore
from uirl.training.channels.episodes import job_for
from uirl.verification.hybrid import JUDGE, RULE

RUN = [
    *("environment.name=guess_number", "environment.options={n: 4, guesses: 2, demonstrator: random}"),
    *("inference.max_tokens=4", "training.batch_size=4", "training.minibatches=1", "training.eval_every=null"),
    *("training.num_epochs=1", "training.num_iters_per_epoch=2", "training.eval_episodes=2"),
    *("training.warm_start.enabled=false", "logging.trackers=[]", "logging.run_name=run"),
]
GOAL = 'default: {contains: {of: text, value: "never written", no: decisive}}'


@pytest.fixture
def server() -> Iterator[ScriptedJudge]:
    with ScriptedJudge() as opened:
        opened.outcome = lambda seen: "success" if len(json.dumps(seen.body)) % 2 else "failure"
        yield opened


def config_of(folder: Path, *changes: str) -> ConfigStore:
    return ConfigStore().override([*RUN, f"logging.runs_dir={folder}", "verification.enabled=true", *changes])


def judged(server: ScriptedJudge, *changes: str) -> list[str]:
    return ["verification.judge=eye", f"verification.judge_url={server.url}", "verification.retries=0", *changes]


def train(config: ConfigStore) -> Path:
    trainer = RayPPOTrainer(config)
    try:
        trainer.fit()
        assert trainer.run_path is not None
        return trainer.run_path
    finally:
        trainer.cleanup()


def test_a_run_is_rewarded_by_its_verifier_and_judged_again(
    server: ScriptedJudge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(
        config_of(
            tmp_path,
            *judged(
                server,
                "verification.ask=always",
                "verification.prefer_rules=false",
                "verification.precision_limit=null",
            ),
        )
    )
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        episodes = list(store)
    assert episodes
    for episode in episodes:
        assert episode.verdict is not None
        assert episode.verdict.verifier == "judge"
        assert episode.total_reward() == episode.verdict.score == float(episode.verdict.passed)
        assert episode.success is episode.verdict.passed
        assert episode.metrics[JUDGE] == episode.verdict.score
        assert episode.metrics[RULE] == episode.metrics["success"]
        assert episode.final is not None
    rows = read_metrics(RunDirectory.open(run).metrics_path)
    for row in rows:
        assert row["count/judge/asked"] == 4
        assert row["count/judge/saved"] == row["count/judge/no_answer"] == 0
        assert "judge/precision" in row
        assert "judge/false_accept_rate" in row
    assert rows[-1]["judge/agreement"] is not None

    before = len(server.seen)
    assert main(["judge", str(run), *judged(server, "verification.ask=always")]) == 0
    assert len(server.seen) == before  # every answer was kept, and nothing was played
    again = [json.loads(line) for line in (run / "judgements" / "eye.jsonl").read_text().splitlines()]
    assert {one["id"]: one["judge"] for one in again} == {e.id: e.metrics[JUDGE] == 1.0 for e in episodes}
    capsys.readouterr()
    assert main(["judge-report", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["episodes"] == len(episodes)
    assert report["source"].endswith("eye.jsonl")
    agreed = sum(e.metrics[JUDGE] == e.metrics[RULE] for e in episodes)
    assert report["agreement"] == pytest.approx(agreed / len(episodes))

    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\n" + "".join(f"{e.id},{'yes' if e.metrics[JUDGE] else 'no'}\n" for e in episodes))
    assert main(["judge-report", str(run), "--json", "--labels", str(labels)]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1.0  # people have the last word
    marked = LabelStore(run / "labels.sqlite")  # what people say in `uirl view`
    marked.set_many({e.id: Label(passed=not e.metrics[JUDGE]) for e in episodes[:-1]})
    marked.set(episodes[-1].id, Label(passed=None, note="not sure"))
    marked.close()
    assert main(["judge-report", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["from_labels"] == len(episodes) - 1
    assert report["true_accepts"] + report["true_rejects"] <= 1
    assert main(["judge-report", str(run), "--json", "--labels", str(labels)]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1.0  # a file that is named comes first
    assert main(["judge-report", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.index("precision of accepts") < text.index("kappa") < text.index("agreement")
    assert main(["judge", str(run), *judged(server, "verification.ask=always")]) == 0
    assert len(list((run / "judgements").iterdir())) == 2, "what was found before stays"

    assert main(["eval", str(run), "--episodes", "4", "--json", str(tmp_path / "eval.json")]) == 0
    record = json.loads((tmp_path / "eval.json").read_text())["record"]
    with TrajectoryStore(record, read_only=True) as store:
        assert all(e.verdict is not None and e.verdict.verifier == "judge" for e in store)


def test_a_judge_that_gives_no_answer_gives_no_reward(
    server: ScriptedJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(GOAL.replace("decisive", "unknown"))
    faults: dict[str, Any] = {"server": Answer("down", 503), "junk": "hm", "refusal": "I'm sorry, I can't."}
    kinds = list(faults)
    server.outcome = lambda seen: "failure"
    old, count = server.answer, 0

    def sometimes(seen: Any) -> Answer:
        nonlocal count
        if seen.body["response_format"]["json_schema"]["name"] == "Judgement":
            count += 1
            if count % 4 in (1, 2):
                fault = faults[kinds[count // 4 % 3]]
                return fault if isinstance(fault, Answer) else said(fault)
        return old(seen)

    monkeypatch.setattr(server, "answer", sometimes)
    changes = judged(server, f"verification.rules={rules}", "rollout.retries=0", "training.num_iters_per_epoch=3")
    run = train(config_of(tmp_path, *changes, "training.batch_size=8"))
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        episodes = list(store)
    failed = [episode for episode in episodes if episode.failure is not None]
    assert failed
    for episode in failed:
        assert episode.failure is not None
        assert episode.failure.kind == "judge"
        assert episode.verdict is None
        assert episode.total_reward() == 0.0 or RULE not in episode.metrics
    assert all(e.verdict is not None and e.verdict.score == 0.0 for e in episodes if e.failure is None)
    rows = read_metrics(RunDirectory.open(run).metrics_path)
    told = sum(v for row in rows for name, v in row.items() if name.startswith("count/judge/failed/") and v)
    trained = [e for e in failed if not e.id.startswith(("before", "after", "eval"))]
    assert told == len(trained)
    # of some others it answered about their beginning alone, three times: they are lost, and no failures
    lost = sum(row["count/judge/nobody"] for row in rows)
    assert sum(row["count/judge/no_answer"] for row in rows) == len(trained) + lost


def test_where_the_judge_answers_nobody_the_run_stops_and_says_so(server: ScriptedJudge, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(GOAL.replace("decisive", "unknown"))
    server.faults.extend([Answer("down", 503)] * 10_000)
    with pytest.raises(RolloutFailure, match="judge server: "):
        train(config_of(tmp_path, *judged(server, f"verification.rules={rules}")))


def test_rules_alone_reward_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err
    rules = tmp_path / "rules.yaml"
    rules.write_text(GOAL)
    run = train(config_of(tmp_path, f"verification.rules={rules}"))
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        assert all(e.total_reward() == 0.0 and e.verdict is not None and e.verdict.verifier == "rules" for e in store)
    assert "judge/precision" not in read_metrics(RunDirectory.open(run).metrics_path)[-1]
    (tmp_path / "labels.json").write_text('{"a": "perhaps"}')
    assert main(["judge-report", str(run), "--labels", str(tmp_path / "labels.json")]) == 2
    assert "the label of 'a' is 'perhaps'; expected true or false" in capsys.readouterr().err


def test_a_verifier_and_a_reward_function_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got a reward_fn and verification\.enabled=true"):
        RayPPOTrainer(config_of(tmp_path), reward_fn=lambda trajectory: 1.0)


def test_stored_groups_are_asked_where_it_matters(server: ScriptedJudge, tmp_path: Path) -> None:
    run = train(config_of(tmp_path, "training.adv_estimator=grpo", "training.group_size=2"))
    rules = tmp_path / "rules.yaml"
    rules.write_text(GOAL.replace("decisive", "unknown"))
    changes = judged(server, f"verification.rules={rules}")
    assert main(["judge", str(run), "--split", "train", "--where-it-matters", *changes]) == 0
    lines = [json.loads(line) for line in (run / "judgements" / "eye.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert len(server.asked("Judgement")) <= 8
    assert main(["judge", str(run), "--limit", "2", *changes]) == 0
    assert (run / "judgements" / "eye-2.jsonl").is_file()


def test_runs_without_a_name_have_budgets_of_their_own(server: ScriptedJudge, tmp_path: Path) -> None:
    settings = judged(server, "verification.ask=always", "verification.max_calls=1000")
    config = config_of(tmp_path, *settings)
    config.logging.run_name = None
    first = train(config)
    trainer = RayPPOTrainer(config)
    try:
        assert first.name == "guess_number"
        verifier = trainer._parts.verifier
        assert verifier is not None
        assert verifier.judge is not None
        memory = verifier.judge.client.memory
        assert memory.spent("guess_number")[0] > 0
        assert verifier.judge.client.budget == "guess_number-2"
        job, _ = job_for(config.to_dict(), ".", {}, reward_fn=verifier)
        assert job.config["logging"]["run_name"] == "guess_number-2"
        assert config.logging.run_name is None
        trainer.fit()
        assert trainer.run_path == tmp_path / "guess_number-2"
    finally:
        trainer.cleanup()
