"""How much memory there is: the machine's, or its container's."""

from __future__ import annotations

from pathlib import Path

from uirl.runtime.memory import free_memory, whole_memory


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    cgroup.mkdir()
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert free_memory(meminfo, cgroup) == 8000 * 1024
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert free_memory(meminfo, cgroup) == 8000 * 1024
    assert whole_memory(meminfo, cgroup) == 9000 * 1024
    (cgroup / "memory.max").write_text("5000\n")
    assert free_memory(meminfo, cgroup) == 4000
    assert whole_memory(meminfo, cgroup) == 5000
    assert free_memory(tmp_path / "nothing", cgroup) == 4000
    assert free_memory(tmp_path / "nothing", tmp_path / "nowhere") is None
