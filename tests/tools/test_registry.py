"""ToolRegistry: which tools it takes, what it says of them, copies, resets and closing."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.tools.registered import Waiter, add, where
from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.tools import CalculatorTool, FunctionTool, LookupTool, SearchTool, Tool, ToolDefinition, ToolRegistry


class MyTool(Tool):
    """Doubles.

    More words.
    """

    def execute(self, param: str, times: int = 2) -> str:
        return param * times


class Counter(Tool):
    """Counts."""

    runs_inline = True

    def __init__(self) -> None:
        self.count = 0
        self.seeds: list[int | None] = []
        self.closed = 0

    def execute(self) -> int:
        self.count += 1
        return self.count

    def reset(self, seed: int | None = None) -> None:
        self.count = 0
        self.seeds.append(seed)

    def close(self) -> None:
        self.closed += 1


def test_a_class_defines_itself() -> None:
    registry = ToolRegistry()
    registry.register(MyTool())
    assert registry.execute_tool("my_tool", param="value") == (True, "valuevalue")
    definition = MyTool().definition
    assert (definition.name, definition.description) == ("my_tool", "Doubles.")
    assert definition.check({"param": "a"}) is None
    assert MyTool.definition is definition, "made once"


def test_a_given_definition_counts() -> None:
    class Given(Tool):
        definition = ToolDefinition("given", "Says.", {"type": "object", "properties": {"x": {"type": "integer"}}})

        def execute(self, x: int = 0) -> int:
            return x

    assert (Given.name, Given.description) == ("given", "Says.")
    assert ToolRegistry([Given()]).execute_tool("given", x=3) == (True, 3)


@pytest.mark.parametrize(
    ("properties", "required", "words"),
    [
        ({"y": {}}, ["y"], "'y', which .*execute cannot take"),
        ({"x": {}}, [], "needs 'x', which the definition of 'given' does not require"),
    ],
)
def test_a_definition_that_does_not_fit_is_found_at_once(
    properties: dict[str, Any], required: list[str], words: str
) -> None:
    class Given(Tool):
        definition = ToolDefinition("given", "", {"type": "object", "properties": properties, "required": required})

        def execute(self, x: int) -> int:
            return x

    with pytest.raises(ContractError, match=words):
        ToolRegistry([Given()])


def test_tools_by_name_in_order() -> None:
    registry = ToolRegistry([MyTool(), add])
    assert registry.names == ("my_tool", "add")
    assert (len(registry), "add" in registry, "sub" in registry) == (2, True, False)
    assert [tool.definition.name for tool in registry] == ["my_tool", "add"]
    assert [schema["function"]["name"] for schema in registry.schemas()] == ["my_tool", "add"]
    with pytest.raises(ConfigError, match="did you mean 'add'"):
        registry["ad"]


def test_the_list_for_a_system_prompt() -> None:
    def paint(colour: Enum("Colour", {"R": "red"}), sizes: list[int], at: int | None = None) -> None: ...  # type: ignore[valid-type]

    registry = ToolRegistry([add, FunctionTool(where)])
    registry.register(ToolRegistry([paint])["paint"])
    assert registry.describe() == (
        "- add(a: integer, b: integer (optional)): Adds two numbers.\n"
        "    a: The first.\n"
        "- where(): On which thread.\n"
        "- paint(colour: 'red', sizes: list of integer, at: integer | null (optional))"
    )


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (add, "registered already"),
        (MyTool, r"the class MyTool; expected an instance: register\(MyTool\(\.\.\.\)\)"),
        ("add", "expected a Tool or a function"),
        (lambda x: x, "name of letters|no type hint"),
        (FunctionTool(where, timeout=0), "expected positive seconds"),
        (FunctionTool(where, max_result_chars=0), "expected at least 1"),
    ],
)
def test_what_cannot_be_registered(tool: Any, words: str) -> None:
    with pytest.raises((ConfigError, ContractError), match=words):
        ToolRegistry([add]).register(tool)


def test_spawned_tools_are_independent() -> None:
    registry = ToolRegistry([Counter(), add])
    other = registry.spawn()
    assert [registry.execute_tool("counter")[1] for _ in range(3)] == [1, 2, 3]
    assert other.execute_tool("counter") == (True, 1)
    assert other.names == registry.names


def test_a_bound_method_is_spawned_with_its_object() -> None:
    class Basket:
        def __init__(self) -> None:
            self.items: list[str] = []

        def put(self, item: str) -> list[str]:
            self.items.append(item)
            return self.items

    registry = ToolRegistry([Basket().put])
    other = registry.spawn()
    registry.execute_tool("put", item="apple")
    assert other.execute_tool("put", item="pear") == (True, ["pear"])


class Shop:
    """What environments do: they hold tools that act on them."""

    def __init__(self) -> None:
        self.sold: list[str] = []
        self.tools = ToolRegistry([self.sell, SearchTool(["a", "b"]), LookupTool({}), CalculatorTool(), Waiter()])

    def sell(self, item: str) -> int:
        self.sold.append(item)
        return len(self.sold)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda shop: pickle.loads(pickle.dumps(shop))])
def test_an_environment_with_tools_is_copied_whole(copied: Any) -> None:
    shop = Shop()
    assert shop.tools.execute_tool("sell", item="apple") == (True, 1)
    shop.tools.execute_tool("waiter")  # by now a thread runs, which no copy takes along
    other = copied(shop)
    assert other.tools.execute_tool("sell", item="pear") == (True, 2)
    assert (shop.sold, other.sold) == (["apple"], ["apple", "pear"])
    assert other.tools.schemas() == shop.tools.schemas()
    assert other.tools.execute_tool("waiter")[0]
    for one in (shop, other):
        asyncio.run(one.tools.close())


def test_a_tool_that_cannot_be_copied_is_told_what_to_do() -> None:
    class Locked(Tool):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def execute(self) -> None: ...

    with pytest.raises(ContractError, match=r"'locked' cannot be copied: .*; write spawn\(\)"):
        ToolRegistry([Locked()]).spawn()


def test_reset_reaches_every_tool() -> None:
    registry = ToolRegistry([Counter()])
    registry.execute_tool("counter")
    registry.reset(7)
    assert registry.execute_tool("counter") == (True, 1)
    assert registry["counter"].seeds == [7]  # type: ignore[attr-defined]


def test_a_reset_that_fails_is_ours() -> None:
    class Broken(Counter):
        def reset(self, seed: int | None = None) -> None:
            raise OSError("no disk")

    with pytest.raises(EnvironmentFailure, match="tool 'broken': reset raised OSError: no disk"):
        ToolRegistry([Broken()]).reset()


async def test_close_goes_on_after_a_tool_that_fails() -> None:
    class Broken(Counter):
        async def close(self) -> None:  # type: ignore[override]
            raise OSError("stuck")

    good = Counter()
    registry = ToolRegistry([Broken(), good])
    with pytest.raises(EnvironmentFailure, match="tool 'broken': close raised OSError: stuck"):
        await registry.close()
    assert good.closed == 1


def test_the_room_loads_neither_torch_nor_optional_packages() -> None:
    code = (
        "import sys, uirl.tools as tools; [getattr(tools, name) for name in tools.__all__]; "
        "tools.ToolRegistry([tools.CalculatorTool()]).execute_tool('calculator', expression='1'); "
        "print([name for name in ('torch', 'transformers', 'mcp', 'httpx2', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.strip() == "[]"
