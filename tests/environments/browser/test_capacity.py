"""How many pages a machine can hold: its memory, its container's, its cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl.environments.browser.chromium import capacity
from uirl.environments.browser.web import WebEnvironment


class Still(WebEnvironment):
    html = "<p>still</p>"


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    cgroup.mkdir()
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert capacity.free_memory(meminfo, cgroup) == 8000 * 1024
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert capacity.free_memory(meminfo, cgroup) == 8000 * 1024
    (cgroup / "memory.max").write_text("5000\n")
    assert capacity.free_memory(meminfo, cgroup) == 4000
    assert capacity.free_memory(tmp_path / "nothing", cgroup) == 4000
    assert capacity.free_memory(tmp_path / "nothing", tmp_path / "nowhere") is None


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
