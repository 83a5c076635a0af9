"""What a run tells the person who watches it."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from uirl.errors import is_round
from uirl.metrics import read_metrics
from uirl.rollout.collector import EpisodePlayer
from uirl.runtime.limits import clip
from uirl.runtime.terminal import visible
from uirl.training.record.board import Board, clock
from uirl.types import Failure, Trajectory

console = Console(highlight=False, force_jupyter=False)
"""Where everything is said."""

SILENCE = 10.0
"""Seconds after which a person is told what is being waited for."""
IN_A_FILE = 60.0
"""Least seconds between two lines of that where no terminal shows them: somebody reads them later, all of them."""
PAUSE = 1.0
"""Pieces of work with a shorter pause between them are one stretch of work."""
PER_SECOND = 2
"""Drawings of a board. One takes 1.4 ms of a processor, so they take a third of a percent of it."""


def say(message: str) -> None:
    """Print one line. Control characters are shown and not obeyed: a message may quote a page, a policy, a process."""
    _watch.last_words = time.monotonic()
    console.print(visible(message), markup=False, soft_wrap=True)


@contextlib.contextmanager
def lines_on_stderr(wanted: bool) -> Iterator[None]:
    """Return a context in which lines go to stderr, if `wanted`: stdout is for what a program reads."""
    console.stderr = wanted
    try:
        yield
    finally:
        console.stderr = False


class Activity:
    """Something that takes a while."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done = 0
        self.failed = 0
        """Attempts that failed: an episode has several."""
        self.started = time.monotonic()
        self.waits_for: Callable[[], str] = str
        """Returns what it waits for, in words; empty: nothing in particular."""

    def line(self, now: float) -> str:
        """Return 'evaluation: 96 of 256 episodes, 3 attempts failed, 23 s; waits for ...'."""
        count = "" if self.total is None else f": {self.done} of {self.total} episodes"
        count += f", {self.failed} attempts failed" if self.failed else ""
        waits_for = self.waits_for()
        return f"{self.what}{count}, {now - self.started:.0f} s" + (f"; waits for {waits_for}" if waits_for else "")


class _Watch:
    """Says what is going on where nothing was said for a while; on a thread, since the work may block every loop."""

    def __init__(self) -> None:
        self.last_words = self.busy_since = time.monotonic()
        self.last_end = -PAUSE
        self.activities: list[Activity] = []
        self.last_wait = -IN_A_FILE
        self.failures, self.pace = Counter[str](), Board()
        """Of the run that goes on: how many of each kind, and how fast it is (`board` says it where that is shown)."""
        self.board: Board | None = None
        """Where what goes on is shown all the time; None: it is said."""
        self.stop_board: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()

    def begin(self, activity: Activity) -> None:
        with self._lock:
            if self._thread is None:
                self._idle = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._idle,), name="uirl-progress", daemon=True)
                thread.start()
                self._thread = thread
            if not self.activities and activity.started - self.last_end > PAUSE:
                self.busy_since = activity.started
            self.activities.append(activity)

    def end(self, activity: Activity) -> None:
        """Stop saying that; the thread is gone with the last activity."""
        with self._lock:
            self.activities.remove(activity)
            self.last_end = time.monotonic()
            if self.activities or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._idle.set()
        thread.join()

    def current(self) -> Activity | None:
        """Return the newest activity."""
        with self._lock:
            return self.activities[-1] if self.activities else None

    def look(self, now: float) -> str | None:
        """Return the line to say now: about the newest activity, once nothing was said for `SILENCE` seconds of work,
        be it one long piece or many short ones; else None. Where that goes to a file, it is a line a minute."""
        current = self.current()
        if current is None or self.board is not None or now - max(self.last_words, self.busy_since) < SILENCE:
            return None
        if now - self.last_wait < IN_A_FILE and not console.is_terminal:
            return None
        self.last_wait = now
        return current.line(now)

    def _run(self, idle: threading.Event) -> None:
        while not idle.wait(min(1.0, SILENCE)):
            line = self.look(time.monotonic())
            if line is not None:
                say(line)


_watch = _Watch()


