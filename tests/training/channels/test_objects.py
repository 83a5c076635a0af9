"""What a person's code hands over goes to other processes; what cannot go is named."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import pytest

from uirl.environments.desktop import environment as desktop
from uirl.environments.registry import ENVIRONMENTS, create_environment
from uirl.environments.remote.client.native import NativeRemoteEnvironment
from uirl.errors import ConfigError
from uirl.training.channels.objects import pack, unpack

LOCK = threading.Lock()


class Client:
    """Holds a lock, as what talks to servers does."""

    def __init__(self) -> None:
        self.busy = {"lock": threading.Lock()}

    def ask(self, trajectory: Any) -> float:
        return 1.0


CLIENT = Client()


class Leaves(Client):
    """Leaves it behind, and makes another."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def uses(client: Any) -> Any:
    return lambda trajectory: client.ask(trajectory)


def test_closures_come_as_they_are() -> None:
    number = 3
    made = unpack(pack({"a": lambda x: x + number, "b": functools.partial(max, 5)}))
    assert made["a"](4) == 7
    assert made["b"](2) == 5
    assert unpack(pack({"c": uses(Leaves())}))["c"](None) == 1.0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Client(), r"thing\.busy\['lock'\] is a _thread\.lock"),
        (uses(Client()), r"thing's variable client\.busy\['lock'\] is a _thread\.lock"),
        (
            lambda trajectory, client=CLIENT: client.ask(trajectory),
            r"thing's default 0\.busy\['lock'\] is a _thread\.lock",
        ),
        (Client().ask, r"thing\.__self__\.busy\['lock'\] is a _thread\.lock"),
        (functools.partial(uses, Client()), r"thing\.args\[0\]\.busy\['lock'\] is a _thread\.lock"),
        ([0, {"x": Refuses()}], r"thing\[1\]\['x'\] is a tests\.training\.channels\.test_objects\.Refuses"),
        (sys._getframe(), r"thing is a builtins\.frame"),
    ],
)
def test_the_part_that_no_other_process_can_have_is_named(value: Any, path: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{path}, and actors in other processes cannot have a copy.*__getstate__"):
        pack({"fine": 1, "thing": value})


def test_a_global_of_the_script_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "LOCK": LOCK}
    exec("def judge(t):\n    return [LOCK for _ in (1,)]", scope)
    with pytest.raises(ConfigError, match=r"the reward's variable LOCK is a _thread\.lock"):
        pack({"the reward": scope["judge"]})


def test_rings_are_no_trouble() -> None:
    one, other = Client(), Client()
    one.other, other.other = other, one  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"is a _thread\.lock"):
        pack({"thing": one})


def test_what_this_machine_has_no_module_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack({"thing": Leaves()})
    monkeypatch.delattr(sys.modules[__name__], "Leaves")
    with pytest.raises(ConfigError, match=r"cannot make what was handed over in code.*Leaves.*working-dir"):
        unpack(data)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_that_comes_with_the_package_may_be_an_object(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desktop, "find_programs", list)  # programs of Debian, which only `make test-real` installs
    needed: dict[str, dict[str, Any]] = {
        "gymnasium": {"env": "CartPole-v1"},
        "miniwob": {"task": "click-test"},
        "mixture": {"members": [{"name": "errands"}, {"name": "guess_number"}]},
    }
    environment = create_environment(name, needed.get(name, {}))
    made = unpack(pack({"environment": environment}))["environment"]
    assert type(made) is type(environment)


async def test_a_copy_of_a_remote_environment_knows_the_servers_and_has_no_session_there() -> None:
    environment = NativeRemoteEnvironment(urls=["http://one:1", "http://two:2"], fallback_urls=["http://three:3"])
    environment.pool.take_out(await environment.pool.take(), "broken")
    made = unpack(pack({"environment": environment}))["environment"].pool
    assert [(server.url, server.fallback) for server in made.servers] == [
        (server.url, server.fallback) for server in environment.pool.servers
    ]
    assert [server.active for server in made.servers] == [0, 0, 0]
    assert not any(server.why for server in made.servers)
    assert await made.take(timeout=1.0)
