"""Environments of OpenEnv that are servers of tools, and what is found out about a server before an episode begins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.environments.remote.openenv_stand_in import stand_in
from tests.environments.remote.running import running
from uirl.environments import EnvironmentSession
from uirl.environments.remote.client.openenv import OpenEnvEnvironment
from uirl.environments.remote.protocol.openenv import check_fields, read_tools
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.types import Action, ToolCall


async def test_tools_are_called_by_their_own_names() -> None:
    with running(stand_in(tools=True)) as url:
        session = EnvironmentSession(OpenEnvEnvironment(url=url))
        await session.reset(seed=1)
        said = await session.step(Action("", (ToolCall("echo_message", {"message": "hi"}, "c1"),)))
        (result,) = said.observation.tool_results
        assert (result.name, result.arguments, result.success, result.text, result.id) == (
            "echo_message", {"message": "hi"}, True, "hi", "c1",
        )  # fmt: skip
        assert said.observation.text == ""
        seen = (await session.step(Action.of("echo_message", message="look"))).observation
        assert (seen.tool_results[0].text, seen.images[0].open().size) == ("look", (8, 6))
        failed = (await session.step(Action.of("echo_message", message="fail"))).observation.tool_results[0]
        assert (failed.success, failed.text) == (False, "fail")
        unknown = (await session.step(Action.of("shout", message="x"))).observation.tool_results[0]
        assert (unknown.success, unknown.text) == (False, "Unknown tool: 'shout'")
        await session.close()


def test_the_tools_are_listed_for_the_chat_template() -> None:
    app = stand_in(tools=True)
    with running(app) as url:
        base = OpenEnvEnvironment(url=url, prompt="Be kind.")
        (schema,) = base.tool_schemas()
        assert schema["function"]["name"] == "echo_message"
        assert schema["function"]["parameters"]["required"] == ["message"]
        other = base.spawn()
        assert other.tool_schemas() == (schema,)
        assert app.state.asked == 1, "what one instance knows, all know"
        assert other.get_prompt_prefix() == "Be kind."
        told = OpenEnvEnvironment(url=url, prompt="Be kind.", describe="prompt")
        assert (told.tool_schemas(), told.callable_tools()) == ((), (schema,))
        assert told.get_prompt_prefix().startswith("Be kind.\n\n- echo_message(message: string): Echo back.\n\n")
        silent = OpenEnvEnvironment(url=url, describe="none")
        assert (silent.tool_schemas(), silent.callable_tools(), silent.get_prompt_prefix()) == ((), (), "")
        assert OpenEnvEnvironment(url=url, action_format="text").tool_schemas() == ()
    with running(stand_in()) as url:
        assert OpenEnvEnvironment(url=url).tool_schemas() == ()
    with pytest.raises(ConfigError, match=r"openenv\.describe: got 'loud', expected 'template' or 'prompt' or 'none'"):
        OpenEnvEnvironment(describe="loud")


@pytest.mark.parametrize(
    "said", [None, {"error": {"code": -32000}}, {"result": {"tools": ["a"]}}, {"result": {"tools": [{"name": "a b"}]}}]
)
def test_a_list_of_tools_that_is_none(said: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="here"):
        read_tools(said, "here")


async def test_a_server_without_a_state_before_its_reset_is_played() -> None:
    with running(stand_in(shy=True)) as url:
        session = EnvironmentSession(OpenEnvEnvironment(url=url))
        await session.reset(seed=1)
        assert (await session.step(Action.of("click"))).reward == 1.0
        await session.close()


@pytest.mark.parametrize("code", ["CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"])
async def test_a_session_that_is_not_there_is_refused(code: str) -> None:
    with running(stand_in(refusal=code)) as url:
        environment = OpenEnvEnvironment(url=url, acquire_timeout=0.1)
        with pytest.raises(EnvironmentFailure, match=code):
            await environment.reset()


async def test_a_format_that_does_not_fit_the_actions_is_found_at_reset() -> None:
    with running(stand_in(drops=True)) as url:
        for options, told in (
            ({"action_format": "text"}, r"text fields \[\]; it has the fields \['column'\]"),
            ({"action_format": "text", "text_field": "column"}, "the field 'column' of the server's actions takes no"),
            ({"action_format": "text", "text_field": "row"}, r"no field 'row' \(text_field\); expected one of"),
            ({"name_field": "row"}, r"no field 'row' \(name_field\); expected one of"),
            ({"name_field": "column"}, r"takes no text \(name_field\)"),
        ):
            with pytest.raises(ConfigError, match=told):
                await OpenEnvEnvironment(url=url, **options).reset()  # type: ignore[arg-type]
        environment = OpenEnvEnvironment(url=url)
        await environment.reset()
        assert (await environment.step(Action.of("drop", column=3))).observation.text == "column: 3"
        await environment.close()


def test_the_type_of_a_field_is_looked_up_where_it_is_defined() -> None:
    schema = {
        "properties": {"move": {"$ref": "#/$defs/Move"}, "metadata": {"type": "object"}},
        "$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}},
    }
    check_fields(schema, {"name": None, "text": None}, "text")
    schema["$defs"]["Move"] = {"enum": [1, 2], "type": "integer"}
    with pytest.raises(ConfigError, match="choose an action_format with calls"):
        check_fields(schema, {"name": None, "text": None}, "text")
