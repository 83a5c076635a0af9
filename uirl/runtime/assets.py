"""Pages, scripts and tables that lie beside the code which uses them: `.html`, `.js` and `.yaml` files."""

from __future__ import annotations

from importlib import resources


def read_asset(package: str, name: str) -> str:
    """Return the text of the file `name`, without its last line break, in the folder of `package`: `__package__` of the
    caller."""
    return resources.files(package).joinpath(name).read_text("utf-8").removesuffix("\n")
