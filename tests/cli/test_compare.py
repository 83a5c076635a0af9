"""`uirl compare` and `uirl sweep`: no certainty that is not there, and no run twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl import ConfigStore
from uirl.cli.compare import Here, combinations
from uirl.cli.main import main
from uirl.errors import ConfigError
from uirl.training.record.record import save_plot

SMALL = """
model: {model_name: uirl/tiny-lm, tiny: {hidden_size: 32, intermediate_size: 64}}
inference: {max_tokens: 4}
environment: {name: guess_number, options: {n: 4, guesses: 2, demonstrator: random}}
logging: {trackers: []}
training:
  {batch_size: 16, eval_episodes: 16, eval_every: 1, num_epochs: 1, num_iters_per_epoch: 1,
   warm_start: {steps: 4, batch_size: 16, evaluate_every: null, stop_at_success: null}}
"""


def ended(folder: Path, name: str, after: float | None, *changes: str, **summary: Any) -> str:
    """A directory as that of a run that came to its end."""
    (folder / name).mkdir(parents=True)
    config = ConfigStore().override([*changes, f"logging.run_name={name}"])
    config.to_yaml(folder / name / "config.yaml")
    interval = None if after is None else [after - 0.02, after + 0.02]
    told = {"success_before": 0.1, "success_after": after, "success_after_interval": interval, "episodes": 64}
    told["seed"] = config.training.seed
    (folder / name / "summary.json").write_text(json.dumps({**told, "train_seconds": 5.0, **summary}))
    row = {"step": 1, "episodes_total": 64, "eval/success": after, "eval/reward": summary.get("reward_after")}
    (folder / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return str(folder / name)


def compared(capsys: pytest.CaptureFixture[str], folder: Path, *runs: str) -> list[str]:
    assert main(["compare", *runs, "--plot", str(folder / "plot.png")]) == 0
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    return capsys.readouterr().out.splitlines()


def reaches(run: Path, step: int, goes_on: Callable[[], bool]) -> bool:
    """Wait for a step of a run while the sweep `goes_on`; False: it never came."""
    rows, until = run / "metrics.jsonl", time.monotonic() + PATIENCE
    while not rows.is_file() or f'"step": {step}' not in rows.read_text():
        if time.monotonic() > until or not goes_on():
            return False
        time.sleep(0.1)
    return True


def test_seeds_are_one_setting_and_settings_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def save(path: Path, figure: Any, axes: Any, **options: Any) -> None:
        drawn.extend((line.get_color(), line.get_xydata().tolist()) for line in axes.lines)
        save_plot(path, figure, axes, **options)

    monkeypatch.setattr("uirl.training.record.comparison.save_plot", save)
    runs = [
        ended(tmp_path, f"{rate}-{seed}", after, f"training.seed={seed}", f"training.learning_rate={rate}")
        for rate, figures in {"1e-3": (0.5, 0.6, 0.7), "1e-4": (0.8, 0.9, 0.7)}.items()
        for seed, after in enumerate(figures)
    ]
    lines = compared(capsys, tmp_path, *runs)
    assert lines[:6] == [
        "training.learning_rate=0.0001",
        "    success 80.0 % (95 %: 55.2 to 100.0), mean of 3 runs, lowest 70.0 %",
        "    64 episodes in 5 s each",
        "training.learning_rate=0.001",
        "    success 60.0 % (95 %: 35.2 to 84.8), mean of 3 runs, lowest 50.0 %",
        "    64 episodes in 5 s each",
    ]
    assert drawn == [("C0", [[64, y]]) for y in (0.5, 0.6, 0.7)] + [("C1", [[64, y]]) for y in (0.8, 0.9, 0.7)]


def test_seeds_that_end_alike_are_not_certain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [ended(tmp_path, f"r{seed}", 0.5, f"training.seed={seed}") for seed in range(3)]
    assert (
        compared(capsys, tmp_path, *runs)[1] == "    success 50.0 % (95 %: 48.0 to 52.0), mean of 3 runs, lowest 50.0 %"
    )
    assert compared(capsys, tmp_path, runs[0])[:2] == ["r0", "    success 50.0 % (95 %: 48.0 to 52.0)"]


def test_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewarded = [ended(tmp_path, f"r{n}", None, f"training.seed={n}", reward_after=float(n)) for n in range(2)]
    assert compared(capsys, tmp_path, *rewarded)[1] == "    reward 0.5 (95 %: -5.853 to 6.853), mean of 2 runs"
    unknown = ended(tmp_path, "unknown", None, "training.seed=7")
    assert "1 without a figure" in compared(capsys, tmp_path, *rewarded, unknown)[1]
    left_out = ended(tmp_path, "out", 0.5, excluded={"after": {"excluded": {"timeout": 3, "failed": 1}}})
    assert "4 episodes excluded" in compared(capsys, tmp_path, left_out)[1]
    (tmp_path / "begun").mkdir()
    assert main(["compare", str(tmp_path / "begun")]) == 2
    assert "has no summary.json" in capsys.readouterr().err


def test_combinations_of_values() -> None:
    assert combinations(["a.x=1,2", "b.y={p: 1, q: 2}", "seeds=0..1"]) == {
        "x-1_seed-0": ["a.x=1", "b.y={p: 1, q: 2}", "training.seed=0"],
        "x-1_seed-1": ["a.x=1", "b.y={p: 1, q: 2}", "training.seed=1"],
        "x-2_seed-0": ["a.x=2", "b.y={p: 1, q: 2}", "training.seed=0"],
        "x-2_seed-1": ["a.x=2", "b.y={p: 1, q: 2}", "training.seed=1"],
    }
    assert combinations([]) == {"run": []}
    assert list(combinations(["a.x='1,2',[3,4]", "seeds=3,5"])) == [
        "x-_1_2_seed-3",
        "x-_1_2_seed-5",
        "x-_3_4_seed-3",
        "x-_3_4_seed-5",
    ]
    assert list(combinations(["a.x=b c,b_c"])) == ["x-b_c", "x-b_c.2"]
    assert list(combinations([f"a.x={'b' * 300},c"])) == ["x-" + "b" * 98, "x-c"]
    for wrong in (["seeds=a..3"], ["seeds=3..1"], ["learning_rate"], ["=3"], ["training.seed=0,1", "seeds=1"]):
        with pytest.raises(ConfigError, match=r"expected|twice"):
            combinations(wrong)


def test_one_run_is_not_several_and_kinds_of_figures_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    won = ended(tmp_path, "won", 0.5, seed=0)
    assert compared(capsys, tmp_path, won, f"{won}/")[1] == "    success 50.0 % (95 %: 48.0 to 52.0)"
    again = ended(tmp_path, "again", 0.5, seed=0)
    assert "mean of 2 runs of 1 seeds" in compared(capsys, tmp_path, won, again)[1]
    paid = ended(tmp_path, "paid", None, reward_after=-30.0, seed=1)
    told = compared(capsys, tmp_path, won, paid)[1]
    assert told.startswith("    success 50.0 % (95 %: 48.0 to 52.0)")
    assert "1 without a figure" in told
    sure = [ended(tmp_path, f"s{seed}", 1.0, success_after_interval=None, seed=seed) for seed in range(2)]
    assert "95 %" not in compared(capsys, tmp_path, *sure)[1]
    odd = ended(tmp_path, "odd", 0.4, r'environment.options={cost: "$x^{$\x1b[2J"}', episodes=None)
    (tmp_path / "odd" / "metrics.jsonl").write_text('{"step": 1, "eval/success": 0.4}\n')
    assert main(["compare", won, odd, str(tmp_path / "nothing"), "--plot", str(tmp_path / "odd.png")]) == 2
    out = capsys.readouterr()
    assert "nothing has no summary.json" in out.err
    assert "success 40.0 %" in out.out
    assert "\x1b" not in out.out


def test_a_sweep_says_what_cannot_be_trained_before_anything_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    assert main(["sweep", "small.yaml", "training.gamma=0.9,two"]) == 2
    assert "training.gamma: got 'two'" in capsys.readouterr().err
    assert main(["sweep", "small.yaml", "training.gamma=0.9,0.90"]) == 2
    assert "are the same run" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_finished_run_of_another_setting_is_not_taken_for_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def wait(self) -> int:
            return 0

    def train(here: Here, words: list[str], log: Path) -> Ended:
        changes = dict(word.partition("=")[::2] for word in words[2:])
        assert changes["logging.runs_dir"] == f'"{tmp_path}/my: folder"'
        ended(Path("my: folder"), changes["logging.run_name"], 0.5)
        return Ended()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Here, "start", train)
    Path("small.yaml").write_text(SMALL)
    words = ["sweep", "--out", "my: folder", "small.yaml", "seeds=0..1"]
    assert [main([*words, change]) for change in ("training.gamma=0.9", "training.gamma=0.9")] == [0, 0]
    told = capsys.readouterr().out
    assert told.count("done before") == 2
    assert "seed-0: begins, with the log my: folder/seed-0.log\n" in told
    assert main([*words, "training.gamma=0.8"]) == 2
    assert "seed-0 is a run of another setting" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_trains_every_combination_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    words = ["sweep", "small.yaml", "training.learning_rate=1e-3,1e-4", "seeds=0..1", "--out", "out"]
    assert main([*words, "--parallel", "2"]) == 0
    told = capsys.readouterr().out
    assert len(re.findall(": done\n", told)) == 4
    assert told.count("mean of 2 runs") == 2
    assert len(list(Path("out").glob("*/summary.json"))) == 4
    assert main(words) == 0
    assert capsys.readouterr().out.count("done before") == 4
    assert main(["sweep", "small.yaml", "inference.max_tokens=4", "model.model_name=nowhere", "--out", "bad"]) == 1
    told = capsys.readouterr().out
    assert f"failed, see {tmp_path}/bad/run.log" in told
    assert "1 of 1 runs failed and are not in the table: run" in told


@pytest.mark.slow
def test_a_sweep_in_ray_goes_on_where_a_worker_was_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # others of this machine take all of it from a patient one
    Path("small.yaml").write_text(SMALL.replace("num_iters_per_epoch: 1", "num_iters_per_epoch: 40"))

    def kill_one() -> None:
        assert reaches(tmp_path / "out" / "seed-0", 2, lambda: not ended)
        (run,) = (int(pid) for pid in subprocess.check_output(["pgrep", "-f", "^ray::_in_ray"], text=True).split()[:1])
        os.kill(run, signal.SIGKILL)

    ended: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_one)
        ended.append(main(["sweep", "small.yaml", "seeds=0..1", "--ray", "local", "--out", "out"]))
        killed.result()
    assert ended == [0]
    told = capfd.readouterr().out
    assert len(re.findall(": done\n", told)) == 2
    assert "mean of 2 runs" in told
    assert sorted(path.name for path in Path("out").glob("*/")) == ["seed-0", "seed-1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "where"),
    [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGTERM, ["--ray", "local", "--parallel", "1"])],
)
def test_a_sweep_that_is_stopped_stops_its_run_which_saves_and_begins_no_other(
    tmp_path: Path, sign: int, where: list[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("num_iters_per_epoch: 1", "num_iters_per_epoch: 100000"))
    command = [sys.executable, "-m", "uirl", "sweep", "small.yaml", "seeds=0..1", "--out", "out", *where]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"RAY_worker_niceness": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as sweep:
        assert reaches(tmp_path / "out" / "seed-0", 2, lambda: sweep.poll() is None), sweep.communicate()[0]
        sweep.send_signal(sign)
        told = sweep.communicate(timeout=PATIENCE)[0]
    assert sweep.returncode != 0
    assert "Traceback" not in told
    assert "saved in" in (tmp_path / "out" / "seed-0.log").read_text()
    assert not (tmp_path / "out" / "seed-1").exists()
