"""The command, as a person would type it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import shtab

from tests.cli.conftest import QUICK
from tests.patience import PATIENCE
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore
from uirl.cli.imports import make_importable
from uirl.cli.main import command_parser, main
from uirl.config.stored import override_stored
from uirl.environments import ENVIRONMENTS
from uirl.errors import ConfigError, StorageError
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, load_policy, save_checkpoint
from uirl.training.evaluation.evaluation import EvaluationReport
from uirl.training.evaluation.measure import free_record, measure
from uirl.training.record.tally import Tally
from uirl.training.tasks.task_sets import stored_tasks

MEASURE = importlib.import_module("uirl.training.evaluation.measure")


def test_train_then_eval_then_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"logging.runs_dir={tmp_path}"
    config = tmp_path / "quick.yaml"
    config.write_text("training: {learning_rate: 1.0e-3}\n")
    assert main(["train", str(config), where, *QUICK]) == 0
    said = capsys.readouterr().out
    for name in ("learning curve", "trajectories", "checkpoint", "success before"):
        assert name in said
    run = tmp_path / "quick"
    assert main(["eval", str(run), "--episodes", "8", "--tries", "4", "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["pass_at_k"]) == {"1", "2", "4"}
    assert report["episodes"] == 8
    told = capsys.readouterr().out
    assert "pass@4" in told
    assert (
        f"playing 8 episodes of the split 'test'; they are stored in {run / 'evaluations' / 'step_000002.sqlite'}\n"
        in told
    )
    assert report["record"] == str(run / "evaluations" / "step_000002.sqlite")
    assert report["excluded"] == {
        "episodes": 8,
        "judged": 8,
        "excluded": {},
        "failed_attempts": {},
        "success": report["success"],
        "success_if_excluded_were_lost": report["success"],
    }
    with TrajectoryStore(report["record"], read_only=True) as store:
        kept = store.list()
    assert {(t.step, t.split, t.environment) for t in kept} == {(2, "test", "guess_number")}
    assert sum(bool(t.success) for t in kept) == round(8 * report["success"])
    checkpoint = max((run / "checkpoints").iterdir())
    greedy = "inference.temperature=0"  # changes may stand anywhere
    assert main(["eval", "--checkpoint", str(checkpoint), "--episodes", "8", greedy, "--json", "-"]) == 0
    told = capsys.readouterr()
    second = json.loads(told.out)
    assert (second["episodes"], second["record"]) == (8, str(run / "evaluations" / "step_000002-2.sqlite"))
    assert "playing 8 episodes of the split 'test'" in told.err
    nobody = ["inference.backend=openai", "inference.server_url=http://127.0.0.1:9", "inference.request_retries=0"]
    assert main(["eval", str(run), "--episodes", "2", *nobody]) == 2
    told = capsys.readouterr().err
    assert "all 2 episodes of the evaluation failed. The first, engine: " in told
    assert "no connection" in told
    more = ["training.num_epochs=2"]
    assert main(["train", "--config", str(config), where, *QUICK, "--resume", *more]) == 0
    told = capsys.readouterr().out
    assert f"resumed at step 2, from {run / 'checkpoints' / 'step_000002'}" in told
    assert "changed since quick was last started: training.num_epochs: 1 -> 2" in told
    assert json.loads((run / "summary.json").read_text())["steps"] == 4


def test_eval_takes_a_file_of_tasks(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "eval_tasks.json"
    tasks.write_text(json.dumps([{"id": "one", "seed": 1}, {"id": "two", "seed": 2}]))
    capsys.readouterr()
    assert main(["eval", str(whole), "--tasks", str(tasks), "--episodes", "4", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["tasks"]) == {"one", "two"}
    assert (report["failures"], report["first_failure"]) == (0, None)
    tasks.write_text("{")
    assert main(["eval", str(whole), "--tasks", str(tasks)]) == 2
    assert "expected a JSON list" in capsys.readouterr().err


def test_an_evaluation_that_cannot_be_is_refused_before_it_is_played_and_leaves_nothing(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(whole), "--to", "hf", "--out", "hf"]) == 0
    capsys.readouterr()
    # no environment is named, and the default one shows pictures
    assert main(["eval", "hf", "--episodes", "2"]) == 2
    assert "is a text model, got a picture; choose another environment.name" in capsys.readouterr().err
    (tmp_path / "file").touch()
    words = ["eval", "hf", "environment.name=guess_number", "--episodes", "2", "--json"]
    for place, message in ((".", "that is a folder"), ("file/report.json", "a part of that path is a file")):
        assert main([*words, place]) == 2
        told = capsys.readouterr()
        assert (message in told.err, told.out) == (True, "")
    assert not list(tmp_path.glob("runs/evaluations/*"))
    assert main([*words, "new/folder/report.json"]) == 0
    assert json.loads((tmp_path / "new/folder/report.json").read_text())["episodes"] == 2
    assert main([*words, "-", "--record", "runs/evaluations/hf.sqlite"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_two_evaluations_that_begin_at_once_never_share_a_record(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "episodes.sqlite"
    load = MEASURE.policy_at

    def meanwhile(*args: Any) -> Policy:
        """Load the policy, while another evaluation, which found the same name free, begins to write."""
        TrajectoryStore(record).close()
        return load(*args)

    monkeypatch.setattr(MEASURE, "policy_at", meanwhile)
    with pytest.raises(StorageError, match="exists already; choose another file"):
        measure(whole, episodes=2, record=record)
    assert record.exists(), "what the other one writes stays"


@pytest.mark.parametrize("to", ["-", None])
def test_eval_warns_of_excluded_episodes_wherever_the_report_goes(
    to: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally(episodes=10, excluded=Counter(engine=1))
    report = EvaluationReport(9, 1, 1.0, None, 1.0, 2.0, tally=tally)
    monkeypatch.setattr("uirl.training.evaluation.measure.measure", lambda *_, **__: report)
    words = ["eval", str(tmp_path), "--record", str(tmp_path / "episodes.sqlite"), *(["--json", to] if to else [])]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "MORE THAN 5 % OF THE EPISODES ARE EXCLUDED" in (printed.err if to else printed.out)
    if to:
        assert json.loads(printed.out)["excluded"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "training.learning_rat=1"], "learning_rate"),
        (["train", "training.batch_size=many"], "training.batch_size"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "environment.name=scren"], "screen"),
        (["train", "environment.options={levle: 2}"], "level"),
        (["train", "a.yaml", "b.yaml"], "one config file"),
        (["train", "--config", "a.yaml", "b.yaml"], "one config file"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "--resume", "training.batch_size=many"], "training.batch_size"),
        (["train", "training.seed=1", "--resume", "training.batch_size=many"], "training.batch_size"),
        (["train", "model.model_name=./nowhere"], "there is no folder './nowhere'"),
        (["eval", "nowhere"], "does not exist"),
        (["eval", "--checkpoint", "nowhere"], "does not exist"),
        (["eval"], "expected a run directory or a checkpoint"),
        (["check", "."], "is a folder without a config.yaml"),
        (["train", "--resume", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "checkpoint.from_step=4"], "set resume=true (--resume)"),
        (["train", "--resume", "logging.run_name=never", "logging.runs_dir=nowhere"], "there is no run 'never'"),
        (["train", "inference.backend=vllm"], "needs the package vllm"),
        (["train", "ray.use_ray=true", "ray.address=ray://10.0.0.1:10001"], "ray.address"),
    ],
)
def test_mistakes_are_named_and_never_a_traceback(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--checkpoint", "a"],
        ["eval", "runs/a", "--tsks", "b"],
        ["serve", "--env", "screen", "a=b"],
        ["train", "--resum"],
        ["eval", "runs/a", "--episode"],
        ["eval", "runs/a", "--episodes", "0"],
        ["eval", "runs/a", "--tries", "-1"],
        ["export", "runs/a", "--to", "hf", "--ou"],
        ["serve-model", "m", "--por"],
        ["verl", "--confi"],
    ],
)
def test_an_option_that_does_not_exist_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [("inference.backend=openai", "cannot be trained"), ("logging.trackers=[wandb]", "pip install 'uirl[wandb]'")],
)
def test_a_run_that_cannot_begin_leaves_no_directory(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", *QUICK, setting, f"logging.runs_dir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_says_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = RayPPOTrainer.fit

    def interrupted(trainer: RayPPOTrainer) -> None:
        fit(trainer, num_epochs=1, num_iters_per_epoch=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(RayPPOTrainer, "fit", interrupted)
    assert main(["train", *QUICK, f"logging.runs_dir={tmp_path}"]) == 130
    told = capsys.readouterr()
    run = tmp_path / "guess_number"
    assert f"run directory {run}\n" in told.out
    assert f"`uirl train {run} --resume` continues from {run / 'checkpoints' / 'step_000001'}\n" in told.err


def test_check_proves_pictures_and_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "model.use_lora=true", "inference.max_tokens=12"]) == 0
    assert "ok    an adapter update reaches the engine" in capsys.readouterr().out


def test_check_says_in_plain_words_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from uirl.inference.embedded.sampling import BatchSampling

    sample = BatchSampling.sample
    monkeypatch.setattr(BatchSampling, "sample", lambda self, logits, uniforms: sample(self, logits * 1.1, uniforms))
    assert main(["check", *QUICK]) == 1
    assert "FAIL  engine and learner agree: largest difference" in capsys.readouterr().out


WIN = """
from uirl import BaseEnvironment


