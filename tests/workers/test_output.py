"""What a process prints arrives with its name, in bounds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from uirl.workers import children
from uirl.workers.children import Output
from uirl.workers.keeper import descendants


def said_of(*pieces: bytes) -> list[tuple[str, str]]:
    """The lines of a process that prints these pieces and ends."""
    said: list[tuple[str, str]] = []
    output = Output("actor-0", lambda name, line: said.append((name, line)))
    for piece in pieces:
        os.write(output.end, piece)
    os.close(output.end)
    output.join()
    return said


def test_lines_are_whole_however_they_come() -> None:
    assert said_of(b"one\ntw", b"o\n", b"three") == [("actor-0", word) for word in ("one", "two", "three")]


def test_what_is_no_text_and_what_never_ends_is_cut() -> None:
    lines = said_of(b"\xff\n", b"x" * 30_000)
    assert lines[0] == ("actor-0", "\ufffd")
    assert sum(len(line) for _, line in lines) < 40_000
    assert max(len(line) for _, line in lines) <= children._LINE + 60


def test_a_flood_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_LINES", 10)
    lines = [line for _, line in said_of(b"".join(b"%d\n" % i for i in range(1000)))]
    assert lines == [*map(str, range(10)), "(990 more lines)"]


def test_descendants_are_found_across_sessions() -> None:
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True); "
        "print(p.pid, flush=True); p.wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert {child.pid, grandchild} <= set(descendants(os.getpid()))
        assert descendants(grandchild) == []
    finally:
        os.kill(grandchild, 9)
        child.wait()
        child.stdout.close()
