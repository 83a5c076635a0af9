"""The filter of system calls, on both machines that it knows."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.tools.python_programs import PLENTY, run
from uirl.tools import PythonTool, ToolRegistry
from uirl.tools.sandbox import seccomp
from uirl.tools.sandbox.watch import Watch

ALLOW, REFUSE, NO_SUCH_CALL, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None, network: bool = False) -> int:
    """What the filter for `machine` answers to a call: the program, interpreted."""
    arch = seccomp.ARCHITECTURES[machine][1] if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = seccomp.build(machine, network, False, 77)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, constant)[0]
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            return constant
        else:
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant}
            position += if_true if holds[code] else if_false


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        (
            "x86_64",
            {"read": 0, "socket": 41, "execve": 59, "kill": 62, "clone": 56, "prlimit": 302, "prctl": 157}
            | {"fcntl": 72, "clone3": 435},
        ),
        (
            "aarch64",
            {"read": 63, "socket": 198, "execve": 221, "kill": 129, "clone": 220, "prlimit": 261}
            | {"prctl": 167, "fcntl": 25, "clone3": 435},
        ),
    ],
)
def test_the_filter_on_both_machines(machine: str, calls: dict[str, int]) -> None:
    def ask(name: str, *arguments: int, **options: Any) -> int:
        return verdict(machine, calls[name], *arguments, **options)

    assert ask("read") == ALLOW
    assert [ask(name) for name in ("socket", "execve", "kill")] == [REFUSE] * 3
    assert [ask("socket", family, network=True) for family in (1, 2, 10, 16)] == [REFUSE, ALLOW, ALLOW, REFUSE]
    assert (ask("kill", 77, 9), ask("kill", 78, 9), ask("kill", 0, 9)) == (ALLOW, REFUSE, REFUSE)
    assert ask("clone3") == NO_SUCH_CALL
    thread, process = 0x3D0F00, 0x1200011  # the flags of pthread_create and of fork
    assert (ask("clone", thread), ask("clone", process)) == (ALLOW, REFUSE)
    assert ask("clone", thread & ~0x400) == REFUSE  # a thread with a table of files of its own
    assert (ask("prlimit", 0, 7, 0), ask("prlimit", 0, 7, 0x1000), ask("prlimit", 0, 7, 1 << 40)) == (
        ALLOW, REFUSE, REFUSE,
    )  # fmt: skip
    assert (ask("prctl", 15), ask("prctl", 1)) == (ALLOW, REFUSE)
    assert (ask("fcntl", 3, 1), ask("fcntl", 3, 8), ask("fcntl", 3, 15)) == (ALLOW, REFUSE, REFUSE)
    assert ask("read", architecture=0x40000003) == KILL
    assert verdict(machine, 0x40000000 | calls["read"]) == REFUSE
    assert verdict(machine, 10_000) == NO_SUCH_CALL
    known = {number for table in seccomp_tables() for number in [table[list(seccomp.ARCHITECTURES).index(machine)]]}
    for number in set(range(seccomp._NEWEST + 1)) - known:
        assert verdict(machine, number) == REFUSE


def seccomp_tables() -> list[tuple[int | None, int | None]]:
    """The numbers of all calls that are named."""
    return [*seccomp._ALLOWED.values(), *seccomp._NETWORK.values(), *seccomp._SOME.values()]


HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="no kernel headers")
def test_the_numbers_are_those_of_the_kernel() -> None:
    lines = (line.split() for line in HEADER.read_text().splitlines() if line.startswith("#define __NR_"))
    numbers = {name.removeprefix("__NR_"): int(number) for _, name, number in lines}
    for table in (seccomp._ALLOWED, seccomp._NETWORK, seccomp._FILES, seccomp._SOME):
        for name, (number, _) in table.items():
            assert number == numbers.get(name, number), name


def test_a_kill_cannot_be_told_from_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Watch._read

    def killed(self: Watch, end: int) -> bool:
        os.kill(self._process.pid, signal.SIGKILL)
        return original(self, end)

    registry = ToolRegistry([PythonTool(wall_seconds=PLENTY)])
    monkeypatch.setattr(Watch, "_read", killed)
    success, text = run(registry, "print('up', flush=True); import time; time.sleep(1000)")
    assert (success, text) == (False, "up\nthe program was killed (SIGKILL); the memory limit is 512 MB")
