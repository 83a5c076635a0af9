"""Where and how often the state of a run is saved."""

from __future__ import annotations

from typing import ClassVar

from uirl.config.section import Count, PathText, Section


class CheckpointConfig(Section):
    """Checkpoints of the run."""

    key: ClassVar[str] = "checkpoint"

    output_dir: PathText | None = None
    """Folder of the checkpoints; None: 'checkpoints' in the run directory."""
    save_interval: Count | None = 5
    """Epochs between checkpoints; None: only at the end."""
    keep_last_n: Count | None = 3
    """Older checkpoints than the newest `keep_last_n` are deleted; None: all are kept."""
    save_optimizer: bool = True
    """Save the optimiser too. Without it a resumed run is not the run that never stopped."""
    resume: bool = False
    """Continue the run of this name from its newest checkpoint; from the start where it has none yet. False: a run
    directory that already exists is an error."""
