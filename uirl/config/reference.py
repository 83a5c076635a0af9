"""The page that documents every config key, made from the classes themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic.fields import FieldInfo

from uirl.config.aliases import ALIASES
from uirl.config.keys import KeyedModel, describe, nested_section

_HEAD = """# Configuration

Every key of `ConfigStore`, written by `ConfigStore.reference()`; do not edit by hand. A YAML file names the keys it
changes; on the command line the same keys are `section.key=value`. Unknown keys, values of another type and
combinations that cannot work are errors that say what to do. `null` means what the text of the key says.
"""


_OPTIONS = """
## Options of environments

The keys below `environment.options`, by environment. In code they are keyword arguments of the class.
"""

_ARGUMENTS = """
## Options in code

Options of classes that no YAML names: keyword arguments of `ModelEndpoint` and `MobileWorldAgentLoop`.
"""


def markdown(
    tree: type[KeyedModel], options: Iterable[type[KeyedModel]] = (), arguments: Iterable[type[KeyedModel]] = ()
) -> str:
    """Write the reference of all sections below `tree`, one table each, of the `options` of environments and of those
    that are `arguments` of classes."""
    parts = [_HEAD, *map(section_table, _sections(tree))]
    for head, sections in ((_OPTIONS, options), (_ARGUMENTS, arguments)):
        tables = [section_table(section, "###") for section in sections]
        parts += [head, *tables] if tables else []
    return "".join([*parts, _aliases()])


def _aliases() -> str:
    rows = [f"| `{key}` | {_cell(alias.meaning)} |" for key, alias in ALIASES.items()]
    head = (
        "\n## Aliases\n\nThe keys of earlier config files are accepted: in files and on the command line they are "
        "translated into ours, and\none line of the log says so. Together with our own key of the same meaning they "
        "are an error.\n\n| key | is read as |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _sections(tree: type[KeyedModel]) -> list[type[KeyedModel]]:
    inner = [section for field in tree.model_fields.values() if (section := nested_section(field)) is not None]
    return [deeper for section in inner for deeper in (section, *_sections(section))]


def section_table(section: type[KeyedModel], level: str = "##") -> str:
    """Write a section as a Markdown table below a heading: key, kind of value, default and meaning."""
    rows = [_row(name, field) for name, field in section.model_fields.items() if nested_section(field) is None]
    about = " ".join((section.__doc__ or "").split())
    head = f"\n{level} {section.key or section.__name__}\n\n{about}\n"
    return head + "\n| key | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() else f"`{json.dumps(field.get_default(call_default_factory=True))}`"
    meaning = (field.description or "").replace("None", "null")
    return f"| `{name}` | {_cell(describe(field.annotation, field.metadata))} | {default} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
