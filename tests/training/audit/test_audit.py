"""An audit finds what was changed in a finished run, and nothing where nothing was."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.training.audit import tampering
from tests.training.test_loop import settings, train
from uirl import ConfigStore
from uirl.cli.main import main
from uirl.environments import GuessNumberEnvironment
from uirl.training.audit import audit


def learning(folder: Path, **training: Any) -> ConfigStore:
    """A run of three updates that learn, evaluated and saved."""
    config = settings(folder, **{"adv_estimator": "grpo", "group_size": 4, "eval_every": 2, **training})
    config.training.warm_start.steps = 40  # of a demonstrator who guesses, so that the members of a group differ
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    config = learning(folder)
    config.checkpoint.save_interval = 1
    config.checkpoint.keep_last_n = 9
    config.training.num_epochs, config.training.num_iters_per_epoch = 3, 1
    summary = train(config, 3)
    assert summary["ledger"]["trained"] > 0
    return folder / "run"


def test_nothing_differs_in_a_run_that_is_as_it_was(run: Path) -> None:
    report = audit(run, share=1.0)
    assert not report.problems, report
    assert report.compared["turns played again"] > 100
    assert report.compared["advantages of episodes"] == 48
    assert report.compared["log-probs made again"] >= 16
    assert report.compared["prompts"] > 100


@pytest.mark.parametrize(
    "changes",
    [
        {"adv_estimator": "gae", "group_size": None},
        {"adv_estimator": "rloo", "update_epochs": 2},
        {"adv_estimator": "gigpo"},
    ],
    ids=lambda changes: changes["adv_estimator"],
)
def test_nothing_differs_whatever_the_estimator(changes: dict[str, Any], tmp_path: Path) -> None:
    train(learning(tmp_path, **changes), 2)
    report = audit(tmp_path / "run")
    assert not report.problems, report


def test_nothing_differs_where_actors_run_ahead_and_rules_judge(tmp_path: Path) -> None:
    config = learning(tmp_path)
    config.actors.staleness = 1
    config.verification.enabled = True
    train(config, 2)
    report = audit(tmp_path / "run")
    assert not report.problems, report
    assert "rows of updates" in report.unseen


@pytest.mark.parametrize("name", ["screen", "calculator"])
def test_nothing_differs_in_runs_with_pictures_and_tools(name: str, tmp_path: Path) -> None:
    config = learning(tmp_path, eval_every=None)
    config.environment.name, config.environment.options = name, {}
    config.model.model_name = "uirl/tiny-vlm" if name == "screen" else "uirl/tiny-lm"
    config.inference.max_tokens = 24
    config.training.warm_start.steps = 4
    train(config, 1)
    report = audit(tmp_path / "run", share=1.0)
    assert not report.problems, report
    if name == "screen":
        assert report.compared["pictures"] > 0


def tampered(run: Path, folder: Path, rng: random.Random) -> list[str]:
    """Change some six things in a copy of the run; return what the audit does not name."""
    copy = folder / "copy"
    shutil.copytree(run, copy)
    taken: set[str] = set()
    changes = [change for _ in range(6) if (change := tampering.in_record(copy, rng, taken)) is not None]
    changes.append(tampering.in_summary(copy, rng))
    changes.append(rng.choice((tampering.in_metrics, tampering.in_checkpoint))(copy, rng))
    report = audit(copy, share=0.0)
    shutil.rmtree(copy)
    TRIED.extend(what for what, _ in changes)
    return [what for what, named in changes if not any(map(named, report.problems))]


TRIED: list[str] = []


class Meets(GuessNumberEnvironment):
    """Waits for another episode, as a game of the policy against itself does."""

    alone: ClassVar[bool] = False

    async def reset(self, *, seed: int | None = None) -> str:  # type: ignore[override]
        while self.alone:
            await asyncio.sleep(0.05)
        return super().reset(seed=seed)


def test_an_episode_that_waits_for_another_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = learning(tmp_path)
    config.environment.name = f"{__name__}:Meets"
    config.environment.reset_timeout = 0.5
    train(config, 1)
    monkeypatch.setattr(Meets, "alone", True)
    report = audit(tmp_path / "run", share=1.0)
    assert not report.problems, report
    assert [what for what in report.unseen if what.startswith("replays of")]


def test_the_success_of_a_member_is_made_again(tmp_path: Path) -> None:
    config = learning(tmp_path)
    members = [{"name": "guess_number", "label": name, "options": {"n": n}} for name, n in (("few", 3), ("many", 9))]
    config.environment.name, config.environment.options = "mixture", {"members": members}
    config.checkpoint.save_interval = 1
    train(config, 1)
    assert not audit(tmp_path / "run").problems
    file = tmp_path / "run" / "summary.json"
    summary = json.loads(file.read_text())
    summary["members"]["few"]["success_after"] = 0.987
    file.write_text(json.dumps(summary))
    assert ["summary, members" in one for one in audit(tmp_path / "run").problems] == [True]


def test_what_is_changed_is_found(run: Path, tmp_path: Path) -> None:
    missed = [what for seed in range(5) for what in tampered(run, tmp_path, random.Random(seed))]
    assert not missed


@pytest.mark.slow
def test_a_thousand_changes_are_found(run: Path, tmp_path: Path) -> None:
    TRIED.clear()
    missed, seed = [], 1000
    while len(TRIED) < 1000:
        missed += tampered(run, tmp_path, random.Random(seed))
        seed += 1
    assert not missed


def test_a_picture_and_a_row_that_are_gone_are_found(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join([*lines[:-2], lines[-1]]) + "\n")
    assert audit(copy).problems


def test_the_command_exits_with_1_where_something_differs(run: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["audit", str(run)]) == 0
    assert "0 differences" in capsys.readouterr().out
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    summary = copy / "summary.json"
    summary.write_text(summary.read_text().replace('"judged_after": 16', '"judged_after": 17'))
    assert main(["audit", str(copy), "--json"]) == 1
    assert "summary, judged_after" in capsys.readouterr().out
    assert main(["audit", str(run), "--share", "2"]) == 2
