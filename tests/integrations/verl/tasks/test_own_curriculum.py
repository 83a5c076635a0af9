"""A class of the user's own in the section `curriculum` of a file in verl's terms."""

from __future__ import annotations

import pytest

from uirl import ConfigError
from uirl.integrations.verl.tasks.own_curriculum import create_curriculum


class Mine:
    def __init__(self, pace: int = 1) -> None:
        self.pace = pace


def test_a_section_names_a_class_and_its_arguments() -> None:
    name = f"{__name__}:Mine"
    made = create_curriculum({"class": name, "pace": 3})
    assert isinstance(made, Mine)
    assert made.pace == 3
    assert create_curriculum({"class": name, "enabled": False}) is None
    assert create_curriculum({}) is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"class": f"{__name__}:Mine", "colour": "red"}, "colour"),
        ({"class": f"{__name__}:Mine", "enabled": "often"}, "expected true or false"),
        ({"class": "nowhere:Mine"}, "expected 'package.module:Class'"),
    ],
)
def test_what_cannot_be_meant_is_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_curriculum(section)
