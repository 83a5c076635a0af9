"""The notebook runs from its first cell to its last, as a kernel of Jupyter runs it, and the policy learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.clients
NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


def test_the_first_run(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert shown.count("image/png") == 2, "the curve and what the policy saw"
    said = "".join(output.get("text", "") for output in outputs)
    rate = re.search(r"([\d.]+)% of 256 episodes", said)
    assert rate is not None
    assert float(rate[1]) >= 80