class Win(BaseEnvironment):
    runs_inline = True

    def reset(self, seed=None):
        return "go"

    def step(self, action):
        return "won", 1.0, True, {"success": True}

    def get_state_description(self):
        return "go"
"""


def test_a_class_beside_the_config_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    (project / "beside_the_config.py").write_text(WIN)
    (project / "json.py").write_text("raise RuntimeError('hides the library')")
    (project / "win.yaml").write_text("environment: {name: 'beside_the_config:Win'}\n")
    monkeypatch.chdir(elsewhere)
    where = f"logging.runs_dir={elsewhere / 'runs'}"
    tiny = [word for word in QUICK if not word.startswith("environment.")]
    assert main(["train", str(project / "win.yaml"), where, *tiny, "training.warm_start.enabled=false"]) == 0
    assert sys.path.index(str(project)) > sys.path.index(next(p for p in sys.path if p.endswith("site-packages")))


def test_a_run_is_measured_where_its_class_is_found_and_never_with_code_from_inside_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "in_this_folder.py").write_text(WIN)
    monkeypatch.chdir(tmp_path)
    tiny = [word for word in QUICK if not word.startswith("environment.")]
    named = ["environment.name=in_this_folder:Win", "training.warm_start.enabled=false"]
    assert main(["train", *tiny, *named, "logging.run_name=win"]) == 0
    run = tmp_path / "runs" / "win"
    assert main(["eval", "runs/win", "--episodes", "4"]) == 0
    # a downloaded run with code in it, opened from inside
    (tmp_path / "in_this_folder.py").rename(run / "in_this_folder.py")
    sys.modules.pop("in_this_folder")
    sys.path[:] = [p for p in sys.path if Path(p) != tmp_path]
    monkeypatch.chdir(run)
    capsys.readouterr()
    assert main(["eval", ".", "--episodes", "4"]) == 2
    assert "No module named 'in_this_folder'" in capsys.readouterr().err
    assert "in_this_folder" not in sys.modules


def test_the_command_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: uirl" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("uirl ")
    assert main(["environments"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in told} == {*ENVIRONMENTS, "module:Class"}
    assert "not available" not in "".join(told)


@pytest.mark.parametrize("columns", [80, 160])
def test_an_environment_tells_its_options(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["environments", "guess_number"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) == columns
    (row,) = [line for line in told.splitlines() if line.startswith(" guesses")]
    assert " ".join(row.split()).startswith("guesses whole number >= 1 3 Tries in an")
    assert main(["environments", "uirl.environments.tool_use.environment:ToolEnvironment"]) == 0
    assert "instructions, max_turns, registry" in capsys.readouterr().out


def test_a_run_directory_is_checked_and_continued_by_its_path(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(whole)]) == 0
    said = capsys.readouterr().out
    for what in ("token identity", "engine and learner agree", "a weight update reaches the engine", "resume"):
        assert f"ok    {what}" in said
    assert main(["train", str(whole)]) == 2
    assert "is a run; continue it with --resume" in capsys.readouterr().err
    assert main(["train", str(whole), "--resume"]) == 0
    assert "this run is finished: all epochs are done" in capsys.readouterr().out
    assert [path.name for path in whole.parent.iterdir()] == ["whole"]


EVIL = "open({path!r}, 'w').write('ran')\nfrom uirl import GuessNumberEnvironment as Game\n"


@pytest.mark.parametrize("command", ["eval", "serve-model", "check"])
@pytest.mark.parametrize(
    ("stored", "typed"),
    [
        ("model: {trust_remote_code: true}", "model.trust_remote_code=true"),
        ("environment: {name: 'downloads.found.evil:Game'}", "environment.name=downloads.found.evil:Game"),
        ("environment: {name: mobile_world, options: {mcp: {x: {command: [touch, x]}}}}", "environment.options.mcp.x"),
    ],
)
def test_a_folder_from_somebody_else_runs_no_code(
    command: str, stored: str, typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    found = tmp_path / "downloads" / "found"
    (found / "checkpoints" / "step_000001").mkdir(parents=True)
    (found / "checkpoints" / "step_000001" / "manifest.json").write_text("{}")
    (found / "config.yaml").write_text(stored)
    (found / "evil.py").write_text(EVIL.format(path=str(tmp_path / "ran")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert main([command, str(found)]) == 2
    told = capsys.readouterr().err
    assert typed in told
    assert "trust" in told
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("here", "named"), [(".", "checkpoints/step_000001"), ("..", "run/checkpoints/step_000001")])
def test_a_checkpoint_of_somebody_elses_run_runs_no_code_beside_it(
    here: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    run = tmp_path / "run"
    step = run / "checkpoints" / "step_000001"
    step.mkdir(parents=True)
    module = "evil" if here == "." else "run.evil"
    for folder in (run, step):
        (folder / "config.yaml").write_text(f"environment: {{name: '{module}:Game'}}")
    (step / "manifest.json").write_text("{}")
    (run / "evil.py").write_text(EVIL.format(path=str(tmp_path / "ran")))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(run / here)
    with pytest.raises(ConfigError, match=r"environment.name \(code\)"):
        _lies_there(named)
    assert not (tmp_path / "ran").exists()


def _lies_there(named: str) -> None:
    """What `uirl eval` does before it loads anything."""
    make_importable(opened=named)
    sys.path.append(os.getcwd())  # as `python -m uirl` has it
    measure(named, episodes=1)


def test_a_checkpoint_is_of_its_run_from_wherever_it_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    step = tmp_path / "run" / "checkpoints" / "step_000001"
    step.mkdir(parents=True)
    for folder in (tmp_path / "run", step):
        ConfigStore().to_yaml(folder / "config.yaml")
    tasks = tmp_path / "run" / "eval_tasks.json"
    tasks.write_text("[]")
    for here, named in ((step.parent, step.name), (step, "."), (tmp_path, "run/checkpoints/step_000001")):
        monkeypatch.chdir(here)
        found = stored_tasks(Path(named))
        assert found is not None
        assert found.resolve() == tasks
        assert free_record(Path(named)).resolve().parent == tmp_path / "run" / "evaluations"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-u", "-m", "uirl", "environments"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before it writes its first line
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_what_a_person_types_is_trusted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "evil.py").write_text("")
    stored = ConfigStore().override(["environment.name=evil:Game", "environment.options={command: x}"])
    stored.model.trust_remote_code = True
    typed = ["environment.name=evil:Game", "environment.options.command=x"]
    assert override_stored(stored, [*typed, "model.trust_remote_code=true"], tmp_path).model.trust_remote_code
    assert not override_stored(stored, [*typed, "model.trust_remote_code=false"], tmp_path).model.trust_remote_code
    for missing in range(2):
        with pytest.raises(ConfigError, match="trust"):
            override_stored(stored, [typed[missing], "model.trust_remote_code=true"], tmp_path)


def test_a_checkpoint_that_asks_for_code_is_refused_in_python_too(tmp_path: Path) -> None:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", "training.adv_estimator=reinforce_plus_plus"])
    config.model.trust_remote_code = True
    learner = Learner(Policy.from_config(config), config, ImageStore())
    folder = save_checkpoint(tmp_path / "step_1", learner, {})
    with pytest.raises(ConfigError, match=r"model.trust_remote_code \(code\)"):
        load_policy(folder)
    assert load_policy(folder, trust_remote_code=False).loaded.name


def test_an_interrupted_command_ends_in_order_while_threads_compute() -> None:
    code = """
