"""What our parts find in verl's config: one plain section, `data.uirl`, which every process of verl is handed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class Settings:
    """The section `data.uirl`. It stands under `data` because verl hands datasets that section alone."""

    config: dict[str, Any] = field(default_factory=dict)
    """A `ConfigStore` as plain data; keys left out have their defaults."""
    coordinator: str | None = None
    """Name of the Ray actor that keeps the record and holds the environment where that is an object; None: there is
    none, the environment comes from the table and nothing is recorded."""
    directory: str | None = None
    """Run directory; None: none is written."""
    poll_seconds: float = 0.2
    """How often the trainer looks whether the episodes of a step are complete (verl's own default is 2 s)."""
    credits_episodes: bool = False
    """Whether the trainer gives credit to whole episodes where they are several sequences; ours says so itself."""

    @classmethod
    def read(cls, data: Any) -> Settings:
        """The settings in verl's section `data`; the defaults where it has no key `uirl`. Raises ConfigError for keys
        that are none of ours."""
        from omegaconf import OmegaConf

        found = data.get("uirl") or {}
        values = OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else dict(found)
        assert isinstance(values, dict)
        for key in values:
            if key not in cls.__dataclass_fields__:
                raise ConfigError(f"data.uirl has no key {key!r}; {did_you_mean(str(key), cls.__dataclass_fields__)}")
        return cls(**{str(key): value for key, value in values.items()})

    def write(self, config: Any) -> None:
        """Nothing; puts the settings into verl's whole config, in place of those it may hold."""
        from omegaconf import open_dict

        with open_dict(config):
            config.data.uirl = asdict(self)

    def store(self) -> ConfigStore:
        """The config of our own parts. Raises ConfigError."""
        return ConfigStore.build(self.config)
