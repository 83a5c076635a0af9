"""Names that load when they are first used."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module

import pytest

from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.runtime.lazy import lazy_exports, load_class


def test_a_name_comes_from_its_home_and_another_is_told_with_the_package() -> None:
    load, names = lazy_exports("some.package", {"collections": "OrderedDict lost", "json": "dumps"})
    assert names == ["OrderedDict", "dumps", "lost"]
    assert load("OrderedDict") is import_module("collections").OrderedDict
    with pytest.raises(AttributeError, match=r"module 'some\.package' has no attribute 'other'"):
        load("other")
    with pytest.raises(AttributeError, match="'collections' has no attribute 'lost'"):
        load("lost")


@pytest.mark.parametrize(
    "package",
    ["uirl.environments", "uirl.environments.data_entry", "uirl.environments.screen", "uirl.parsers", "uirl.tools"],
)
def test_every_name_of_a_package_has_a_home(package: str) -> None:
    module = import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
    source = ast.parse(inspect.getsource(module))
    shown = [one.body for one in source.body if isinstance(one, ast.If)]
    for_type_checkers = {
        (imported.module, name.name)
        for body in shown
        for imported in body
        if isinstance(imported, ast.ImportFrom)
        for name in imported.names
    }
    assert sorted(name for _, name in for_type_checkers) == module.__all__
    for home, name in for_type_checkers:
        assert getattr(import_module(str(home)), name) is getattr(module, name)
    with pytest.raises(AttributeError, match=f"module {package!r} has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


class Half(BaseEnvironment):
    """Not all of an environment."""

    def step(self, action: str) -> str:
        return action


def test_a_class_that_lacks_methods_is_refused_by_their_names() -> None:
    with pytest.raises(ConfigError, match=r"^environment: Half has no get_state_description, reset; expected"):
        load_class(f"{__name__}:Half", BaseEnvironment, "environment")  # type: ignore[type-abstract]
