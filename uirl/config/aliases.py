"""Aliases of config keys: those of the YAML in the project's founding documents, translated when it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from uirl.errors import ConfigError

_LOG = logging.getLogger(__name__)
UI_SERVERS = "ui_verifiers"
UPDATES_PER_EPOCH = 10
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name for one or several keys."""

    meaning: str
    """What it sets, for the documentation."""
    translate: Callable[[Any, str], dict[str, Any]]
    """(its value, the name of the environment) -> our keys and their values. Raises ConfigError for a value that
    cannot be honoured."""


def _same(key: str) -> Callable[[Any, str], dict[str, Any]]:
    return lambda value, environment: {key: value}


def _servers(urls: Any, environment: str) -> dict[str, Any]:
    if not isinstance(urls, list) or not urls:
        raise ConfigError(f"environment.ui_env_urls: got {urls!r:.80}, expected a list of addresses")
    return {"environment.name": UI_SERVERS, "environment.options.urls": urls, "rollout.parallel": len(urls)}


def _format(name: Any, environment: str) -> dict[str, Any]:
    if environment != UI_SERVERS:
        return {"environment.options.action_format": name}
    if name != "json":
        raise ConfigError(
            f"model.action_format: got {name!r:.80}, expected 'json': the environment says how an action is written, "
            "and UI servers take JSON; of the others, those with an option `action_format` let you choose"
        )
    return {}


def _steps(count: Any, environment: str) -> dict[str, Any]:
    limits = {"rollout.max_turns": count}
    return limits | {"environment.options.max_turns": count} if environment == UI_SERVERS else limits


def _updates(count: Any, environment: str) -> dict[str, Any]:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"training.num_iterations: got {count!r:.80}, expected whole number >= 1")
    each = 1 if count % UPDATES_PER_EPOCH else UPDATES_PER_EPOCH
    return {"training.num_epochs": count // each, "training.num_iters_per_epoch": each}


ALIASES: dict[str, Alias] = {
    "model.name": Alias("`model.model_name`", _same("model.model_name")),
    "model.action_format": Alias(
        "`environment.options.action_format`; UI servers take 'json' alone, anything else is refused", _format
    ),
    "environment.dataset": Alias("`environment.tasks`", _same("environment.tasks")),
    "environment.eval_dataset": Alias("`environment.eval_tasks`", _same("environment.eval_tasks")),
    "environment.ui_env_urls": Alias(
        "`environment.options.urls` of the environment 'ui_verifiers' (or of the one that is named), and one episode "
        "at a time per address: `rollout.parallel`",
        _servers,
    ),
    "actor.session_type": Alias("`environment.options.session_type`", _same("environment.options.session_type")),
    "actor.task_prompt": Alias("`environment.options.prompt`", _same("environment.options.prompt")),
    "actor.max_steps_per_episode": Alias(
        "`rollout.max_turns`, and `environment.options.max_turns` of UI servers", _steps
    ),
    "actor.num_actors": Alias("`rollout.parallel`: an actor plays one episode at a time", _same("rollout.parallel")),
    "training.num_iterations": Alias(
        "all updates of the run: `training.num_epochs` epochs of `training.num_iters_per_epoch` updates, ten where "
        "that divides them",
        _updates,
    ),
}
"""A key of the documents -> what it means here."""
SECTIONS = {key.partition(".")[0] for key in ALIASES}
FOLLOWING = {"environment.ui_env_urls": ("environment.name", "rollout.parallel")}
"""Alias -> keys that follow from its value, unless they are set."""


def translate_file(values: dict[str, Any], sections_of_tree: Iterable[str]) -> dict[str, Any]:
    """Return `values` of a file with every alias replaced by the keys it stands for. One log line names what was
    translated. `sections_of_tree`: the names of our sections. Raises ConfigError for an alias beside the key it stands
    for, and for a value that cannot be honoured."""
    sections = {name: dict(part) if isinstance(part, dict) else part for name, part in values.items()}
    aliased = {alias: value for alias in ALIASES if (value := _get(sections, alias)) is not _ABSENT}
    for alias in aliased:
        section, _, name = alias.partition(".")
        del sections[section][name]
    for name in SECTIONS.difference(sections_of_tree):
        left = sections.pop(name, None)
        if isinstance(left, dict) and left:
            raise ConfigError("\n".join(unknown_alias(f"{name}.{key}") for key in left))
        if left is not None and not isinstance(left, dict):
            raise ConfigError(f"{name}: got {left!r:.80}, expected mapping of keys")
    if not aliased:
        return sections
    named = _get(sections, "environment.name")
    unnamed = UI_SERVERS if "environment.ui_env_urls" in aliased else ""
    environment = unnamed if named is _ABSENT else named or unnamed
    translated: dict[str, tuple[str, Any]] = {}
    for alias, value in aliased.items():
        for key, our_value in ALIASES[alias].translate(value, str(environment)).items():
            if _get(sections, key) is not _ABSENT:
                if key in FOLLOWING.get(alias, ()):
                    continue
                raise ConfigError(f"{alias} and {key} say the same thing; keep one of them")
            translated[key] = (alias, our_value)
    for key, (_, our_value) in translated.items():
        _put(sections, key, our_value)
    _LOG.warning("read %s", "; ".join(f"{alias} as {key}={v!r:.80}" for key, (alias, v) in translated.items()))
    return sections


def unknown_alias(key: str) -> str:
    """Write the message for an unknown key of a section that only aliases have."""
    near = get_close_matches(key, ALIASES, n=1, cutoff=0.6)
    section = key.partition(".")[0]
    in_section = ", ".join(alias for alias in ALIASES if alias.startswith(f"{section}."))
    return f"{key} is not a config key; " + (f"did you mean {near[0]!r}?" if near else f"known: {in_section}")


def _get(values: Any, key: str) -> Any:
    """Return the value of a dotted key; `_ABSENT` where there is none."""
    for part in key.split("."):
        values = values.get(part, _ABSENT) if isinstance(values, dict) else _ABSENT
    return values


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = values.get(part)
        values[part] = dict(inner) if isinstance(inner, dict) else {}
        values = values[part]
    values[last] = value
