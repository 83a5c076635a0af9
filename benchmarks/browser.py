"""Steps per second of MiniWoB++ by number of sessions: uirl, and the libraries it is compared with.

    python -m benchmarks.browser [--peers PYTHON] [--sessions 1 4 8 16] [--seconds 10] [--rounds 2]
        [--pages click-color click-test-2 enter-text]
        [--parties uirl playwright miniwob browsergym browsergym-fast]

`--peers` is a Python in whose environment `browsergym-miniwob` and `miniwob` are installed (`pip install
browsergym-miniwob miniwob`); `miniwob` needs a chromedriver of the browser's version beside it (Debian's
chromium-driver). All use one browser, the one that uirl finds. Without `--peers` uirl is measured beside Playwright as
it comes: its clicks, its pictures, all sessions in one process and one browser.

A step is one click, the reading of the reward and a new picture of the page. Sessions take the pages in turn; seeds and
clicks (random places of the 160 x 210) are the same for all, and an episode is ten clicks, or fewer where the page ends
it. Resets are part of the time, the first one of a session is not. Of several rounds the one with the most steps per
second counts, for everybody. Memory is the proportional set size at the end of the play; left behind are processes that
outlive the library's own close by ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pairs import pair, report
from uirl.environments.browser.process import find_executable

TICKS = os.sysconf("SC_CLK_TCK")
PARTY = Path(__file__).with_name("browser_party.py")
PARTIES = ("uirl", "playwright", "miniwob", "browsergym", "browsergym-fast")
OURS = ("uirl", "playwright")
"""Those that need no environment of their own."""


@dataclass(frozen=True)
class Row:
    """How one party did with one number of sessions."""

    party: str
    sessions: int
    steps: float
    """Per second."""
    resets: float
    step_ms: float
    reset_ms: float
    cpu_ms: float
    """Processor time of all its processes per step, resets included."""
    browser_mb: float
    """Of browser processes, per session."""
    other_mb: float
    """Of all others (Python, drivers), per session."""
    left: int
    load: float


def binary() -> str:
    """The browser itself: what Debian puts on the PATH is a script around it, and chromedriver would end the script."""
    found = find_executable()
    if found is None:
        return ""
    path = Path(found).resolve()
    if path.read_bytes()[:2] != b"#!":
        return str(path)
    return str(Path("/usr/lib/chromium") / path.name)


def tree(root: int) -> dict[int, list[str]]:
    """Process id -> the fields of /proc/<pid>/stat after the name, of a process and all under it."""
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [root]
    for pid in found:
        found += [child for child, fields in stats.items() if int(fields[1]) == pid]
    return {pid: stats[pid] for pid in found if pid in stats}


def cpu_seconds(root: int) -> float:
    """Processor time so far, that of children who have ended included."""
    return sum(sum(int(ticks) for ticks in fields[11:15]) for fields in tree(root).values()) / TICKS


def megabytes(root: int) -> tuple[float, float]:
    """Memory of the browser's processes under `root`, and of all others: shared pages count once."""
    browser = other = 0.0
    for pid in tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        used = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        if command.startswith(b"chrom") and command != b"chromedriver":
            browser += used
        else:
            other += used
    return browser, other


def still_there(processes: dict[int, list[str]]) -> int:
    """How many of these processes run on; a process id that was given to another does not count."""
    now = 0
    for pid, fields in processes.items():
        current = tree(pid).get(pid)
        now += current is not None and current[19] == fields[19] and current[0] != "Z"
    return now


def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a party's protocol."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"{process.args} ended with code {process.wait()}")


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(party: str, sessions: int, given: argparse.Namespace) -> Row:
    """One run of one party."""
    python = sys.executable if party in OURS else given.peers
    command = [python, str(PARTY), party, "--sessions", str(sessions), "--seconds", str(given.seconds)]
    command += ["--browser", binary(), "--pages", *given.pages]
    with open(os.devnull if not given.loud else "/dev/stderr", "w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    heard(process)
    before = cpu_seconds(process.pid)
    say(process)
    result = heard(process)
    load = os.getloadavg()[0]
    used = cpu_seconds(process.pid) - before
    browser, other = megabytes(process.pid)
    everybody = tree(process.pid)
    say(process)
    process.wait(120)
    until = time.monotonic() + 10.0
    while still_there(everybody) and time.monotonic() < until:
        time.sleep(0.2)
    steps, resets, wall = result["steps"], result["resets"], result["wall"]
    return Row(
        party=party,
        sessions=sessions,
        steps=len(steps) / wall,
        resets=len(resets) / wall,
        step_ms=1e3 * statistics.median(steps),
        reset_ms=1e3 * statistics.median(resets) if resets else float("nan"),
        cpu_ms=1e3 * used / len(steps),
        browser_mb=browser / sessions,
        other_mb=other / sessions,
        left=still_there(everybody),
        load=load,
    )


def shown(row: Row, standard: Row | None) -> str:
    """A line of the table; `standard`: what the ratio is to."""
    ratio = "" if standard is None else f"{row.steps / standard.steps:.1f}x"
    return (
        f"| {row.party} | {row.sessions} | {row.steps:.1f} | {ratio} | {row.step_ms:.0f} | {row.reset_ms:.0f} | "
        f"{row.cpu_ms:.1f} | {row.browser_mb:.0f} | {row.other_mb:.0f} | {row.left} | {row.load:.1f} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=None)
    parser.add_argument("--parties", nargs="+", choices=PARTIES, default=list(PARTIES))
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pages", nargs="+", default=["click-color", "click-test-2", "enter-text"])
    parser.add_argument("--loud", action="store_true", help="shows what the parties write to stderr")
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    given = parser.parse_args()
    pairs = []
    parties = [party for party in given.parties if given.peers or party in OURS]
    print(f"{', '.join(given.pages)}; {find_executable()}; {os.cpu_count()} cores; best of {given.rounds} rounds")
    print(
        "| library | sessions | steps/s | of browsergym | ms per step | ms per reset | CPU ms per step | "
        "browser MB/session | other MB/session | left behind | load |\n" + "|---" * 11 + "|"
    )
    for sessions in given.sessions:
        best: dict[str, Row] = {}
        rates: dict[str, list[float]] = {party: [] for party in parties}
        for _ in range(given.rounds):
            for party in parties:
                row = measure(party, sessions, given)
                rates[party].append(row.steps)
                if party not in best or row.steps > best[party].steps:
                    best[party] = row
                print(f"  {shown(row, None)}", file=sys.stderr, flush=True)
        for party in parties:
            print(shown(best[party], best.get("browsergym")), flush=True)
        work = f"MiniWoB++, {sessions} sessions: clicks with reward and picture"
        checked = "the same pages, seeds, clicks and browser"
        for peer in parties[1:]:
            pairs.append(pair(work, "steps/s", rates, "uirl", peer, checked, more_is_better=True))
    report(given.pairs, pairs)


if __name__ == "__main__":
    main()
