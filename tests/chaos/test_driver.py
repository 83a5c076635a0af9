"""`make chaos` on a small job: learner and servers are killed, the run goes on, and the account is right."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import processes
from tests.chaos.__main__ import main, parser
from tests.chaos.driver import GAPS, Chaos, ChaosOptions, train_arguments
from tests.chaos.targets import RayNodes, changes_for, servers_of
from uirl.config import ConfigStore, load_config
from uirl.errors import ConfigError

SMALL = [
    "model.model_name=uirl/tiny-lm",
    "environment.name=guess_number",
    "inference.max_tokens=4",
    "rollout.parallel=8",
    "rollout.retries=3",
    "training.batch_size=16",
    "training.adv_estimator=grpo",
    "training.num_epochs=100000",
    "training.max_seconds=30",  # of which the kills take 20
    "training.eval_episodes=8",
    "training.eval_every=null",
    "training.warm_start.steps=4",
    "training.warm_start.demonstrations=16",
    "actors.processes=1",
    "checkpoint.save_interval=1",
    "logging.trackers=[]",
]


def chaos(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    changes = [*SMALL, f"logging.runs_dir={folder}", "logging.run_name=run"]
    status = main([*(word for change in changes for word in ("--set", change)), *words])
    return status, json.loads((folder / "run" / "chaos.json").read_text())


@pytest.mark.actors
def test_a_run_survives_its_servers_and_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = chaos(
        tmp_path, "--seconds", "20", "--seed", "1", "--servers", "2", "--finish", "600", "--after-updates", "1"
    )
    assert status == 0, report
    assert {event["role"] for event in report["events"]} == {"learner", "server", "actor"}
    assert {event["back_after"] is not None for event in report["events"] if event["role"] == "learner"} == {True}
    assert report["ledger"]["balanced"]
    assert list(report["sessions_left"].values()) == [0, 0]
    assert report["processes_left"] == []
    assert report["missed"].keys() <= {"actor", "engine", "node"}
    assert (tmp_path / "run" / "summary.json").is_file()
    assert "balanced" in capsys.readouterr().out


def test_a_job_that_cannot_begin_is_an_error_of_the_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "environment.no_such_key=1"]) == 2
    assert "no_such_key" in capsys.readouterr().err


@pytest.mark.actors
def test_a_run_survives_a_node_of_its_ray_cluster(tmp_path: Path) -> None:
    ray = ["--set", "ray.use_ray=true", "--set", "ray.num_actors=2", "--set", "ray.actor_cpus=0.5"]
    words = ["--seconds", "20", "--seed", "1", "--ray-nodes", "2", "--finish", "600", "--after-updates", "1"]
    status, report = chaos(tmp_path, *words, *ray, "--set", "actors.processes=0")
    assert status == 0, report
    assert "node" in {event["role"] for event in report["events"]}
    assert report["processes_left"] == []


@pytest.mark.parametrize("change", ["ray.use_ray=false", "ray.address=auto"])
def test_nodes_are_of_a_cluster_that_chaos_starts(change: str) -> None:
    config = ConfigStore().override(["ray.use_ray=true", change])
    with pytest.raises(ConfigError, match="chaos starts the cluster itself"):
        RayNodes(config, 2)


def test_a_learner_is_continued_where_it_was(tmp_path: Path) -> None:
    words = train_arguments("a.yaml", ["training.seed=3"], tmp_path / "runs" / "x")
    assert words[:3] == ["train", "a.yaml", "training.seed=3"]
    assert words[3:] == ["checkpoint.resume=auto", f"logging.runs_dir={tmp_path}/runs", "logging.run_name=x"]
    assert train_arguments(None, [], tmp_path)[:2] == ["train", "checkpoint.resume=auto"]


def test_a_run_that_is_there_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").touch()
    settings = [f"logging.runs_dir={tmp_path}", "logging.run_name=mine"]
    assert main([*(word for one in settings for word in ("--set", one))]) == 2
    assert "mine holds a run already, and chaos kills what it runs" in capsys.readouterr().err


def test_servers_serve_the_environment_of_the_config(tmp_path: Path) -> None:
    config = ConfigStore().override(["environment.options={level: 2, demonstrator: careless}", "rollout.parallel=24"])
    one, two = servers_of(config, 2, tmp_path, ["uirl"])
    assert one.command[:6] == [
        "uirl",
        "serve",
        "--env",
        "screen",
        "--option=level=2",
        '--option=demonstrator="careless"',
    ]
    assert one.command[-4:] == ["--sessions", "48", "--lease", "15.0"]
    assert one.port != two.port
    played = ConfigStore().override(changes_for([one, two]))
    assert played.environment.name == "remote"
    assert played.environment.options == {"urls": [one.url, two.url]}
    assert not one.answers()
    assert one.sessions() is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("environment.options={urls: [http://a]}", "plays on servers already"),
        ("environment.eval_options={level: 3}", "eval_options would need servers of their own"),
        ("environment.name=object:a.b:C", "was an object of a.b:C"),
    ],
)
def test_environments_that_cannot_be_served_here(tmp_path: Path, change: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        servers_of(ConfigStore().override([change]), 1, tmp_path, ["uirl"])


def test_a_learner_that_ends_by_itself_again_and_again_has_failed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    options = ChaosOptions(ConfigStore(), tmp_path / "run", ["false"], seconds=60.0, seed=0)
    report = Chaos(options).execute()
    assert report.status() == 2
    assert report.ended == "the learner ended with status 1 by itself"
    assert json.loads((tmp_path / "run" / "chaos.json").read_text())["status"] == 2
    assert processes.writer_of(tmp_path / "run") is None


def test_nothing_is_killed_before_the_updates_that_were_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    chaos = Chaos(ChaosOptions(ConfigStore(), run, ["false"], seconds=60.0, seed=0, after_updates=2))
    assert chaos._elapsed(100.0) == 0.0
    (run / "config.yaml").write_text("")
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    assert chaos._elapsed(110.0) == 0.0
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert [chaos._elapsed(now) for now in (120.0, 125.0)] == [0.0, 5.0]


def test_the_commands_of_the_page_parse() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    commands = re.findall(r'^make chaos CHAOS="(.*)"$', page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        options = parser().parse_args(shlex.split(command))
        assert load_config(Path(__file__).parents[2] / options.config, options.changes).check(training=True)
    for role, gap in GAPS.items():
        name = {"server": "environment server", "engine": "engine process", "node": "node of Ray"}.get(role, role)
        assert re.search(rf"^\| {name}[^|]* \| {gap:g} s \|", page, re.MULTILINE), role
