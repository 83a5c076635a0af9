"""What a run writes down, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from uirl.config.keys import Reach
from uirl.config.section import Count, PathText, Section, Words


class LoggingConfig(Section):
    """The run directory `<runs_dir>/<run_name>` and the trackers."""

    key: ClassVar[str] = "logging"

    _stem: str | None = PrivateAttr(None)
    _home: Path | None = PrivateAttr(None)

    run_name: Annotated[Words, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Name of the run's folder; None: the name of the environment, with a number where that is taken."""
    runs_dir: PathText = "runs"
    """Folder of all runs."""
    print_every: Count = 1
    """Updates between lines of progress."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...],
        Field(strict=False),
        Reach("an address", unless="tensorboard"),
    ] = ("tensorboard",)
    """Where metrics go beside metrics.jsonl. TensorBoard's events lie in the run directory, and are left out with a
    line where the package is missing; the others know from variables of their own where to send, and must be there."""
    project: Words = "uirl"
    """Project (MLflow: experiment) there."""
    store_trajectories: bool = True
    """Keep every episode in the run directory: what was seen, sampled, decided, rewarded."""
    store_learner_figures: bool = True
    """Keep with them what every update made of their tokens: advantages, the learner's log-probs, entropies."""
    store_images: bool = True
    """Keep the screenshots with them, each once; false: only their hashes."""

    @property
    def stem(self) -> str | None:
        """What runs without a `run_name` are called, and numbered by; None: by the environment."""
        return self._stem

    def call_runs(self, stem: str) -> None:
        """Call runs without a `run_name` by `stem`: it is no part of the config."""
        self._stem = stem

    @property
    def runs_path(self) -> Path:
        """`runs_dir`, where `at` says that it is."""
        return self.at(self.runs_dir)

    def at(self, path: str) -> Path:
        """Return where a path of the run is that may be relative; see `keep_home`."""
        return Path(path) if self._home is None else self._home / path

    def keep_home(self) -> None:
        """Read relative paths of the run from the folder where the process is at the first call: an environment may go
        elsewhere."""
        self._home = self._home or Path.cwd()
