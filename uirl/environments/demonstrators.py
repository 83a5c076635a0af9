"""The option `carelessness`: how often a demonstrator errs, and which demonstrators read it."""

from __future__ import annotations

from collections.abc import Sequence

from uirl.errors import ConfigError

DEMONSTRATORS = ("expert", "careless")
CARELESSNESS = 0.5
"""That of a careless demonstrator where none is given."""


def error_rate(
    environment: str, demonstrator: str, carelessness: float | None, known: Sequence[str] = DEMONSTRATORS
) -> float:
    """The probability with which the demonstrator errs: `carelessness` for 'careless', 0 for the others.

    Raises ConfigError for an unknown demonstrator, for what is no probability, and for a `carelessness` that the
    demonstrator does not read.
    """
    if demonstrator not in known:
        raise ConfigError(f"{environment}: demonstrator must be one of {tuple(known)}, got {demonstrator!r}")
    if carelessness is None:
        return CARELESSNESS if demonstrator == "careless" else 0.0
    number = isinstance(carelessness, (int, float)) and not isinstance(carelessness, bool)
    if not number or not 0 <= carelessness <= 1:
        raise ConfigError(f"{environment}: carelessness must be a probability in [0, 1], got {carelessness!r}")
    if demonstrator != "careless":
        raise ConfigError(
            f"{environment}: the demonstrator {demonstrator!r} does not read carelessness, got {carelessness!r}; set "
            "demonstrator to 'careless', or leave carelessness out (null)"
        )
    return float(carelessness)
