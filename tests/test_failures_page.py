"""docs/failures.md names every place that raises a failure, and says who can cause it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.failure_sites import failure_sites
from uirl import errors

PAGE = Path(__file__).parent.parent / "docs" / "failures.md"
_ROW = re.compile(r"^\| `([^`]+)` `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> dict[tuple[str, str], tuple[list[str], str, str]]:
    return {(m[1], m[2]): (m[3].split(", "), m[4], m[5]) for m in _ROW.finditer(PAGE.read_text())}


def test_every_place_that_makes_a_failure_has_a_row() -> None:
    listed, raised = rows(), failure_sites()
    new = [
        f"| `{path}` `{scope}` | {', '.join(raised[path, scope])} | ? | ? |"
        for path, scope in set(raised) - set(listed)
    ]
    assert not new, (
        "these places raise failures and have no row in docs/failures.md. Ask of each: can the policy cause it? "
        "Then it should be an observation or a stop_reason, or the row says what prevents its use as an escape.\n"
        + "\n".join(sorted(new))
    )
    gone = sorted(set(listed) - set(raised))
    assert not gone, f"these rows of docs/failures.md have no place in the code any more: {gone}"
    others = {site: (listed[site][0], kinds) for site, kinds in raised.items() if listed[site][0] != kinds}
    assert not others, f"these rows name other failures (listed, raised): {others}"


@pytest.mark.parametrize("site", sorted(rows()), ids=" ".join)
def test_every_row_says_whose_doing_it_is(site: tuple[str, str]) -> None:
    _, whose, what = rows()[site]
    assert whose in ("world", "person", "policy", "as told")
    assert len(what) > 5


def test_the_first_table_names_every_kind() -> None:
    failures = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RolloutFailure)]
    first_table = PAGE.read_text().split("## Every place")[0]
    for kind in {c.kind for c in failures} - {errors.RolloutFailure.kind}:
        assert f'"{kind}"' in first_table
