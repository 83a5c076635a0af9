"""Names that load when they are first used."""

from __future__ import annotations

from importlib import import_module

import pytest

from uirl.runtime.lazy import lazy_exports


def test_a_name_comes_from_its_home_and_another_is_told_with_the_package() -> None:
    load = lazy_exports("some.package", {"OrderedDict": "collections", "lost": "collections"})
    assert load("OrderedDict") is import_module("collections").OrderedDict
    with pytest.raises(AttributeError, match=r"module 'some\.package' has no attribute 'other'"):
        load("other")
    with pytest.raises(AttributeError, match="'collections' has no attribute 'lost'"):
        load("lost")


@pytest.mark.parametrize(
    "package",
    [
        "uirl.environments",
        "uirl.environments.data_entry",
        "uirl.environments.screen",
        "uirl.parsers",
        "uirl.tools",
    ],
)
def test_every_name_of_a_package_has_a_home(package: str) -> None:
    module = import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module {package!r} has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
