"""Errors of the config in words: which key, what it got, what it expects, which key was probably meant."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from uirl.config.vocabulary import WORDS
from uirl.errors import ConfigError

if TYPE_CHECKING:
    from uirl.config.section import Section

FOREIGN_NAMES = {
    "model.name": "model.model_name",
    "lr": "training.learning_rate",
    "gae_lambda": "training.lam",
    "lambda": "training.lam",
    "discount": "training.gamma",
    "clip_epsilon": "training.clip_ratio",
    "clip_eps": "training.clip_ratio",
    "eps_low": "training.clip_ratio_low",
    "clip_eps_low": "training.clip_ratio_low",
    "eps_high": "training.clip_ratio_high",
    "clip_eps_high": "training.clip_ratio_high",
    "num_generations": "training.group_size",
    "num_iterations": "training.num_iterations",
    "ppo_epochs": "training.update_epochs",
    "grad_clip": "training.max_grad_norm",
    "vf_coef": "training.value_coef",
    "ent_coef": "training.entropy_coef",
    "max_new_tokens": "inference.max_tokens",
    "max_response_length": "inference.max_tokens",
    "max_model_len": "inference.max_context",
    "max_steps_per_episode": "rollout.max_turns",
    "max_steps": "rollout.max_turns",
    "env_name": "environment.name",
    "env_id": "environment.name",
    "torch_dtype": "model.dtype",
    "lora_config": "model.lora",
    "save_freq": "checkpoint.save_interval",
    "save_steps": "checkpoint.save_interval",
    "save_total_limit": "checkpoint.keep_last_n",
    "experiment_name": "logging.run_name",
}
"""What other frameworks call our keys, bare or dotted: not accepted, but the error then names the right one."""


def config_error(section: type[Section], error: ValidationError, values: Any) -> ConfigError:
    """One `ConfigError` that lists every problem pydantic found when it built `section` from `values`."""
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_context=False):
        owner, name, rest = _locate(section, problem["loc"])
        if problem["type"] in ("extra_forbidden", "invalid_key"):
            lines.setdefault(dotted(owner.key, str(rest[0] if rest else name)), unknown_key(owner, rest[0]))
        else:
            key, got = _value_at(section, owner, name, rest, values)
            lines.setdefault(dotted(owner.key, name), f"{key}: got {got!r:.200}, expected {_expected(owner, name)}")
    return ConfigError("\n".join(lines.values()))


def unknown_key(section: type[Section], name: object) -> str:
    """The message for a key that `section` does not have."""
    key = dotted(section.key, str(name))
    return f"{key} is not a config key; {_probably_meant(section, str(name))}"


def dotted(*parts: str) -> str:
    """The parts that are not empty, joined by dots."""
    return ".".join(part for part in parts if part)


def nested_section(field: FieldInfo) -> type[Section] | None:
    """The section class of a field; None: the field is a value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None  # type: ignore[return-value]


def walk(section: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, field) of every key below `section`, nested sections included, in the order of the tree."""
    for name, field in section.model_fields.items():
        yield dotted(section.key, name), field
        inner = nested_section(field)
        if inner is not None:
            yield from walk(inner)


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in the words of a person who writes YAML: 'number > 0', "'a' or 'b'", 'list of text'."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [m for extra in args[1:] for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return describe(args[0], [*bounds, *metadata])
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is tuple:
        return "[" + ", ".join(describe(arg) for arg in args) + "]"
    if origin is list:
        return f"list of {describe(args[0])}"
    return _WORDS.get(origin or annotation, "mapping of keys") + _bounds(metadata)


_WORDS = {
    float: "number",
    int: "whole number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    dict: "mapping of plain data (text keys; text, finite numbers, true/false, null, lists, mappings)",
}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def _bounds(metadata: Iterable[Any]) -> str:
    found = [f" {sign} {getattr(m, name)}" for m in metadata for name, sign in _SIGNS.items() if hasattr(m, name)]
    patterns = [f" like {m.pattern}" for m in metadata if getattr(m, "pattern", None)]
    return " and".join(found) + "".join(patterns)


def _expected(section: type[Section], name: str) -> str:
    if name not in section.model_fields:
        return "a mapping of config keys"
    field = section.model_fields[name]
    return describe(field.annotation, field.metadata)


def _locate(section: type[Section], loc: tuple[Any, ...]) -> tuple[type[Section], str, tuple[Any, ...]]:
    """(section that owns the problem, its field or '', what is left of `loc` below that field)."""
    for depth, part in enumerate(loc):
        field = section.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            return section, "", loc[depth:]
        inner = nested_section(field)
        if inner is None or depth == len(loc) - 1:
            return section, part, loc[depth + 1 :]
        section = inner
    return section, "", ()


def _value_at(
    root: type[Section], owner: type[Section], name: str, rest: Iterable[Any], values: Any
) -> tuple[str, Any]:
    """(dotted key, value there), as deep into a free mapping or list as the problem is."""
    path = owner.key.removeprefix(root.key).strip(".")
    for part in [*path.split("."), name] if path else [name]:
        if isinstance(values, Mapping):
            values = values.get(part)
    key = dotted(owner.key, name) or "the config"
    for part in rest:
        if isinstance(values, Mapping) and part in values:
            key, values = f"{key}.{part}", values[part]
        elif isinstance(values, list | tuple) and isinstance(part, int) and part < len(values):
            key, values = f"{key}[{part}]", values[part]
    return key, values


def _probably_meant(section: type[Section], name: str) -> str:
    from uirl.config.store import ConfigStore

    known = [key for key, _ in walk(ConfigStore)]
    own = {field: dotted(section.key, field) for field in section.model_fields}
    words = [*WORDS, *{word.partition(".")[0] for word in WORDS}]
    near = {word.rpartition(".")[2]: word for word in words if word.rpartition(".")[0] == section.key} | own
    full, last = dotted(section.key, name), name.rpartition(".")[2]
    above = {full.rsplit(".", depth)[0] for depth in range(1, full.count(".") + 1)}
    meant = (
        [FOREIGN_NAMES[foreign] for foreign in (full, last) if foreign in FOREIGN_NAMES][:1]
        or [key for key in known if key.rpartition(".")[2] == last]
        or [near[field] for field in get_close_matches(name, near, n=1, cutoff=0.7)]
        or get_close_matches(full, [key for key in known if key not in above], n=1, cutoff=0.7)
    )
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else "known: " + ", ".join(own.values())
