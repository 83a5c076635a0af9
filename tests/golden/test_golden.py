"""What a change of the insides leaves as it is: digits of runs, keys, commands, tables, names.

Where one of these is meant to change: `python -m tests.golden.write`, and the difference is part of the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import runs, write

MEND = "if it is meant to change: python -m tests.golden.write"


@pytest.mark.parametrize("name", runs.RUNS)
def test_a_run_has_its_digits_and_its_metrics(name: str, tmp_path: Path) -> None:
    digits, metrics = runs.play(name, tmp_path)
    expected = json.loads(write.DIGITS.read_text())[name]
    assert runs.differences(expected, digits) == [], MEND
    assert metrics == {metric for metric, having in write.stored_names().items() if name in having}, MEND


def test_what_others_see_is_as_it_was(tmp_path: Path) -> None:
    seen = write.surfaces(tmp_path)
    for name, text in seen.items():
        assert text.splitlines() == (write.HERE / name).read_text().splitlines(), f"{name}: {MEND}"


def test_digits_that_differ_are_found() -> None:
    was = {"updates": [{"loss": 0.5, "log_prob_gap_max": 1e-6}], "weights": {"sum": 0.01, "absolute": 1e3}, "crc": 7}
    near = {"updates": [{"loss": 0.50004, "log_prob_gap_max": 3e-6}], "weights": {"sum": 0.1, "absolute": 1000.05}}
    far = {"updates": [{"loss": 0.5001, "log_prob_gap_max": 1e-3}], "weights": {"sum": 0.2, "absolute": 1000.2}}
    assert runs.differences(was, near | {"crc": 7}) == []
    names = [line.split(":")[0] for line in runs.differences(was, far | {"crc": 8, "more": 1})]
    assert names == ["crc", "more", "updates.0.log_prob_gap_max", "updates.0.loss", "weights.absolute", "weights.sum"]
