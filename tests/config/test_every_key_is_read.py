"""No key that parses and does nothing."""

import re
from pathlib import Path

import uirl
from uirl.config import ConfigStore
from uirl.config.keys import nested_section, walk
from uirl.integrations.verl.mapping import MAPPED

ROOT = Path(uirl.__file__).parent


def leaves(model: type[ConfigStore]) -> set[str]:
    """`section.key` of every key that holds no further section."""
    return {key for key, field in walk(model) if nested_section(field) is None}


def test_every_key_is_read_somewhere() -> None:
    # a key counts as read where it is an attribute behind a dot, in the house or in a property or rule of the config
    # (verl's table names every key of ours, so there only those count that it maps; aliases of keys and the table
    # of unused ones read none)
    named = ("config/unused.py", "config/aliases.py", "integrations/verl/mapping.py")
    tables = [ROOT / name for name in named]
    text = "\n".join(path.read_text() for path in ROOT.rglob("*.py") if path not in tables)
    own = leaves(ConfigStore) - {*MAPPED}
    idle = {key for key in own if not re.search(rf"\.{key.rsplit('.', 1)[-1]}\b", text)}
    assert not idle
