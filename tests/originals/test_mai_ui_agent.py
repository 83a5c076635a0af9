"""MobileWorld's own agent for MAI-UI on MobileWorld's own server, and `MobileWorldAgentLoop` in its place.

What the original sent to its model was recorded (`record_mobile_world.py`); ours sends the same, byte by byte.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.environments.remote.running import running
from tests.inference.openai.stand_in_openai import StandInOpenAI
from tests.originals.replay import RECORDINGS, Phone, given, recording
from uirl import MobileWorldAgentLoop, MobileWorldEnvironment
from uirl.inference import LoadedModel
from uirl.tools import Tool, ToolDefinition, ToolError

pytestmark = pytest.mark.originals
TASKS = sorted(path.stem for path in RECORDINGS.glob("mobile_world_*.json"))
FAILED = "Failed to call tool {} after 5 attempts: "


class Recorded(Tool):
    """A tool of an MCP server that answers as it did."""

    max_result_chars = None

    def __init__(self, listed: Mapping[str, Any], answers: list[Any]) -> None:
        self.definition = ToolDefinition(listed["name"], listed["description"], listed["inputSchema"])
        self.name, self.description = self.definition.name, self.definition.description
        self.answers = answers

    def execute(self, **arguments: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, dict):
            raise ToolError(answer["result"].removeprefix(FAILED.format(self.name)))
        return answer[0]["text"]

    def spawn(self) -> Tool:
        return self


def tools_of(kept: dict[str, Any]) -> dict[str, list[Tool]]:
    """The servers of tools of the recorded task; the answers are what the model was told of them."""
    talk = json.loads(kept["asked"][-1])["messages"]
    answers = [ast.literal_eval(words.removeprefix("Tool call result: ")) for words in map(words_of, talk) if words]
    shared: list[Any] = answers
    return {"Amap": [Recorded(listed, shared) for listed in kept["tools"]]} if kept["tools"] else {}


def words_of(message: dict[str, Any]) -> str:
    first = message["content"][0] if isinstance(message["content"], list) else {}
    return first["text"] if first.get("text", "").startswith("Tool call result: ") else ""


def play(vlm: LoadedModel, kept: dict[str, Any], **options: Any) -> tuple[Phone, list[dict[str, Any]], dict[str, Any]]:
    """The phone, the requests of our loop, and how the task went; the model gives the recorded replies."""
    phone = Phone(kept["exchanges"])
    with running(phone.app()) as url, StandInOpenAI(vlm, "chat", models=["Tongyi-MAI/MAI-UI-8B"]) as server:
        server.scripted.extend(({"role": "assistant", "content": reply}, "stop") for reply in kept["replies"])
        env = MobileWorldEnvironment(url=url, step_wait_time=0, mcp=tools_of(kept), **options)
        with MobileWorldAgentLoop(env, llm_base_url=f"{server.url}/v1", api_key="k") as loop:
            result = loop.run_full_interaction("recorded", kept["task"])
    asked = [
        seen.body for seen in server.seen if seen.path.endswith("chat/completions") and seen.body["max_tokens"] > 1
    ]
    return phone, asked, result


def test_there_are_recordings() -> None:
    assert len(TASKS) >= 4
    for name in TASKS:
        assert Path(recording(name)["source"]).name == "MobileWorld"


@pytest.mark.parametrize("name", TASKS)
def test_the_messages_are_those_of_the_original(vlm: LoadedModel, name: str) -> None:
    kept = recording(name)
    phone, asked, result = play(vlm, kept)
    assert result["failure"] is None
    originals = [json.loads(body) for body in kept["asked"]]
    assert len(asked) == len(originals) == kept["steps"] == result["steps"]
    for ours, original in zip(asked, originals, strict=True):
        assert json.dumps(ours["messages"], ensure_ascii=False) == json.dumps(original["messages"], ensure_ascii=False)
        assert {field: ours[field] for field in original} == original
    assert phone.acted == [given(json.loads(one["body"])) for one in phone.steps]
    assert result["score"] == kept["score"]


def test_with_a_prompt_of_ours_they_are_others(vlm: LoadedModel) -> None:
    kept = recording(TASKS[0])
    _, asked, _ = play(vlm, kept, prompt="own")
    original = json.loads(kept["asked"][0])["messages"]
    assert [message["role"] for message in original] == ["system", "user", "user"]
    assert [message["role"] for message in asked[0]["messages"]] == ["system", "user"]
