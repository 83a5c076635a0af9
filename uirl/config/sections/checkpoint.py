"""Where and how often the state of a run is saved."""

from __future__ import annotations

from typing import ClassVar, Literal

from uirl.config.section import Count, Index, PathText, Positive, Section


class CheckpointConfig(Section):
    """Checkpoints of the run. Ctrl-C, SIGTERM and SIGHUP save one too, wherever the run is."""

    key: ClassVar[str] = "checkpoint"

    output_dir: PathText | None = None
    """Folder of the checkpoints, of this run alone; None: 'checkpoints' in the run directory."""
    save_interval: Count | None = 5
    """Epochs between checkpoints; None: `save_seconds` alone decides."""
    save_seconds: Positive | None = 60.0
    """Also save after an update (or step of the warm start) that ends this many seconds after the last checkpoint, but
    take no more than 5 % of the time for it: a model that takes 2 minutes to save is saved every 40. None: never."""
    keep_last_n: Count | None = 3
    """Older checkpoints than the newest `keep_last_n` are deleted; None: all are kept."""
    keep_best: Literal["success", "reward"] | None = None
    """Save where an evaluation (`training.eval_every`) is better by this than all before, and never delete the best.
    The link `best` beside the checkpoints leads to it, as in `uirl eval runs/screen/checkpoints/best`. None: only the
    newest are kept. What the best of several evaluations says of its policy is too much; `uirl eval` measures it on
    other instances."""
    save_optimizer: bool = True
    """Save the optimiser too. Without it a resumed run is not the run that never stopped."""
    resume: bool | Literal["auto"] = False
    """True: continue the run `logging.run_name` from its newest checkpoint; without a name, the newest run of this
    config that has one. 'auto': the same where there is such a run, else begin. False: begin; a run directory that
    already exists is an error."""
    from_step: Index | None = None
    """With `resume`: go back to the checkpoint of this step. What came later is set aside in the run directory. None:
    the newest."""
