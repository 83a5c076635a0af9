"""TRL's completions, written by pandas as its GRPOTrainer does, and read by `uirl check --record`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.test_dump_faults import trl
from uirl.errors import ConfigError
from uirl.storage.dump_faults import check_dump

pytestmark = pytest.mark.clients


def logged(folder: Path, rows: list[dict[str, Any]], step: int = 1) -> Path:
    import pandas as pd

    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame({name: [row[name] for row in rows] for name in rows[0]}).to_parquet(path)
    return folder


@pytest.mark.parametrize("texts", [False, True])
def test_completions_that_pandas_wrote(tmp_path: Path, texts: bool) -> None:
    rows = trl()
    rows[2]["answer"] = None
    if texts:
        rows = [
            row | {"prompt": row["prompt"][0]["content"], "completion": row["completion"][0]["content"]} for row in rows
        ]
    assert not check_dump(logged(tmp_path, rows)).shown
    rows[5]["advantage"], rows[6]["advantage"] = rows[6]["advantage"], rows[5]["advantage"]
    report = check_dump(logged(tmp_path, rows, step=2))
    assert [*report.shown] == ["reward of another member"]
    assert "completions/completions_00002.parquet row 6" in str(report)


def test_prompts_with_pictures_stripped(tmp_path: Path) -> None:
    rows = trl()
    for row in rows:
        row["prompt"] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
        row["completion"] = [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    report = check_dump(logged(tmp_path, rows))
    assert not report.shown
    assert not report.over["pictures lost"]


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "completions_00001.parquet").write_text("no")
    with pytest.raises(ConfigError, match="cannot read"):
        check_dump(tmp_path)
