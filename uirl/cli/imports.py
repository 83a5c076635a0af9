"""Where the command finds your own classes: 'my_module:MyEnvironment' in a config."""

from __future__ import annotations

import sys
from pathlib import Path


def make_importable(*, config: str | None = None, opened: str | None = None) -> None:
    """Put the current folder, and that of the `config` file the person named, at the end of Python's search path.

    At the end, so that a file of yours never hides an installed package. `opened`: a run or checkpoint that is only
    read and may be somebody else's: from inside of that run the current folder is not searched.
    """
    from uirl.storage import run_of

    here = Path.cwd()
    inside = opened is not None and Path(run_of(opened) or opened).resolve() in (here, *here.parents)
    folders = [] if inside else [here]
    if config is not None:
        folders.append(Path(config).resolve().parent)
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