class _Drawing:
    """A board as `rich` draws it, at the size that the terminal has then."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        current = _watch.current()
        activity = None if current is None else visible(current.line(time.monotonic()))
        # the last column and the last lines stay free: a terminal that gets smaller wraps what it has already
        size = options.max_width - 1, max(1, console.height - 2)
        yield from self._board.lines(activity, *size, plain=options.ascii_only)


@contextlib.contextmanager
def live_board(title: str = "") -> Iterator[Board | None]:
    """Return a context in which a board stands at the bottom of the terminal: progress, the newest updates, curves and
    what goes on. None, and lines as ever, where there is no terminal that can redraw one."""
    if not (console.is_interactive and console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty()):
        yield None
        return
    board = Board(visible(title))
    live = Live(
        get_renderable=lambda: _Drawing(board),
        console=console,
        refresh_per_second=PER_SECOND,
        redirect_stderr=sys.stderr.isatty(),
        vertical_overflow="crop",
    )

    def stop() -> None:
        board.over = True
        live.stop()

    with live:
        console.show_cursor(True)  # whoever kills this process gives the cursor back to nobody
        with shown_on(board, stop), _logs_above():
            try:
                yield board
            finally:
                board.over = True


@contextlib.contextmanager
def _logs_above() -> Iterator[None]:
    """Let the handlers of `logging` that kept the terminal's own streams write to those that stand above the board."""
    swapped: list[tuple[Any, Any]] = []
    proxies = {"stdout": (sys.__stdout__, sys.stdout), "stderr": (sys.__stderr__, sys.stderr)}
    names = [None, *logging.root.manager.loggerDict]
    handlers = {id(handler): handler for name in names for handler in logging.getLogger(name).handlers}
    for handler in handlers.values():
        for original, proxy in proxies.values():
            if isinstance(handler, logging.StreamHandler) and handler.stream is original and proxy is not original:
                swapped.append((handler, original))
                handler.setStream(proxy)
    try:
        yield
    finally:
        for handler, original in swapped:
            handler.setStream(original)


@contextlib.contextmanager
def shown_on(board: Board, stop: Callable[[], None]) -> Iterator[None]:
    """Return a context in which progress is shown on `board`, in the place of lines; `stop` leaves it as it is then."""
    _watch.board, _watch.stop_board = board, stop
    try:
        yield
    finally:
        _watch.board = _watch.stop_board = None


def leave_board() -> None:
    """Leave the board as it is now, if there is one: what is said from now on stands below it."""
    if _watch.stop_board is not None:
        stop, _watch.board, _watch.stop_board = _watch.stop_board, None, None
        stop()


def forget_failures() -> None:
    """Let the next failure be the first, and nothing be known of how fast updates are: another run begins."""
    _watch.failures, _watch.pace = Counter(), Board()


def tell_failure(failure: Failure) -> None:
    """Say why an attempt at an episode failed: at the first of each kind, the tenth, the hundredth and so on."""
    _watch.failures[failure.kind] += 1
    count = _watch.failures[failure.kind]
    if is_round(count):
        what = "an attempt at an episode" if count == 1 else f"{count} attempts at episodes"
        say(f"{what} failed ({failure.kind}){', the last' if count > 1 else ''}: {failure.message}")


def tell_progress(what: str, done: int, total: int) -> str:
    """Show how far a stretch of work is, where there is a board; return '  ETA 4:07', empty where nothing is known."""
    left = (_watch.board or _watch.pace).advance(what, done, total)
    return "" if left is None else f"  ETA {clock(left)}"


def tell_step(step: int, steps: int, row: Mapping[str, Any], *, line: bool, limit: float | None = None) -> None:
    """Tell the numbers of an update. `line`: it is time for a line; `limit`: seconds after which the run ends in any
    case, None: never."""
    board = _watch.board or _watch.pace
    left = board.advance("step", step, steps, limit=limit, spent=row["time/elapsed"])
    if _watch.board is not None:
        board.add(step, row, line=line)
    elif line:
        say(step_line(step, steps, row) + ("" if left is None else f"  ETA {clock(left)}"))


