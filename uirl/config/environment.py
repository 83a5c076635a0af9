"""Which environment the agent lives in."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from uirl.config.section import Options, Positive, Section


class EnvironmentConfig(Section):
    """Name and options of the environment. An environment class gets this section as its `config`."""

    key: ClassVar[str] = "environment"

    name: str = "screen"
    """Name in the table of environments, or 'package.module:Class'. Not read where the trainer is given an object."""
    options: Options = Field(default_factory=dict)
    """Arguments of the environment, which checks them itself. Your own parameters go here."""
    eval_options: Options = Field(default_factory=dict)
    """Entries that replace those of `options` in evaluation."""
    step_timeout: Positive | None = 30.0
    """Longest `step`, in seconds; then the episode is a recorded failure. None: wait for ever."""
    reset_timeout: Positive | None = 120.0
    """Longest `reset`, in seconds; None: wait for ever."""

    def options_for(self, split: str) -> Options:
        """The options of the environments of `split`: 'eval' has `eval_options` on top."""
        return {**self.options, **self.eval_options} if split == "eval" else dict(self.options)
