"""`make bench`: sides that take turns, the ratio of neighbours, and a table that hides nothing that went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.pairs import Pair, alternate, pair, read, report, table

ROOT = Path(__file__).parents[1]


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    played: list[str] = []

    def side(name: str, figure: float) -> float:
        played.append(name)
        return figure + len(played)

    figures = alternate({"a": lambda: side("a", 0.0), "b": lambda: side("b", 100.0)}, rounds=2)
    assert played == ["a", "b"] * 3
    assert figures == {"a": [3.0, 5.0], "b": [104.0, 106.0]}


def test_a_ratio_is_that_of_a_round_and_not_of_the_medians() -> None:
    # the machine was three times as slow in the second round: 8 / 2, 24 / 6 and 9 / 3 are 4, 4 and 3
    figures = {"ours": [2.0, 6.0, 3.0], "theirs": [8.0, 24.0, 9.0]}
    made = pair("a step", "s", figures, "ours", "theirs", "nothing", more_is_better=False)
    assert (made.better, made.low, made.high) == (4.0, 3.0, 4.0)
    assert (made.ours, made.theirs) == (3.0, 9.0)
    rates = pair("a step", "1/s", figures, "theirs", "ours", "nothing", more_is_better=True)
    assert (rates.better, rates.low, rates.high) == (4.0, 3.0, 4.0)


def test_pairs_are_read_as_they_were_written(tmp_path: Path) -> None:
    one = Pair("work | with a bar", "s", "peer", 0.5, 2.0, 4.0, 3.0, 5.0, "tokens equal")
    report(str(tmp_path / "pairs.jsonl"), [one])
    report(str(tmp_path / "pairs.jsonl"), [one])
    report(None, [one])
    assert read(tmp_path / "pairs.jsonl") == [one, one]
    assert read(tmp_path / "none.jsonl") == []
    assert "| peer | s | 2 | 0.5 | **4.00** (3.00 to 5.00) | tokens equal |" in table([one])
    assert table([one]).splitlines()[2].count(" | ") == 6, "a bar in a name makes no column"


@pytest.mark.parametrize(
    ("arguments", "message"), [("json.tool --help", "wrote no pairs"), ("json.tool --no-such-option", "exit status 2")]
)
def test_a_benchmark_that_fails_or_measures_nothing_is_said(arguments: str, message: str, tmp_path: Path) -> None:
    made = bench.run("x", bench.Bench(sys.executable, arguments, "", 1), tmp_path, quick=True, last=())
    assert made == message


def test_one_that_hangs_is_stopped(tmp_path: Path) -> None:
    hanging = bench.Bench(sys.executable, "http.server 0 --bind 127.0.0.1", "", 0.01)
    assert bench.run("x", hanging, tmp_path, quick=False, last=()) == "stopped after 0.01 minutes"


def test_an_environment_that_is_missing_is_said(tmp_path: Path) -> None:
    made = bench.run("x", bench.Bench(".venv-nowhere/bin/python", "json.tool", "", 1), tmp_path, quick=False)
    assert made is not None
    assert ".venv-nowhere/bin/python is missing" in made


def test_every_benchmark_is_a_module_that_takes_pairs() -> None:
    for name, one in bench.BENCHES.items():
        module = one.arguments.split()[0]
        path = ROOT / (module.replace(".", "/") + ".py")
        assert '"--pairs"' in path.read_text(), f"{name}: {path.name} takes no --pairs"


def test_a_whole_run_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.BENCHES, "gae", bench.Bench(sys.executable, "benchmarks.gae", "--rows 4 --columns 64", 2))
    monkeypatch.setitem(bench.BENCHES, "broken", bench.Bench(sys.executable, "json.tool --no-such", "", 1))
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--only", "gae", "broken", "--folder", str(tmp_path)])
    assert bench.main() == 1
    text = (tmp_path / "table.md").read_text()
    assert "GAE of (4, 64), whitened: one response per row" in text
    assert "- not measured: broken: exit status 2" in text
    assert "no figure counts" in text
