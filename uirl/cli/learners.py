"""`torchrun -m uirl train`: several processes, of which the first is the run and the others learn with it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from uirl.errors import ConfigError, ProcessLost, UirlError
from uirl.runtime.terminal import visible

if TYPE_CHECKING:
    from uirl.learner.data_parallel import Ranks


def launched() -> bool:
    """Return whether `torchrun` or `accelerate launch` started this process as one of several."""
    there = all(key in os.environ for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    count = os.environ.get("WORLD_SIZE", "")
    return there and count.isdecimal() and int(count) > 1


def require_alone(command: str) -> None:
    """Raise ConfigError where `torchrun` or `accelerate launch` started this process as one of several: each would do
    the whole `command`, in the same folder, and the runs that it starts would take each other for learners."""
    if launched():
        raise ConfigError(
            f"uirl {command}: got {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), expected one: of several only "
            "`uirl train` learns. Start it without torchrun, or without RANK and WORLD_SIZE in the environment"
        )


@contextlib.contextmanager
def several_learners() -> Iterator[Ranks | None]:
    """Return a context with the processes that learn together; None: this one is alone. One that follows has learned to
    the end of the run when the context begins, and says nothing: what there is to say, the first one does."""
    if not launched():
        yield None
        return
    from uirl.runtime.event_loop import ctrl_c_heard

    rank = os.environ["RANK"]
    follows = rank != "0"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a connection that ends it warns with a page of frames
    if follows:
        # who stops the run stops the first process, which saves it together with the others and sends them home
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            signal.signal(getattr(signal, name, signal.SIGINT), signal.SIG_IGN)
    with ctrl_c_heard():
        from uirl.learner.data_parallel import join
        from uirl.learner.follower import Follower
    try:
        ranks = join()
        if follows:
            Follower(ranks).run()
    except UirlError as error:
        if not follows:
            raise
        if not isinstance(error, ProcessLost | ConfigError):  # which the first one tells
            print(f"uirl: process {rank}: {visible(str(error))}", file=sys.stderr)
        sys.exit(2)
    try:
        yield ranks
    finally:
        ranks.close()
