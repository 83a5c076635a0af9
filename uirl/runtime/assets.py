"""Pages, scripts and tables that lie beside the code which uses them: `.html`, `.js` and `.yaml` files."""

from __future__ import annotations

from pathlib import Path


def read_asset(beside: str, name: str) -> str:
    """Return the text of the file `name`, without its last line break, in the folder of the file `beside`: `__file__`
    of the caller."""
    return Path(beside).with_name(name).read_text("utf-8").removesuffix("\n")
