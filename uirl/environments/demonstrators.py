"""Options of environments whose demonstrator can err on purpose."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from uirl.config.section import Fraction
from uirl.environments.options import EnvironmentOptions
from uirl.errors import ConfigError

CARELESSNESS = 0.5
"""That of a careless demonstrator where none is given."""


class DemonstratorOptions(EnvironmentOptions):
    """What `expert_action` plays."""

    demonstrator: Literal["expert", "careless"] = "expert"
    """'expert' does the right thing; 'careless' does so too, but errs with probability `carelessness`."""
    carelessness: Fraction | None = None
    """How often the careless demonstrator errs; None: 0.5."""

    @model_validator(mode="after")
    def _carelessness_is_read(self) -> Self:
        if self.carelessness is not None and self.demonstrator != "careless":
            raise ConfigError(
                f"{self.key}: the demonstrator {self.demonstrator!r} does not read carelessness, got "
                f"{self.carelessness!r}; set demonstrator to 'careless', or leave carelessness out (null)"
            )
        return self

    @property
    def error_rate(self) -> float:
        """The probability with which the demonstrator errs."""
        if self.demonstrator != "careless":
            return 0.0
        return CARELESSNESS if self.carelessness is None else self.carelessness
