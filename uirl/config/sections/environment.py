"""Which environment the agent lives in."""

from __future__ import annotations

import math
import re
from typing import Annotated, ClassVar

from pydantic import Field

from uirl.config.keys import Reach
from uirl.config.section import Options, PathText, Positive, Section
from uirl.errors import ConfigError

OBJECT = "object:"
"""Prefix of `environment.name` if the environment was an object."""


class EnvironmentConfig(Section):
    """Name and options of the environment. An environment class gets this section as its `config`."""

    key: ClassVar[str] = "environment"

    name: Annotated[str, Reach("code", unless=r"\w+")] = "screen"
    """Name in the registry of environments, or 'package.module:Class', from a module beside the config, in the current
    folder or in PYTHONPATH. A run whose environment was an object from code writes
    'object:package.module:Class' here; such a config cannot be played by name until another one is set."""
    options: Options = Field(default_factory=dict)
    """Arguments of the environment, which checks them itself. Put your own parameters here."""
    eval_options: Options = Field(default_factory=dict)
    """Entries that replace those of `options` in evaluation, such as another set of tasks."""
    tasks: PathText | None = None
    """The tasks to train on: a file (`.json`, `.jsonl`, `.csv`, `.parquet`) of goals, or of rows with `id`, `goal`,
    `checks`, `tags`, `seed`, `weight`, or of other columns (see `columns`); or a dataset on the hub, as 'owner/name',
    'owner/name:split' or 'owner/name/config:split'. None: the environment's own tasks."""
    eval_tasks: PathText | None = None
    """The tasks of evaluations, as `tasks`. None: those that `eval_options` choose, else the training tasks on
    instances of other seeds; the result of a run says how many of these were trained on all the same."""
    columns: Annotated[dict[str, str], Reach("")] = Field(default_factory=dict)
    """Field of a task -> column of `tasks`, `eval_tasks` or a dataset from code that holds it, such as
    `{goal: question}`; all other columns become entries of `checks`. Not needed for rows with a column `prompt`."""
    step_timeout: Positive | None = 30.0
    """Time limit of a `step`, in seconds; beyond it the episode is a recorded failure. None: no limit."""
    reset_timeout: Positive | None = 120.0
    """Time limit of a `reset`, in seconds; None: no limit. Closing has it too, and 30 s at most."""

    @property
    def timeouts(self) -> tuple[float, float]:
        """Seconds that a step and a reset may take; infinite where there is no limit."""
        return self.step_timeout or math.inf, self.reset_timeout or math.inf

    @property
    def is_object(self) -> bool:
        """Whether the environment was an object from code, of which the config has only the class."""
        return self.name.startswith(OBJECT)

    @property
    def label(self) -> str:
        """Name of the environment in file names: 'screen', or 'drawer' of 'my.module:DrawerEnvironment'."""
        if ":" not in self.name:
            return self.name
        kind = re.split(r"[:.]", self.name)[-1].removesuffix("Environment") or "own"
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()

    def note_object(self, environment: object) -> None:
        """Record that the environment is this object and not the one that is named."""
        kind = type(environment)
        self.name = f"{OBJECT}{kind.__module__}:{kind.__qualname__}"

    def require_named(self) -> None:
        """Raise ConfigError if the environment was an object."""
        if self.is_object:
            raise ConfigError(
                f"the environment of this run was an object of {self.name.removeprefix(OBJECT)}, handed over in code, "
                "and cannot be made from its config. Hand such an object over again (uirl.measure, a trainer), or name "
                "one that can be made: environment.name=package.module:Class environment.options={...}"
            )

    def options_for(self, split: str) -> Options:
        """Return the options of the environments of `split`: 'eval' has `eval_options` on top."""
        return {**self.options, **self.eval_options} if split == "eval" else dict(self.options)
