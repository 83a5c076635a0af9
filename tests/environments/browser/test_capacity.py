"""How many pages a machine can hold: its memory, its container's, its cores."""

from __future__ import annotations

import pytest

from uirl.environments.browser import environment as capacity
from uirl.environments.browser.web import WebEnvironment


class Still(WebEnvironment):
    html = "<p>still</p>"


@pytest.mark.parametrize(
    ("free", "size", "pages"),
    [
        (64 << 30, (640, 480), 16),  # two cores, eight pages each
        (1 << 30, (640, 480), 4),  # 512 MiB / (100 MiB + 640 * 480 * 40 B = 111.7 MiB)
        (1 << 30, (1080, 2400), 2),  # 512 MiB / (100 MiB + 98.9 MiB)
        (1 << 20, (640, 480), 1),
        (None, (640, 480), 16),
    ],
)
def test_pages_are_bounded_by_memory_and_by_cores(
    monkeypatch: pytest.MonkeyPatch, free: int | None, size: tuple[int, int], pages: int
) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: free)
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert capacity.pages_that_fit(*size) == pages


def test_a_page_environment_says_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: 1 << 30)
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert Still(width=1080, height=2400).max_parallel == 2
    assert Still(width=540, height=1200, zoom=2.0).max_parallel == 2
