"""The table of environments: names, options and what is said about wrong ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from uirl.environments import ENVIRONMENTS, BaseEnvironment, create_environment, environment_class
from uirl.environments.desktop import environment as desktop
from uirl.errors import ConfigError


class Mine(BaseEnvironment):
    """A user's class with a constructor of its own."""

    def __init__(self, level: int, *, speed: float = 1.0) -> None:
        super().__init__()
        self.level, self.speed = level, speed

    def reset(self) -> str:
        return ""

    def step(self, action: Any) -> Any:
        return "", 0.0, True, {}

    def get_state_description(self) -> str:
        return ""


class Handing(Mine):
    """Hands on what it does not know."""

    def __init__(self, **options: Any) -> None:
        super().__init__(level=1, **options)


class Anything(Mine):
    """Takes every option."""

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(1)
        self.config, self.options = config, options


MINE, ANYTHING = f"{Mine.__module__}:Mine", f"{Mine.__module__}:Anything"


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_name_loads_an_environment_that_takes_a_config(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desktop, "find_programs", list)  # programs of Debian, which only `make test-real` installs
    cls = environment_class(name)
    assert issubclass(cls, BaseEnvironment)
    if name not in ("gymnasium", "mixture", "desktop"):  # which need to be told which ones, and programs of Debian
        assert create_environment(name, config="section").config == "section"


def test_options_and_config_reach_the_class() -> None:
    env = create_environment("guess_number", {"n": 15, "guesses": 5}, config="section")
    assert (env.n, env.max_turns, env.config) == (15, 5, "section")
    mine = create_environment(MINE, {"level": 2}, config="section")
    assert (mine.level, mine.speed, mine.config) == (2, 1.0, None)
    anything = create_environment(ANYTHING, {"colour": "red"}, config="section")
    assert (anything.options, anything.config) == ({"colour": "red"}, "section")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gues_number", {}, "did you mean 'guess_number'?"),
        ("zzzzzz", {}, "known: " + ", ".join(sorted(ENVIRONMENTS))),
        ("guess_number", {"guesess": 3}, "no option 'guesess'; did you mean 'guesses'?"),
        ("guess_number", {"config": 3}, "no option 'config'"),
        ("guess_number", {"n": 0}, "guess_number.n: got 0, expected whole number >= 1"),
        ("guess_number", {"n": True}, "guess_number.n: got True, expected whole number >= 1"),
        ("guess_number", {"demonstrator": "wise"}, "got 'wise'"),
        (MINE, {}, "missing a required argument: 'level'; options: level, speed"),
        ("no.such.module:Class", {}, "No module named 'no'"),
        (f"{Mine.__module__}:Yours", {}, "cannot be loaded"),
        (":Class", {}, "cannot be loaded: Empty module name; expected 'package.module:Class'"),
        (f"{__name__}:Handing", {"n": 7}, "has no option 'n': it hands it on to Mine"),
        ("uirl.types:Task", {}, "expected a subclass of uirl.BaseEnvironment"),
    ],
)
def test_wrong_names_and_options_are_explained(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_environment(name, options)
    assert words in str(caught.value)


def test_the_table_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from uirl.environments import ENVIRONMENTS, check_environment, create_environment, EnvironmentSession\n"
        "create_environment('guess_number')\n"
        "heavy = {'torch', 'numpy', 'PIL', 'gymnasium', 'websockets', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SERVER = {"url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("name", "options", "package"),
    [("miniwob", {}, "miniwob"), ("gymnasium", {"env": "CartPole-v1"}, "gymnasium"), ("openenv", SERVER, "websockets")],
)
def test_a_missing_package_is_found_before_a_run_has_begun(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match="pip install"):
        create_environment(name, options)
