"""What a run says: missing numbers are a dash, failures are loud."""

from __future__ import annotations

import pytest

from uirl.training.progress import percent, report_table, say, step_line


def test_the_line_of_an_update_names_what_there_is() -> None:
    row = {
        "episodes_total": 320,
        "success": 0.5,
        "eval/success": 0.25,
        "reward": 0.75,
        "turns": 2.25,
        "entropy": 1.25,
        "approx_kl": 0.00125,
        "clip_fraction": 0.0,
        "log_prob_gap_max": 1e-5,
        "count/failed_episodes": 3.0,
        "tokens_per_second": 1234.4,
        "time/elapsed": 61.6,
    }
    said = step_line(7, 40, row)
    words = ["step    7/40", "episodes    320", "success 0.500", "held-out 0.250", "reward 0.750", "turns 2.2"]
    words += ["entropy 1.2", "kl 0.0013", "clip 0", "gap 1e-05", "FAILED 3", "1234 tok/s", "62 s"]
    places = [said.index(word) for word in words]
    assert places == sorted(places)


def test_what_was_not_measured_is_a_dash_or_left_out() -> None:
    said = step_line(1, 1, {"episodes_total": 0, "time/elapsed": 0.0, "success": None, "count/failed_episodes": 0})
    for word in ("success", "held-out", "entropy", "FAILED"):
        assert word not in said
    for word in ("reward -", "turns -", "- tok/s"):
        assert word in said


def test_success_with_its_interval() -> None:
    assert percent(0.93) == "93.0 %"
    assert percent(0.93, (0.891, 0.9564)) == "93.0 % (95 %: 89.1 to 95.6)"
    assert percent(None, (0.1, 0.2)) == "-"
    assert percent(0.0) == "0.0 %"


def test_tables_are_aligned_and_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    report_table("run [bold]x[/bold]", {"a": 1, "longer name": "[red]2[/red]"})
    say("")
    assert capsys.readouterr().out == "run [bold]x[/bold]\n  a            1\n  longer name  [red]2[/red]\n\n"
