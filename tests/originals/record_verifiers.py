"""Records traces of verifiers v1: `python record_verifiers.py OUT`.

This runs in an environment of its own that has verifiers (Apache-2.0) and renderers. Its own `Trace` keeps the graph
and writes the record; the tokens are those of a small renderer here, with a header, a body and an end for each message.
"""

from __future__ import annotations

import base64
import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import prepare_turn
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    Response,
    SystemMessage,
    TextContentPart,
    ToolCall,
    ToolMessage,
    TurnTokens,
    UserMessage,
)

BEGIN, END, LINE, OPEN, CLOSE, PICTURE, THINK, THOUGHT = range(1, 9)
ROLES = {"system": 11, "user": 12, "assistant": 13, "tool": 14}
REWARDS = {0: (0.0, 0.0, 1.0, 0.0), 1: (0.25, 1.0, 0.5, 0.25)}


def picture(colour: tuple[int, int, int]) -> ImageUrlContentPart:
    image = Image.new("RGB", (6, 6), colour)
    image.putpixel((2, 3), (255, 255, 255))
    image.save(buffer := BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return ImageUrlContentPart(image_url=ImageUrlSource(url=url))


def letters(text: str) -> list[int]:
    return [100 + ord(letter) for letter in text]


def body(message: Any, thoughts: bool) -> list[int]:
    parts = message.content if isinstance(message.content, list) else [TextContentPart(text=message.content or "")]
    ids = []
    if thoughts and getattr(message, "reasoning_content", None):
        ids += [THINK, *letters(message.reasoning_content), THOUGHT]
    for part in parts:
        ids += letters(part.text) if part.type == "text" else [OPEN, *[PICTURE] * 4, CLOSE]
    for call in getattr(message, "tool_calls", None) or ():
        ids += letters(f"{call.name}({call.arguments})")
    return ids


def rendered(messages: list[Any], thoughts: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """The prompt, and where each message stands in it."""
    ids: list[int] = []
    spans = []
    for message in messages:
        start = len(ids)
        ids += [BEGIN, ROLES[message.role], LINE, *body(message, thoughts), END]
        spans.append((start, len(ids)))
        ids.append(LINE)
    return [*ids, BEGIN, ROLES["assistant"], LINE], spans


def said(trace: Any, messages: list[Any], reply: Any, number: int, *, thoughts: bool = True, cut: bool = False) -> None:
    """Play one turn, and keep what it adds to the graph."""
    prompt, spans = rendered(messages, thoughts)
    completion = body(reply, True) + ([] if cut else [END])
    log_probs = [-0.05 * ((7 * i + 3 * number) % 40) - 0.01 for i in range(len(completion))]
    reason = "length" if cut else "tool_calls" if reply.tool_calls else "stop"
    tokens = TurnTokens(
        prompt_ids=prompt,
        completion_ids=completion,
        completion_logprobs=log_probs,
        message_spans=spans,
        mm_token_type_id_map={PICTURE: 1},
    )
    response = Response(
        id=f"r{len(trace.calls)}", created=0, model="m", message=reply, finish_reason=reason, tokens=tokens
    )
    node = prepare_turn(trace, messages).commit(response)
    trace.nodes[node].timestamp = 0.0
    trace.nodes[node].trainer_logprobs = [
        value + (0.01 if i % 2 else -0.01) for i, value in enumerate(trace.nodes[node].logprobs)
    ]
    trace.calls.append(ModelCall(node=node, finish_reason=reason))


def rollout(task: int, member: int) -> Any:
    number, reward = 4 * task + member, REWARDS[task][member]
    data = TaskData(idx=task, prompt=f"press the button of task {task}")
    trace = Trace(
        id=f"trace{number}",
        task=TraceTask(type="Press", data=data, key=f"press-{task}"),
        agent=AgentInfo(config=AgentConfig(model="m")),
    )
    messages: list[Any] = [
        SystemMessage(content="You press buttons."),
        UserMessage(content=[TextContentPart(text=data.prompt), picture((40 * task + 9, 90, 20 * member))]),
    ]
    call = ToolCall(id=f"c{number}", name="click", arguments=json.dumps({"x": number}))
    first = AssistantMessage(content="I click.", reasoning_content=f"it is at {number}", tool_calls=[call])
    said(trace, messages, first, number)
    seen = [TextContentPart(text="clicked"), picture((9, 40 * task + 9, 30 * member))]
    messages += [first, ToolMessage(tool_call_id=call.id, content=seen)]
    second = AssistantMessage(content=f"Pressed {number}.", reasoning_content="it changed")
    said(trace, messages, second, number)
    messages += [second, UserMessage(content="Are you sure?")]
    # as Qwen's templates do: what was thought before a user's message is left out
    said(trace, messages, AssistantMessage(content="Yes" * (member + 1)), number, thoughts=False, cut=member == 3)
    trace.record_reward("pressed", reward)
    trace.stop("agent_completed")
    mean = sum(REWARDS[task]) / 4
    for node in trace.nodes:
        node.timestamp = 0.0
        if any(node.mask):
            node.advantages = [reward - mean] * sum(node.mask)
    return trace


def main(out: str) -> None:
    lines = [json.dumps(rollout(task, member).to_record()) for task in REWARDS for member in range(4)]
    Path(out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
