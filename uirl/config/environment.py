"""Which environment the agent lives in."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from uirl.config.section import Options, Positive, Section
from uirl.errors import ConfigError


class EnvironmentConfig(Section):
    """Name and options of the environment. An environment class gets this section as its `config`."""

    key: ClassVar[str] = "environment"

    name: str = "screen"
    """Name in the table of environments, or 'package.module:Class'. Not read where the trainer is given an object."""
    given: str | None = None
    """Written by a run whose environment was an object from code: its class. Nothing is made of such a config by name;
    to measure it with one you can name, set `name`, `options` and this to null."""
    options: Options = Field(default_factory=dict)
    """Arguments of the environment, which checks them itself. Your own parameters go here."""
    eval_options: Options = Field(default_factory=dict)
    """Entries that replace those of `options` in evaluation."""
    step_timeout: Positive | None = 30.0
    """Longest `step`, in seconds; then the episode is a recorded failure. None: wait for ever."""
    reset_timeout: Positive | None = 120.0
    """Longest `reset`, in seconds; None: wait for ever."""

    def note_object(self, environment: object) -> None:
        """Notes that the environment is this object and not the one that is named."""
        kind = type(environment)
        self.given = f"{kind.__module__}:{kind.__qualname__}"

    def require_named(self) -> None:
        """Raises ConfigError where the environment was an object, of which no more than the class is known here."""
        if self.given is not None:
            raise ConfigError(
                f"the environment of this run was an object of {self.given}, handed over in code, and cannot be made "
                "from its config. Hand such an object over again (uirl.measure, a trainer), or name one that can be "
                "made: environment.given=null environment.name=package.module:Class environment.options={...}"
            )

    def options_for(self, split: str) -> Options:
        """The options of the environments of `split`: 'eval' has `eval_options` on top."""
        return {**self.options, **self.eval_options} if split == "eval" else dict(self.options)
