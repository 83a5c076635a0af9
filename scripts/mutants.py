"""Mutation testing: which small changes to the code does no test notice?

    python scripts/mutants.py --sample 300 --seed 0 uirl/rollout uirl/learner

Each mutant is one change to one expression or statement (`mutant_changes.py`). It runs in a fork of a process that has
imported and collected everything, with the tests that reach its line alone (mirrored and fast ones first), up to the
first that fails. Which test reaches which line is measured first, by one run of all the tests. Printed are the mutants
that survive; those that `mutants_equivalent.yaml` lists, with the reason why they change nothing that can be observed,
are left out of the share.

Why not mutmut 3: it mutates no function with a decorator (every advantage estimator has `torch.no_grad()`) and nothing
outside functions, picks tests by function and not by line, and draws no sample. cosmic-ray starts the interpreter and
imports torch for every mutant.
"""

from __future__ import annotations

import argparse
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
import yaml
from mutant_changes import ROOT, Mutant, mutants_of

ALIVE = ("survived", "unreached")
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.yaml")
PYTEST = [
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=",
    "--tb=line",
    "-m",
    "not (verl or vllm or clients or actors or slow or real)",
]


class Reach:
    """A pytest plugin: which lines of which files each test reaches, and the seconds of CPU that it takes."""

    def __init__(self, files: Sequence[str], skip: str) -> None:
        self.files = {str(ROOT / file): file for file in files}
        self.skip = skip
        self.lines: dict[str, dict[int, set[str]]] = {file: defaultdict(set) for file in files}
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self._now = ""
        """The test that runs; '': none, what is reached is reached by an import."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not (self.skip and re.search(self.skip, item.nodeid))]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._now, started = item.nodeid, time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid], self._now = time.process_time() - started, ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def run(self, tests: Sequence[str], path: Path) -> int:
        """Runs the tests and writes down what was seen."""
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        pytest.main([*PYTEST, *tests], plugins=[self])
        sys.settrace(None)
        lines = {file: {n: sorted(by) for n, by in own.items()} for file, own in self.lines.items()}
        path.write_text(json.dumps({"lines": lines, "seconds": self.seconds, "failed": sorted(self.failed)}))
        return 0

    def _enter(self, frame: FrameType, event: str, given: Any) -> Any:
        file = self.files.get(frame.f_code.co_filename)
        if file is None:
            return None
        lines = self.lines[file]

        def note(frame: FrameType, event: str, given: Any) -> Any:
            lines[frame.f_lineno].add(self._now)
            return note

        return note(frame, event, given)


@dataclass
class Known:
    """What the first run measured."""

    lines: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @staticmethod
    def load(path: Path) -> Known:
        raw = json.loads(path.read_text())
        gone = set(raw["failed"])
        for name in sorted(gone):
            print(f"not used, it fails without any change: {name}")
        lines = {file: {int(n): set(by) - gone for n, by in own.items()} for file, own in raw["lines"].items()}
        return Known(lines, raw["seconds"])

    def tests_of(self, mutant: Mutant, budget: float) -> list[str]:
        """The tests that reach the mutant, the likeliest to notice first, as many as `budget` seconds hold."""
        everywhere = range(1 << 20) if not mutant.inside else mutant.wider
        places = (mutant.lines, mutant.wider, everywhere)
        reach = next((by for by in (self._reach(mutant, lines) - {""} for lines in places) if by), set[str]())
        stem, folder = Path(mutant.path).stem, "/".join(["tests", *Path(mutant.path).parts[1:-1]])

        def rank(test: str) -> tuple[bool, bool, float, str]:
            return stem not in test.partition("::")[0], not test.startswith(folder), self.seconds[test], test

        chosen, spent = [], 0.0
        for test in sorted(reach, key=rank):
            spent += self.seconds[test]
            if not chosen or spent <= budget:
                chosen.append(test)
        return chosen

    def at_import(self, mutant: Mutant) -> bool:
        """Whether the change already shows when the file is imported."""
        return not mutant.inside or "" in self._reach(mutant, mutant.lines)

    def _reach(self, mutant: Mutant, lines: range) -> set[str]:
        own = self.lines.get(mutant.path, {})
        return set().union(*(by for line, by in own.items() if line in lines))


class Judge:
    """A pytest plugin: instead of the tests it runs one fork per mutant, each with the tests that reach it."""

    def __init__(self, mutants: Sequence[Mutant], known: Known, options: argparse.Namespace, folder: Path) -> None:
        self.mutants, self.known, self.options, self.folder = mutants, known, options, folder
        self.outcomes: Counter[str] = Counter()
        self.functions: list[FunctionType] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        equivalent = {entry["mutant"] for entry in yaml.safe_load(self.options.equivalent.read_text()) or []}
        functions = [o for o in gc.get_objects() if type(o) is FunctionType]
        self.functions = [f for f in functions if f.__code__.co_filename.startswith(str(ROOT))]
        gc.freeze()  # the forks share what is there, as long as nobody visits it
        for number, mutant in enumerate(self.mutants, 1):
            outcome, by = ("equivalent", "") if mutant.key in equivalent else self._judge(mutant, items)
            self.outcomes[outcome] += 1
            if outcome in ALIVE:
                print(f"{number} {outcome}: {mutant.path}:{mutant.line} {mutant.scope}: {mutant.change}", flush=True)
            if self.options.log:
                with self.options.log.open("a") as log:
                    row = {"outcome": outcome, "by": by, "line": mutant.line, "mutant": mutant.key}
                    log.write(json.dumps(row) + "\n")
        return True

    def _judge(self, mutant: Mutant, items: dict[str, pytest.Item]) -> tuple[str, str]:
        """('killed' | 'timeout' | 'survived' | 'unreached', the test that noticed)."""
        tests = [test for test in self.known.tests_of(mutant, self.options.budget) if test in items]
        if not tests:
            return "unreached", ""
        log = self.folder / "mutant.log"
        cpu = 10 + 2 * sum(self.known.seconds[test] for test in tests)
        status: int | None = UNFIT
        if not self.known.at_import(mutant):
            chosen = [items[test] for test in tests]
            status = forked(lambda: _run_collected(mutant, self.functions, chosen), cpu, 30 + 10 * cpu, log)
        if status == UNFIT:
            status = forked(lambda: _run_anew(mutant, tests), cpu, 30 + 10 * cpu, log)
        if status is None:
            return "timeout", ""
        by = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
        return ("survived", "") if status == 0 else ("killed", by[0] if by else f"status {status}")


UNFIT = 77
"""The changed function cannot take the place of the one that is there."""


def _run_collected(mutant: Mutant, functions: Sequence[FunctionType], items: Sequence[pytest.Item]) -> int:
    """0 where all `items` pass with the mutant's code in the functions that are there; 1 where one fails."""
    path = str(ROOT / mutant.path)
    new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(mutant.code())}
    changed = False
    for function in [f for f in functions if f.__code__.co_filename == path]:
        code = new.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is None or code.co_freevars != function.__code__.co_freevars:
            return UNFIT
        changed |= code != function.__code__
        function.__code__ = code
    if not changed:
        return UNFIT
    failed: list[str] = []

    class Note:
        @staticmethod
        def pytest_runtest_logreport(report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    items[0].config.pluginmanager.register(Note())
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed:
            print(f"\nFAILED {failed[0]}")
            return 1
    return 0


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _run_anew(mutant: Mutant, tests: Sequence[str]) -> int:
    """The status of pytest on `tests`, with the project imported anew from the changed file."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(f"{ROOT}/") and "site-packages" not in file and Path(file).parent != Path(__file__).parent:
            del sys.modules[name]
    sys.meta_path.insert(0, Changed(mutant))
    return int(pytest.main([*PYTEST, "-x", *tests]))


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed file."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.file = mutant, ROOT / mutant.path
        self.name = ".".join(Path(mutant.path).with_suffix("").parts).removesuffix(".__init__")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        inner = [str(self.file.parent)] if self.file.stem == "__init__" else None
        return importlib.util.spec_from_file_location(name, self.file, loader=self, submodule_search_locations=inner)  # type: ignore[arg-type]

    def exec_module(self, module: Any) -> None:
        exec(self.mutant.code(), module.__dict__)


def forked(work: Callable[[], int], cpu: float, wall: float, log: Path) -> int | None:
    """The status of `work` in a fork, its output in `log`; None: it ran past `cpu` or `wall` seconds or died."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
            sink = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline = time.monotonic() + wall
    ended = (0, 0)
    while ended == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.005)
        ended = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # and whatever a test left running
    if ended == (0, 0):
        os.waitpid(pid, 0)
        return None
    return os.WEXITSTATUS(ended[1]) if os.WIFEXITED(ended[1]) else None


