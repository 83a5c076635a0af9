"""`CalendarTool`: the date some days before or after another."""

from __future__ import annotations

from datetime import date as Date
from datetime import timedelta

from uirl.tools.base import Tool, ToolError


class CalendarTool(Tool):
    """Dates as YYYY-MM-DD, of the Gregorian calendar."""

    name = "calendar"
    description = "Returns the date so many days after another."
    runs_inline = True

    def execute(self, date: str, days: int) -> str:
        """Return the date `days` after `date`.

        Args:
            date: As YYYY-MM-DD.
            days: Negative for the date before.
        """
        try:
            return (Date.fromisoformat(date.strip()) + timedelta(days=days)).isoformat()
        except ValueError:
            raise ToolError(f"cannot read the date {date[:40]!r}; expected YYYY-MM-DD") from None
        except OverflowError:
            raise ToolError(f"there is no date {days} days from {date[:40]}; years have 1 to 4 digits") from None

    def __deepcopy__(self, memo: dict[int, object]) -> CalendarTool:
        return self  # it keeps nothing: parallel episodes share it
