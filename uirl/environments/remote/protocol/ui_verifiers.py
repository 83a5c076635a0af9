"""The two protocols of ui-verifiers: what their requests and answers hold.

M: one server, many sessions, a mouse. S: one process, one session, mouse and keyboard. Actions are parameters of a GET;
screenshots are answers of their own, with headers for what a picture cannot say.
"""

from __future__ import annotations

from enum import StrEnum

from uirl.runtime.wire import Count, Items, WireAnswer

ROOT_M, ROOT_S = "UI Verifiers Server", "UI Verifiers Session Server"
"""How `GET /` begins."""
TEXT, DONE, CUT, SINCE = "x-uirl-text", "x-uirl-done", "x-uirl-cut", "x-uirl-since"
"""Headers of `uirl serve`: the text of the observation (percent-encoded), 'terminated' or 'truncated', 'out_of_turns',
and when the session began."""


Mouse = StrEnum(
    "Mouse", ["screenshot", "mouse_move", "left_click", "right_click", "double_click", "triple_click"]
)  # fmt: skip
"""The actions of protocol M."""
MouseAndKeyboard = StrEnum("MouseAndKeyboard", [*Mouse, "type", "keys", "scroll"])  # type: ignore[misc]
"""The actions of protocol S."""


class SessionIds(WireAnswer):
    """`POST /session` (M)."""

    session_ids: Items[int]


class CountedSubmissions(WireAnswer):
    """`GET /session/{id}/progress` (M), which cannot tell a row that was sent twice."""

    num_correct_submissions: Count
    num_incorrect_submissions: Count


class SubmittedRows(WireAnswer):
    """`GET /progress` (S)."""

    submitted_row_indices: Items[Count]
    num_incorrect_submissions: Count
