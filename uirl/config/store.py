"""The config of a run as it is read, written, checked and overridden."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Self

from uirl.config import yaml_text
from uirl.config.aliases import translate_file
from uirl.config.keys import KeyedModel
from uirl.config.overrides import apply_overrides
from uirl.config.rates import USUAL, choose_rates
from uirl.config.reference import markdown
from uirl.config.relations import broken_for_training, broken_relations
from uirl.config.tree import ConfigTree
from uirl.errors import ConfigError
from uirl.runtime.files import write_atomically


class ConfigStore(ConfigTree):
    """Every setting of a run. `ConfigStore()` is a run that works: a tiny vision model learns the embedded screen.

    Assigning an attribute checks the key and the value at once. What must hold between keys is checked where a whole
    config is read (`from_yaml`, `from_dict`, `override`) and by `check`, not while attributes are set one by one.
    """

    def check(self, *, training: bool = False) -> Self:
        """Return this config if its keys fit together; with `training`, also if something can be learned from it.

        Raises `ConfigError` that lists every combination which does not, and why.
        """
        messages = broken_relations(self) + (broken_for_training(self) if training else [])
        if messages:
            raise ConfigError("\n".join(messages))
        return self

    def resolved(self) -> dict[str, Any]:
        """Return this as a mapping in which what was left open has a value, where it does not depend on the machine."""
        config = self.model_copy(deep=True)
        choose_rates(config, USUAL)
        return config.to_dict()

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build the config that a nested mapping describes; keys left out have their defaults. Raises `ConfigError`."""
        return cls.build(values).check()

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        """Read the config in a YAML file, which may be partial or empty. Raises `ConfigError` that names the file."""
        values = _read(path)
        with _naming(path):
            return cls.from_dict(values)

    def to_yaml(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the whole config as YAML, and write it (atomically) to `path` if one is given. `from_yaml` of it gives
        an equal config."""
        text = yaml_text.render(self.to_dict())
        if path is not None:
            write_atomically(path, text)
        return text

    def override(self, assignments: Iterable[str]) -> Self:
        """Return a copy with `section.key=value` assignments applied in order; this config stays as it is.

        Values are YAML: `training.learning_rate=1e-4`, `training.betas=[0.9, 0.95]`, `rollout.max_images=null`. A
        mapping for a section changes the keys it names; below `environment.options` any key may be set. Raises
        `ConfigError` for what is not an assignment, for unknown keys, wrong values and combinations that cannot work.
        """
        values = self.to_dict()
        apply_overrides(type(self), values, assignments)
        return type(self).from_dict(values)

    def with_keys(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with `values` of dotted keys; what must hold between keys is not checked."""
        copy = self.model_copy(deep=True)
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            setattr(attrgetter(section)(copy), name, value)
        return copy

    @classmethod
    def reference(cls, options: Iterable[type[KeyedModel]] = (), arguments: Iterable[type[KeyedModel]] = ()) -> str:
        """Write every key with its type, default and meaning, as Markdown.

        `options`: sections of the options of environments (`uirl.environments.registry.option_sections()`), which are
        documented beside them. `arguments`: sections of options that only code gives (`EndpointOptions`,
        `AgentLoopOptions`).
        """
        return markdown(cls, options, arguments)


def load_config(path: str | os.PathLike[str] | None = None, overrides: Iterable[str] = ()) -> ConfigStore:
    """Read the config of a command line: a YAML file (None: the defaults) with `section.key=value` overrides on top.

    Keys need not fit together in the file alone, only with the overrides. Raises `ConfigError`.
    """
    values = {} if path is None else _read(path)
    with _naming(path):
        config = ConfigStore.build(values)
    return config.override(overrides)


def _read(path: str | os.PathLike[str]) -> Any:
    values = yaml_text.read(path)
    with _naming(path):
        return translate_file(values, ConfigStore.model_fields) if isinstance(values, dict) else values or {}


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Return a context whose `ConfigError`s begin with the name of the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
