"""Every command in a page or in the head of a config names a config that is there, with changes that it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from uirl import load_config

ROOT = Path(__file__).parents[1]
PLACES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("configs/*.yaml"), *ROOT.glob("benchmarks/*.md")]
COMMAND = re.compile(r"^(?:# +|\$ )?(uirl (?:train|evolve|eval|check) configs/\S+\.yaml.*)$", re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """(name of the file, command on one line)."""
    found = []
    for place in sorted(PLACES):
        text = re.sub(r"\\\n(?:#)?\s*", "", place.read_text())  # a line that goes on
        found += [(place.name, command) for command in COMMAND.findall(text)]
    return found


@pytest.mark.parametrize(("place", "command"), commands())
def test_a_command_has_a_config_that_it_can_read(place: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command, comments=True)[2:]
    changes = [word for word in words[1:] if re.match(r"[a-z_.]+\.[a-z_.]+=", word)]
    assert load_config(words[0], changes).environment.name