import argparse, sys, threading, torch
from uirl.cli import main as command

def busy(options):
    matrix = torch.randn(300, 300)
    def compute():
        while True:
            matrix @ matrix
    for _ in range(4):
        threading.Thread(target=compute, daemon=True).start()
    raise KeyboardInterrupt

command._options = lambda arguments: argparse.Namespace(run=busy)
sys.exit(command.main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (130, "uirl: interrupted\n")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["export", "--"], ["--push", "--to", "--out", "--public"]),
        (["train", "my"], ["my.yaml", "my_runs"]),
        (["export", "my"], ["my.yaml", "my_runs"]),
        (["eval", "--json", "my"], ["my.yaml", "my_runs"]),
        (["export", "--to", ""], ["hf", "peft", "sft"]),
    ],
)
def test_a_shell_completes_commands_options_and_files(words: list[str], offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "my.yaml").touch()
    (tmp_path / "my_runs").mkdir()
    (tmp_path / "completion").write_text(shtab.complete(command_parser(), "bash"))
    typed = " ".join(f"'{word}'" for word in ("uirl", *words))
    script = f"""
        source ./completion
        COMP_WORDS=({typed}); COMP_CWORD={len(words)}
        $(complete -p uirl | sed -E 's/.*-F ([^ ]+).*/\\1/') uirl "${{COMP_WORDS[-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(offered) <= set(done.stdout.split()), done.stderr