def python_files(paths: Sequence[str]) -> list[str]:
    """The files of `paths`, folders read to their depth."""
    found = [f for p in paths for f in (sorted((ROOT / p).rglob("*.py")) if (ROOT / p).is_dir() else [ROOT / p])]
    return [str(file.relative_to(ROOT)) for file in found]


def sample_of(files: Sequence[str], sample: int, seed: int) -> list[Mutant]:
    """`sample` of all mutants, drawn by `seed`; all of them where `sample` is 0."""
    every = [mutant for file in files for mutant in mutants_of(file, (ROOT / file).read_text())]
    print(f"{len(every)} mutants in {len(files)} files")
    return random.Random(seed).sample(every, min(sample, len(every))) if sample else every


def summary(outcomes: Counter[str]) -> str:
    """The last lines of a run. The share: of the mutants that change behaviour, those that no test noticed."""
    alive, real = sum(outcomes[name] for name in ALIVE), sum(outcomes.values()) - outcomes["equivalent"]
    named = ("killed", "timeout", "survived", "unreached", "equivalent")
    counts = ", ".join(f"{outcomes[name]} {name}" for name in named)
    share = f"{alive / real:.1%}" if real else "none"
    return f"{counts}\nsurviving share of the {real} that change behaviour: {share}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", help="files and folders to change")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files and folders of the tests")
    parser.add_argument("--skip", default="", help="tests whose name this pattern finds are not used")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests per mutant at most")
    parser.add_argument("--reach", type=Path, help="file of the first run: read where it exists, else written")
    parser.add_argument("--again", type=Path, help="a log: only the mutants that nobody noticed there")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="YAML: what changes nothing, and why")
    parser.add_argument("--log", type=Path, help="one line of JSON per mutant")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)  # for the programs that tests start
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        _run(options, Path(folder))


def _run(options: argparse.Namespace, folder: Path) -> None:
    files, reach = python_files(options.paths), options.reach or folder / "reach.json"
    if not reach.exists():
        first = folder / "first.log"
        if forked(lambda: Reach(files, options.skip).run(options.tests, reach), 1e5, 1e5, first) != 0:
            raise SystemExit(f"the tests could not be run: {first.read_text(errors='replace')[-2000:]}")
    mutants = sample_of(files, options.sample, options.seed)
    if options.again:
        rows = [json.loads(line) for line in options.again.read_text().splitlines()]
        alive = {row["mutant"] for row in rows if row["outcome"] in ALIVE}
        mutants = [mutant for mutant in mutants if mutant.key in alive]
    judge = Judge(mutants, Known.load(reach), options, folder)
    pytest.main([*PYTEST, *options.tests], plugins=[judge])
    print(summary(judge.outcomes))


if __name__ == "__main__":
    main()
