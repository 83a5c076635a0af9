"""Programs that others wrote for OpenAI's API, unmodified, against our endpoint: they work, and what they did can be
learned from (see `played`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.recited import ADD, played, tool_results
from tests.serving.worlds import ADD as ADD_TOOL
from uirl.inference import LoadedModel
from uirl.types import Task

pytestmark = pytest.mark.clients

FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "3"}}\n</tool_call>'
ASKED = "What is 1 + 2?"


def add_up(choice: Any) -> dict[str, str]:
    """The result of the only call of a choice, as a message."""
    (call,) = choice.message.tool_calls
    result = sum(json.loads(call.function.arguments).values())
    return {"role": "tool", "tool_call_id": call.id, "content": str(result)}


@pytest.mark.parametrize("said", [f"I add\n{ADD}", f"<think>one and two</think>\nI add\n{ADD}"])
async def test_litellm_sends_its_own_messages_back(lm: LoadedModel, said: str) -> None:
    import litellm

    def agent(base_url: str, api_key: str, task: Task) -> bool:
        messages: list[Any] = [{"role": "user", "content": ASKED}]
        for _ in range(2):
            choice = litellm.completion(
                model="openai/any", messages=messages, tools=[ADD_TOOL], api_base=base_url, api_key=api_key
            ).choices[0]
            messages.append(choice.message)
            if choice.message.tool_calls:
                messages.append(add_up(choice))
        return choice.message.content == "it is 3"

    record = await played(lm, agent, said, "it is 3")
    assert record.success
    assert len(record) == 2
    assert tool_results(record) == ["3"] or record.turns[1].starts_segment


@pytest.mark.parametrize("through", ["OpenAIModel", "LiteLLMModel"])
async def test_smolagents_tool_calling_agent(lm: LoadedModel, through: str) -> None:
    import smolagents

    @smolagents.tool
    def add(a: int, b: int) -> int:
        """The sum of two numbers.

        Args:
            a: One.
            b: The other.
        """
        return a + b

    def agent(base_url: str, api_key: str, task: Task) -> bool:
        if through == "OpenAIModel":
            model = smolagents.OpenAIModel("gpt-4o", api_base=base_url, api_key=api_key)
        else:
            model = smolagents.LiteLLMModel("openai/any", api_base=base_url, api_key=api_key)
        runner = smolagents.ToolCallingAgent(tools=[add], model=model, max_steps=4, verbosity_level=0)
        return str(runner.run(ASKED)) == "3"

    record = await played(lm, agent, ADD, FINAL)
    assert record.success
    assert [turn.action.tool_calls[0].name for turn in record.turns] == ["add", "final_answer"]
    assert [turn.info["tool_choice"] for turn in record.turns] == ["required"] * 2


async def test_smolagents_gets_its_call_from_a_policy_that_talks(lm: LoadedModel) -> None:
    import smolagents

    def agent(base_url: str, api_key: str, task: Task) -> bool:
        model = smolagents.OpenAIModel("gpt-4o", api_base=base_url, api_key=api_key)
        runner = smolagents.ToolCallingAgent(tools=[], model=model, max_steps=2, verbosity_level=0)
        return str(runner.run(ASKED)) == "3"

    # its only tool is the final answer, so the call is given up to its arguments
    record = await played(lm, agent, "it is 3", ' {"answer": "3"}}\n</tool_call>')
    assert record.success
    assert [turn.info.get("sent", True) for turn in record.turns] == [False, True]
    assert record.turns[1].info["given"] == '<tool_call>\n{"name": "final_answer", "arguments":'


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
async def test_openai_agents(lm: LoadedModel, api: str, streams: bool) -> None:
    import agents
    import openai

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        return a + b

    async def agent(base_url: str, api_key: str, task: Task) -> bool:
        agents.set_tracing_disabled(True)
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            provider = agents.OpenAIProvider(openai_client=client, use_responses=api == "responses")
            runner = agents.Agent(name="adder", instructions="be brief", tools=[add])
            config = agents.RunConfig(model_provider=provider)
            if streams:
                result: Any = agents.Runner.run_streamed(runner, ASKED, run_config=config)
                async for _ in result.stream_events():
                    pass
            else:
                result = await agents.Runner.run(runner, ASKED, run_config=config)
            return bool(result.final_output == "it is 3")

    record = await played(lm, agent, f"I add\n{ADD}", "it is 3")
    assert record.success
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert tool_results(record) == ["3"]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_pydantic_ai(lm: LoadedModel, api: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def agent(base_url: str, api_key: str, task: Task) -> bool:
        kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        runner = Agent(kind("gpt-4o", provider=OpenAIProvider(base_url=base_url, api_key=api_key)))

        @runner.tool_plain
        def add(a: int, b: int) -> int:
            """The sum of two numbers."""
            return a + b

        return (await runner.run(ASKED)).output == "it is 3"

    record = await played(lm, agent, f"I add\n{ADD}", "it is 3")
    assert record.success
    assert len(record) == 2
    assert tool_results(record) == ["3"]


async def test_pydantic_ai_wants_its_answer_as_a_call(lm: LoadedModel) -> None:
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Sum(BaseModel):
        value: int

    async def agent(base_url: str, api_key: str, task: Task) -> bool:
        model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=base_url, api_key=api_key))
        return (await Agent(model, output_type=Sum).run(ASKED)).output.value == 3

    call = '<tool_call>\n{"name": "final_result", "arguments": {"value": 3}}\n</tool_call>'
    record = await played(lm, agent, call)
    assert record.success
    assert record.turns[0].info["tool_choice"] == "required"


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streams", [False, True])
async def test_langchain(lm: LoadedModel, api: str, streams: bool) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        return a + b

    def agent(base_url: str, api_key: str, task: Task) -> bool:
        model = ChatOpenAI(
            model="gpt-4o", base_url=base_url, api_key=api_key, streaming=streams, use_responses_api=api == "responses"
        )
        done = create_agent(model, [add]).invoke({"messages": [("user", ASKED)]})
        return bool(done["messages"][-1].text == "it is 3")

    record = await played(lm, agent, f"I add\n{ADD}", "it is 3")
    assert record.success
    assert len(record) == 2
    assert tool_results(record) == ["3"]


async def test_langchain_wants_its_answer_as_a_call(lm: LoadedModel) -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Sum(BaseModel):
        """The sum."""

        value: int

    def agent(base_url: str, api_key: str, task: Task) -> bool:
        model = ChatOpenAI(model="gpt-4o", base_url=base_url, api_key=api_key)
        made: Any = model.with_structured_output(Sum, method="function_calling").invoke(ASKED)
        return bool(made.value == 3)

    record = await played(lm, agent, "it is 3", ' {"value": 3}}\n</tool_call>')
    assert record.success
    assert [turn.info["tool_choice"] for turn in record.turns] == ["Sum", "Sum"]


async def test_inspect_ai(lm: LoadedModel, tmp_path: Path) -> None:
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def add() -> Any:
        async def execute(a: int, b: int) -> int:
            """The sum of two numbers.

            Args:
                a: One.
                b: The other.
            """
            return a + b

        return execute

    def agent(base_url: str, api_key: str, task: Task) -> float:
        model = get_model("openai-api/uirl/any", base_url=base_url, api_key=api_key)
        job = inspect_ai.Task(
            dataset=[Sample(ASKED, target="3")], solver=[use_tools(add()), generate()], scorer=includes()
        )
        (log,) = inspect_ai.eval(job, model=model, log_dir=str(tmp_path), display="none")
        assert log.status == "success", log.error
        assert log.results is not None
        return float(log.results.scores[0].metrics["accuracy"].value)

    record = await played(lm, agent, f"I add\n{ADD}", "it is 3")
    assert record.total_reward() == 1.0
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert tool_results(record) == ["3"]
