"""The configs and programs that docs/verl.md and docs/verl_run_book.md show, and the file that is shipped."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("verl.md", "verl_run_book.md")}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)


CONFIGS = [(page, number) for page in PAGES for number in range(len(blocks(page, "yaml")))]
"""(page, number of the block) of every YAML they show."""
SHIPPED = {
    "configs/verl_config.yaml": (ROOT / "configs" / "verl_config.yaml").read_text(),
    **{f"{page}#{number}": blocks(page, "yaml")[number] for page, number in CONFIGS},
}
"""Name -> text of every config for real models that a user may start from."""
