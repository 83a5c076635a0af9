"""Other words for our keys: those of the YAML that the project's founding documents show, translated on reading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from uirl.errors import ConfigError

_LOG = logging.getLogger(__name__)
UI_SERVERS = "ui_verifiers"
UPDATES_PER_EPOCH = 10


@dataclass(frozen=True, slots=True)
class Word:
    """One key of another vocabulary."""

    means: str
    """What it sets, for the documentation."""
    read: Callable[[Any, str], dict[str, Any]]
    """(its value, the name of the environment) -> our keys and their values. Raises ConfigError for a value that
    cannot be honoured."""


def _servers(urls: Any, world: str) -> dict[str, Any]:
    if not isinstance(urls, list) or not urls:
        raise ConfigError(f"environment.ui_env_urls: got {urls!r:.80}, expected a list of addresses")
    return {"environment.name": UI_SERVERS, "environment.options.urls": urls, "rollout.parallel": len(urls)}


def _format(name: Any, world: str) -> dict[str, Any]:
    if world != UI_SERVERS:
        return {"environment.options.action_format": name}
    if name != "json":
        raise ConfigError(
            f"model.action_format: got {name!r:.80}, expected 'json': the environment says how an action is written, "
            "and UI servers take JSON; of the others, those with an option `action_format` let you choose"
        )
    return {}


def _steps(count: Any, world: str) -> dict[str, Any]:
    limits = {"rollout.max_turns": count}
    return limits | {"environment.options.max_turns": count} if world == UI_SERVERS else limits


def _updates(count: Any, world: str) -> dict[str, Any]:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"training.num_iterations: got {count!r:.80}, expected whole number >= 1")
    each = 1 if count % UPDATES_PER_EPOCH else UPDATES_PER_EPOCH
    return {"training.num_epochs": count // each, "training.num_iters_per_epoch": each}


WORDS: dict[str, Word] = {
    "model.name": Word("`model.model_name`", lambda value, world: {"model.model_name": value}),
    "model.action_format": Word(
        "`environment.options.action_format`; UI servers take 'json' alone, anything else is refused", _format
    ),
    "environment.ui_env_urls": Word(
        "`environment.options.urls` of the environment 'ui_verifiers' (or of the one that is named), and one episode "
        "at a time per address: `rollout.parallel`",
        _servers,
    ),
    "actor.session_type": Word(
        "`environment.options.session_type`", lambda value, world: {"environment.options.session_type": value}
    ),
    "actor.task_prompt": Word(
        "`environment.options.prompt`", lambda value, world: {"environment.options.prompt": value}
    ),
    "actor.max_steps_per_episode": Word(
        "`rollout.max_turns`, and `environment.options.max_turns` of UI servers", _steps
    ),
    "actor.num_actors": Word(
        "`rollout.parallel`: an actor plays one episode at a time", lambda value, world: {"rollout.parallel": value}
    ),
    "training.num_iterations": Word(
        "all updates of the run: `training.num_epochs` epochs of `training.num_iters_per_epoch` updates, ten where "
        "that divides them",
        _updates,
    ),
}
"""A key of the documents -> what it means here."""
SECTIONS = {key.partition(".")[0] for key in WORDS}
FOLLOWING = {"environment.ui_env_urls": ("environment.name", "rollout.parallel")}
"""Word -> keys that follow from its value, unless they are set."""


def translate_file(values: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a file in our words alone; what was translated is said once in the log. `known`: the sections of
    ours. Raises ConfigError for a word beside our own key of that meaning, and for a value that cannot be honoured."""
    sections = {name: dict(part) if isinstance(part, dict) else part for name, part in values.items()}
    found = {key: _take(sections, key) for key in WORDS if _holds(sections, key)}
    for name in SECTIONS - known.keys():
        left = sections.pop(name, None)
        if isinstance(left, dict) and left:
            raise ConfigError("\n".join(unknown_word(f"{name}.{key}") for key in left))
        if left is not None and not isinstance(left, dict):
            raise ConfigError(f"{name}: got {left!r:.80}, expected mapping of keys")
    if not found:
        return sections
    world = _get(sections, "environment.name") or (UI_SERVERS if "environment.ui_env_urls" in found else "")
    said: dict[str, tuple[str, Any]] = {}
    for word, value in found.items():
        for key, ours in WORDS[word].read(value, str(world)).items():
            if _holds(sections, key):
                if key in FOLLOWING.get(word, ()):
                    continue
                raise ConfigError(f"{word} and {key} say the same thing; keep one of them")
            said[key] = (word, ours)
    for key, (_, ours) in said.items():
        _put(sections, key, ours)
    _LOG.warning("read %s", "; ".join(f"{word} as {key}={ours!r:.80}" for key, (word, ours) in said.items()))
    return sections


def translate_key(key: str, value: Any, world: str) -> dict[str, Any]:
    """Our keys and their values for one word; `world`: the environment that is named. Raises ConfigError."""
    return WORDS[key].read(value, world)


def unknown_word(key: str) -> str:
    """The message for a key of a section that only the other vocabulary has."""
    near = get_close_matches(key, WORDS, n=1, cutoff=0.6)
    section = key.partition(".")[0]
    known = ", ".join(word for word in WORDS if word.startswith(f"{section}."))
    return f"{key} is not a config key; " + (f"did you mean {near[0]!r}?" if near else f"known: {known}")


def _holds(values: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def _get(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _take(values: dict[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return values[section].pop(name)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = values.get(part)
        values[part] = dict(inner) if isinstance(inner, dict) else {}
        values = values[part]
    values[last] = value
