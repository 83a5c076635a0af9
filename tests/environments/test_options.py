"""Options as typed sections: one class declares them, and the constructor, errors and documentation come from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from uirl.config.section import Count
from uirl.environments.browser.environment import PageOptions
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions
from uirl.environments.registry import ENVIRONMENTS, create_environment, option_names, option_sections
from uirl.environments.screen import ScreenEnvironment
from uirl.environments.screen.options import ScreenOptions
from uirl.errors import ConfigError


class RoomOptions(EnvironmentOptions):
    """A room."""

    key = "room"
    renamed: ClassVar[Mapping[str, str]] = {"tiles": "size"}

    size: Count = 5
    """Tiles along each side."""
    colour: str = "white"
    """Of the walls."""


class Room(ConfigurableEnvironment):
    options_class = RoomOptions
    options: RoomOptions

    def reset(self) -> str:
        return f"{self.options.size} x {self.options.size}, {self.options.colour}"

    def step(self, action: Any) -> Any:
        return "", 0.0, True, {}

    def get_state_description(self) -> str:
        return ""


class House(Room):
    """Has a parameter of its own, and passes the options on."""

    def __init__(self, config: Any = None, *, floors: int = 1, **keys: Any) -> None:
        super().__init__(config, **keys)
        self.floors = floors


ROOM, HOUSE = f"{__name__}:Room", f"{__name__}:House"


def test_options_are_keywords_a_mapping_or_the_section() -> None:
    assert Room().options == RoomOptions(size=5)
    assert Room(size=7).options.size == 7
    assert Room(None, {"size": 7}).options.size == 7
    assert Room(options=RoomOptions(size=7)).reset() == "7 x 7, white"
    assert Room(None, RoomOptions(size=7, colour="red"), size=8).reset() == "8 x 8, red"
    assert create_environment(ROOM, {"size": 3}, config="section").reset() == "3 x 3, white"
    house = create_environment(HOUSE, {"size": 3, "floors": 2}, config="section")
    assert (house.floors, house.options.size, house.config) == (2, 3, "section")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sise": 3}, "environment 'room' has no option 'sise'; did you mean 'size'?"),
        ({"tiles": 3}, "environment 'room' has no option 'tiles'; did you mean 'size'?"),
        ({"flors": 3}, "environment 'room' has no option 'flors'; did you mean 'floors'?"),
        ({"config": 3}, "environment 'room' has no option 'config'"),
        ({"options": {}}, "environment 'room' has no option 'options'"),
        ({"size": 0}, "room.size: got 0, expected whole number >= 1"),
        ({"size": 0, "colour": 3}, "room.size: got 0, expected whole number >= 1\nroom.colour: got 3, expected text"),
    ],
)
def test_what_does_not_fit_is_said_with_the_nearest_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_environment(HOUSE, options)
    assert told in str(caught.value)


def test_the_same_is_said_where_the_class_is_called() -> None:
    for keys, told in (({"sise": 3}, "did you mean 'size'"), ({"size": "3"}, "room.size: got '3'")):
        with pytest.raises(ConfigError, match=told):
            Room(**keys)


def test_an_option_cannot_be_changed_where_nothing_would_read_it() -> None:
    env = ScreenEnvironment(size=84)
    with pytest.raises(ConfigError, match=r"screen\.size is read when the environment is made"):
        env.options.size = 56  # type: ignore[misc]
    assert env.options.size == 84


def test_a_section_of_another_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="environment 'screen' has no option 'zoom'"):
        ScreenEnvironment(options=PageOptions(zoom=2.0))


def test_options_of_a_run_are_written_and_read_again() -> None:
    options = ScreenOptions(size=84, palette=["red", "blue"], buttons=2)
    assert ScreenOptions.build(options.to_dict()) == options


def test_every_named_environment_declares_its_options_once() -> None:
    sections = {section.key: section for section in option_sections()}
    assert sections.keys() <= ENVIRONMENTS.keys()
    for section in sections.values():
        assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_a_class_that_takes_any_keyword_takes_any_option() -> None:
    from tests.environments.test_registry import Anything, Mine

    assert option_names(Anything) is None
    assert option_names(Mine) == {"level", "speed"}
    assert option_names(House) == {"floors", "size", "colour"}
