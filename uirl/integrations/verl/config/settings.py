"""What our parts find in verl's config: one plain section, `data.uirl`, which every process of verl is handed."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from uirl.config import ConfigStore, Section


class Settings(Section):
    """The section `data.uirl`. It stands under `data` because verl hands datasets that section alone."""

    key = "data.uirl"

    config: dict[str, Any] = Field(default_factory=dict)
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
        """Read the settings in verl's section `data`; the defaults where it has no key `uirl`. Raises ConfigError for
        keys that are none of ours."""
        from omegaconf import OmegaConf

        values = data.get("uirl") or {}
        return cls.build(OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values)

    def write(self, config: Any) -> None:
        """Put the settings into verl's whole config, in place of those it may hold."""
        from omegaconf import open_dict

        with open_dict(config):
            config.data.uirl = self.to_dict()

    def store(self) -> ConfigStore:
        """Return the config of our own parts. Raises ConfigError."""
        return ConfigStore.build(self.config)