def tell_earlier(metrics: Path, every: int) -> None:
    """Show what a resumed run did before, by its metrics file, where there is a board: curves go on where they were.
    `every`: a row of the table for every so many updates."""
    if _watch.board is not None and metrics.is_file():
        for row in read_metrics(metrics):
            _watch.board.add(row["step"], row, line=row["step"] % every == 0)


@contextlib.contextmanager
def doing(what: str, total: int | None = None) -> Iterator[Activity]:
    """Return a context in which the person is told every `SILENCE` seconds that `what` goes on, unless other lines
    come."""
    activity = Activity(what, total)
    _watch.begin(activity)
    try:
        yield activity
    finally:
        _watch.end(activity)


@contextlib.contextmanager
def playing(what: str, player: EpisodePlayer, total: int) -> Iterator[None]:
    """Return a context like `doing` for episodes of `player`, which are counted as they end; why some fail is said."""
    hook = player.on_finished
    with doing(what, total) as activity:

        def finished(trajectory: Trajectory) -> None:
            if trajectory.failure is None:
                activity.done += 1
            else:
                activity.failed += 1
                tell_failure(trajectory.failure)
            if hook is not None:
                hook(trajectory)

        player.on_finished = finished
        try:
            yield
        finally:
            player.on_finished = hook


def step_line(step: int, steps: int, row: Mapping[str, Any]) -> str:
    """Return the numbers of one update, on one line."""
    parts = [f"step {step:>4}/{steps}", f"episodes {int(row['episodes_total']):>6}"]
    rates = (("success", "success", "count"), ("eval/success", "eval", "eval"))
    parts += [_rate(name, row, key, counts) for key, name, counts in rates if row.get(key) is not None]
    parts += [f"reward {_number(row.get('reward'))}", f"turns {_number(row.get('turns'), 1)}"]
    of_update = (("entropy", "entropy"), ("approx_kl", "kl"), ("clip_fraction", "clip"), ("log_prob_gap_max", "gap"))
    parts += [f"{name} {row[key]:.2g}" for key, name in of_update if row.get(key) is not None]
    failures = (("count/failed_episodes", "FAILED"), ("count/failed_attempts", "repeated"))
    parts += [f"{name} {int(row[key])}" for key, name in failures if row.get(key)]
    parts += [f"{_number(row.get('tokens_per_second'), 0)} tok/s", f"{row['time/elapsed']:.0f} s"]
    return "  ".join(parts)


def _rate(name: str, row: Mapping[str, Any], key: str, counts: str) -> str:
    """Return 'success 0.720 (64 of 64 judged, at worst 0.680)'."""
    judged, episodes = row.get(f"{counts}/judged_episodes"), row.get(f"{counts}/evidence_episodes")
    told = "" if judged is None or episodes is None else f"{int(judged)} of {int(episodes)} judged"
    if row.get(f"{counts}/unseen_attempts"):
        told += f", at worst {row[f'{key}_at_worst']:.3f}"
    return f"{name} {row[key]:.3f}" + (f" ({told})" if told else "")


ROWS = 100
"""Rows of a table: a run may have 10 000 tasks, and what was said before them is to stay on the screen."""


def report_table(title: str, rows: Mapping[str, Any]) -> None:
    """Print two columns: what, how much. A name (of a task, say) is one line of at most 80 characters. Of more than
    `ROWS` rows the first are printed, and how many are not."""
    rows, left_out = dict(islice(rows.items(), ROWS)), len(rows) - ROWS
    if left_out > 0:
        title += f" (the first {ROWS} of {ROWS + left_out}; --json has all)"
    lines = [(clip(visible(name).replace("\n", "\\n"), 80), value) for name, value in rows.items()]
    width = max((len(name) for name, _ in lines), default=0)
    say("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines)]))


def percent(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return '93.0 % (95 %: 89.1 to 95.6)'; '-' for None."""
    if value is None:
        return "-"
    text = f"{100 * value:.1f} %"
    return text if interval is None else f"{text} (95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def counted(episodes: int, instances: int) -> str:
    """Return '256 episodes of 64 instances'."""
    return f"{episodes} episode{'s' * (episodes != 1)} of {instances} instance{'s' * (instances != 1)}"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
