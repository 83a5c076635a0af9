"""The board of a run in a terminal, drawn anew while the run goes on; lines that are said stand above it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from uirl.runtime.terminal import visible
from uirl.training.record import progress
from uirl.training.record.board import Board

PER_SECOND = 2
"""Drawings. One takes 1.4 ms of a processor, so they take a third of a percent of it."""


class _Drawing:
    """A board as `rich` draws it, at the size that the terminal has then."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        activity = progress.current_activity()
        # the last column and the last lines stay free: a terminal that gets smaller wraps what it has already
        size = options.max_width - 1, max(1, console.height - 2)
        yield from self._board.lines(activity, *size, plain=options.ascii_only)


@contextlib.contextmanager
def live_board(title: str = "") -> Iterator[Board | None]:
    """Return a context in which a board stands at the bottom of the terminal: progress, the newest updates, curves and
    what goes on. None, and lines as ever, where there is no terminal that can redraw one."""
    console = progress.console
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
        with progress.shown_on(board, stop), _logs_above():
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
