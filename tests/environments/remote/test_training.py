"""A run whose environment is on a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.test_command import QUICK
from tests.environments.remote.running import serving
from tests.training.tasks.letters import Letters
from uirl.cli.main import main
from uirl.environments.remote.client.native import NativeRemoteEnvironment
from uirl.storage import TrajectoryStore


def test_a_run_on_a_server_equals_the_run_at_home(tmp_path: Path) -> None:
    """Warm start by the server's demonstrator, rollouts, evaluation: word for word. The server has fewer sessions than
    there are episodes at a time."""
    own = ("environment.", "training.warm_start", "training.batch_size", "training.eval_episodes")
    quick = [word for word in QUICK if not word.startswith(own)] + ["training.batch_size=8", "training.eval_episodes=4"]
    few = "steps: 20, learning_rate: 0.01, batch_size: 8, demonstrations: 24"
    quick.append(f"training.warm_start={{{few}, evaluate_every: null, stop_at_success: null}}")
    options = {"n": 4, "guesses": 2, "demonstrator": "random"}
    summaries = []
    with serving("guess_number", options=options, sessions=6) as served:
        for name, environment, given in (
            ("home", "guess_number", options),
            ("away", "remote", {"url": served.url, "acquire_timeout": 60}),
        ):
            where = [f"logging.runs_dir={tmp_path}", f"logging.run_name={name}", f"environment.name={environment}"]
            assert main(["train", *quick, *where, f"environment.options={json.dumps(given)}"]) == 0
            watched = tmp_path / name / "serve.json"
            assert watched.exists() == (name == "away")
            if watched.exists():
                assert json.loads(watched.read_text()) == {"url": f"{served.url}/view", "urls": [f"{served.url}/view"]}
            summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
        assert served.active == 0
        assert served.sessions.counters.count("uirl_calls_total", method="step") > 40
    home, away = summaries
    assert home["steps"] == away["steps"] == 2
    assert home["warm_start"]["demonstrations_success"] > 0
    for summary in summaries:  # all but what a clock said
        del summary["train_seconds"], summary["meter"], summary["warm_start"]["seconds"]
    assert home == away
    told = _told(tmp_path / "home")
    assert 0 < sum(sum(rewards) for _, _, rewards, _, _ in told.values()) < len(told)
    assert told == _told(tmp_path / "away")


def test_a_served_environment_has_a_demonstrator_where_it_says_so() -> None:
    for environment, expected in (("guess_number", True), (Letters(), False)):
        with serving(environment) as served:
            assert NativeRemoteEnvironment(url=served.url).has_demonstrator == expected


def _told(run: Path) -> dict[str, tuple[Any, ...]]:
    """Every episode of a run: what was seen, said and paid."""
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        return {t.id: (t.states, t.actions, t.rewards, t.stop_reason, t.failure) for t in store}
