"""`LookupTool`: the value of a key."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from uirl.errors import ConfigError
from uirl.runtime.limits import shown
from uirl.tools.base import Tool, ToolError

MOST_KEYS_COMPARED = 1000
"""In larger tables a wrong key gets no suggestion: the comparison would take longer than the call."""


class LookupTool(Tool):
    """The value of a key in a table; a key that is not there is a `ToolError` that names near ones."""

    name = "lookup"
    description = "Returns the value of a key."
    runs_inline = True

    def __init__(self, table: Mapping[str, Any], name: str = "lookup", description: str = "") -> None:
        """Serve `table`: text keys and plain data. `description` empty: says only that it looks up keys."""
        wrong = [key for key in table if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"LookupTool got the key {shown(wrong[0], 40)}; expected text keys")
        self.name, self.description = name, description or type(self).description
        self._table = dict(table)

    def execute(self, key: str) -> Any:
        """Return the value of a key.

        Args:
            key: Exactly as it is written in the table.
        """
        if key in self._table:
            return self._table[key]
        near = get_close_matches(key[:100], self._table, n=1) if len(self._table) <= MOST_KEYS_COMPARED else []
        raise ToolError(f"no entry {key[:60]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def __deepcopy__(self, memo: dict[int, Any]) -> LookupTool:
        return self  # nothing of it changes: parallel episodes share it
