"""Every block of the guides runs, in order, in one namespace per page. `python notest` marks what cannot run alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = ["tools.md", "integration_example.md", "engines.md", "pages.md", "record.md", "adapters.md", "datasets.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / page).read_text()
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "guide"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 1
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        code = compile("\n" * line + block[1], f"docs/{page}", "exec")  # tracebacks name the line of the page
        exec(code, namespace)
