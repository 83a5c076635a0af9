"""`EnvironmentOptions`: the typed options of an environment, and `ConfigurableEnvironment`, which reads them.

An environment names its class of options, and its constructor takes the fields of that class as keywords:

    class RoomOptions(EnvironmentOptions):
        key = "room"

        size: Count = 5
        \"\"\"Tiles along each side.\"\"\"

    class Room(ConfigurableEnvironment):
        options_class = RoomOptions
        options: RoomOptions

    Room(size=7).options.size  # 7; Room(sise=7) and Room(size=0) are errors that name the option
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from uirl.config.section import Count, Section
from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError, did_you_mean

Names = Annotated[tuple[str, ...], Field(strict=False)]
"""Several names; YAML writes a list."""
MistakeReward = Annotated[float, Field(le=0, allow_inf_nan=False)]
"""What a reply that is no action pays."""
Size = Annotated[tuple[Count, Count], Field(strict=False)]
"""Width and height in pixels."""


class EnvironmentOptions(Section):
    """Options of an environment. They are read when it is made, and cannot be changed afterwards.

    Types and bounds are those of the fields. What must hold between fields is checked in a pydantic `model_validator`
    (mode 'after') that raises `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    key: ClassVar[str] = "options"
    """Name of the environment, as errors and `docs/configuration.md` write it."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Earlier name of an option -> the name it has now: not accepted, but the error names the new one."""

    def __setattr__(self, name: str, value: Any) -> None:  # type: ignore[override]
        raise ConfigError(f"{self.key}.{name} is read when the environment is made; make another environment")

    @classmethod
    def unknown_key(cls, name: str, others: Iterable[str] = ()) -> str:
        """Return the message for an option that does not exist. `others`: what is accepted beside the fields."""
        known = [*cls.model_fields, *others]
        if cls.renamed.get(name) in known:
            meant = f"did you mean {cls.renamed[name]!r}?"
        else:
            meant = did_you_mean(name, known) if known else "it has none"
        return f"environment {cls.key!r} has no option {name!r}; {meant}"

    @classmethod
    def from_arguments(cls, options: OptionsLike, keys: Mapping[str, Any]) -> Self:
        """Return `options` with `keys` in place of the fields they name. Raises ConfigError for what does not fit."""
        if isinstance(options, cls) and not keys:
            return options
        if isinstance(options, EnvironmentOptions):
            options = {name: getattr(options, name) for name in options.model_fields_set}
        return cls.build({**(options or {}), **keys})


OptionsLike = EnvironmentOptions | Mapping[str, Any] | None
"""What a constructor takes as `options`: the section, its fields by name, or None for the defaults."""


class ConfigurableEnvironment(BaseEnvironment):
    """An environment with typed options: `options_class` declares them, `options` holds them."""

    options_class: ClassVar[type[EnvironmentOptions]] = EnvironmentOptions
    """Names, types, defaults and meaning of the options."""
    options: EnvironmentOptions
    """The options of this instance, checked."""

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment with `options`, or with the fields of `options_class` as keywords, which come first.

        `config`: the environment section of the run's config; kept as `config` and not read here. Raises ConfigError
        for unknown options, with the nearest known one, and for values that do not fit.
        """
        super().__init__(config)
        self.options = self.options_class.from_arguments(options, keys)
