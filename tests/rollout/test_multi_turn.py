"""The multi-turn fronts: thin over the episode that training uses, and one record comes out of both."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.inference.models.test_chat import with_template
from tests.threads import left_since
from uirl import (
    Action,
    BaseEnvironment,
    CalculatorTool,
    ConfigError,
    ContractError,
    EnvironmentFailure,
    EnvironmentStepTool,
    JSONActionParser,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    ScriptedInferenceEngine,
    TextEngine,
    Tool,
    ToolError,
    ToolRegistry,
    create_inference_engine,
    create_parser,
)
from uirl.inference import LoadedModel, Message, SamplingParams
from uirl.rollout import derive_seed
from uirl.types import Observation


def call(name: str, **arguments: Any) -> str:
    return QWEN.render(Action.of(name, **arguments))


QWEN = create_parser("qwen")
CALL = call("calculator", expression="6*7")


class Asks(BaseEnvironment):
    """Asks for 6 * 7; the answer ends it."""

    resets = 0

    def reset(self, seed: int | None = None) -> str:
        self.resets += 1
        self.steps: list[str] = []
        return "6*7?"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps.append(action)
        right = action.strip() == "42"
        return "over" if right else "no", float(right), right, {"success": right}

    def get_state_description(self) -> str:
        return f"{len(self.steps)} answers"


class Moody(Tool):
    """A tool with a policy on errors."""

    name, description = "moody", "Fails as it is told."

    def execute(self, how: str) -> str:
        if how == "mine":
            raise ToolError("you asked for it")
        if how == "ours":
            raise ConnectionResetError("a bug")
        return "fine"


@pytest.fixture
def manager() -> Iterator[MultiTurnManager]:
    made = MultiTurnManager(ToolRegistry([CalculatorTool(), Moody()]), QWEN, Asks())
    yield made
    made.close()


def test_a_reply_with_a_call_is_executed_and_one_without_is_the_answer(manager: MultiTurnManager) -> None:
    turn = manager.step(f"Let me see. {CALL}", manager.env.reset())
    assert turn.tool_call is not None
    assert (turn.tool_call.name, turn.tool_call.success, turn.tool_call.result) == ("calculator", True, 42)
    assert turn.action.thought == "Let me see."
    assert (turn.reward, turn.done, manager.env.steps) == (0.0, False, [])
    assert manager.observation.tool_results == (turn.tool_call,)
    last = manager.step("42")
    assert (last.reward, last.done, last.tool_call) == (1.0, True, None)
    assert manager.env.resets == 1  # the observation was handed over; nobody resets behind the caller's back
    assert [m["role"] for m in manager.conversation] == ["user", "assistant", "tool", "assistant", "user"]
    assert manager.conversation[2] == {"role": "tool", "content": "42", "name": "calculator"}


def test_managers_and_engines_that_are_dropped_unclosed_leave_no_thread() -> None:
    before = set(threading.enumerate())
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), QWEN, Asks())
    manager.reset()
    engine = create_inference_engine("uirl/tiny-lm")
    conversation = MultiTurnInferenceEngine(engine)
    conversation.start_conversation("hello")
    conversation.step(max_tokens=2)
    assert set(threading.enumerate()) - before
    del manager, engine, conversation
    gc.collect()
    assert left_since(before) == set()


def test_a_bare_call_of_a_tool_that_there_is_is_executed_and_other_text_is_the_answer() -> None:
    """What is left of `[TOOL_CALLS]NAME[ARGS]{...}` where decoding leaves the special tokens out."""
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), create_parser("mistral"), Asks())
    manager.reset()
    turn = manager.step('calculator{"expression": "6*7"}')
    assert turn.tool_call is not None
    assert turn.tool_call.result == 42
    turn = manager.step('set{"expression": "6*7"}')
    assert (turn.tool_call, turn.action.parse_error) == (None, None)
    assert manager.env.steps == ['set{"expression": "6*7"}']
    manager.close()


def test_the_schema_of_a_tool_says_that_a_number_in_tags_is_text() -> None:
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), create_parser("qwen3-coder"), Asks())
    manager.reset()
    turn = manager.step("<tool_call><function=calculator><parameter=expression>42</parameter></function></tool_call>")
    assert turn.tool_call is not None
    assert (turn.tool_call.arguments, turn.tool_call.result) == ({"expression": "42"}, 42)
    manager.close()


def test_the_summary_counts_tools_and_rewards(manager: MultiTurnManager) -> None:
    manager.reset()
    manager.step(CALL)
    manager.step(call("moody", how="mine"))
    manager.step(call("nothing"))
    manager.step("42")
    summary = manager.summary()
    assert list(summary)[-1] == "42"
    assert len(summary) == 4
    told = summary.to_dict()
    assert {name: (use["calls"], use["successes"]) for name, use in told.pop("tools").items()} == {
        "calculator": (1, 1),
        "moody": (1, 0),
        "nothing": (1, 0),
    }
    assert told == {"turns": 4, "total_reward": 1.0, "success": True, "stop_reason": "terminated", "failure": None}


def test_mistakes_are_the_models_and_bugs_are_ours(manager: MultiTurnManager) -> None:
    manager.reset()
    mine = manager.step(call("moody", how="mine")).tool_call
    assert mine is not None
    assert (mine.success, mine.result) == (False, "you asked for it")
    wrong = manager.step(call("calculator", formula="6*7")).tool_call
    assert wrong is not None
    assert not wrong.success
    assert "formula" in wrong.text
    unread = manager.step('<tool_call>{"name":"calculator","arg')
    assert unread.tool_call is None
    assert manager.observation.text == unread.action.parse_error
    with pytest.raises(EnvironmentFailure, match="a bug"):
        manager.step(call("moody", how="ours"))


def test_the_end_is_an_end(manager: MultiTurnManager) -> None:
    with pytest.raises(ContractError, match="no episode has begun"):
        manager.summary()
    manager.reset()
    manager.step("42")
    with pytest.raises(ContractError, match=r"the episode is over \(terminated\); call reset\(\)"):
        manager.step("43")
    assert manager.reset().text == "6*7?"
    assert manager.trajectory.turns == []
    short = MultiTurnManager(ToolRegistry(), QWEN, Asks(), max_turns=1)
    short.step("1")
    assert short.summary().stop_reason == "max_turns"
    short.close()


def test_a_tool_may_act_on_the_environment() -> None:
    env = Asks()
    manager = MultiTurnManager(ToolRegistry([EnvironmentStepTool(env)]), create_parser("qwen"), env)
    name = next(iter(manager.registry)).definition.name
    turn = manager.step(call(name, action="42"), env.reset())
    assert (turn.reward, turn.done, env.steps) == (1.0, True, ["42"])
    assert turn.tool_call is not None
    assert turn.tool_call.result == "over"
    manager.close()


# -- with an engine --------------------------------------------------------------------------------------------------


def says(loaded: LoadedModel, *replies: str) -> TextEngine:
    """An engine that gives these replies, each with its end token."""
    end = loaded.tokenizer.eos_token
    script = [loaded.tokenizer(reply + end, add_special_tokens=False)["input_ids"] for reply in replies]
    return TextEngine(loaded, ScriptedInferenceEngine(script, end_ids=loaded.end_ids))


def test_a_conversation_with_a_person(lm: LoadedModel) -> None:
    engine = says(lm, "hello", "6*7 is 42")
    chat = MultiTurnInferenceEngine(engine, max_turns=2, system_prompt="be brief")
    assert chat.conversation == []
    for early in (chat.step, lambda: chat.trajectory):
        with pytest.raises(ContractError, match=r"no conversation has begun; call start_conversation\(prompt\)"):
            early()
    chat.start_conversation("hi", seed=7)
    assert chat.step(max_tokens=9, temperature=0.5, top_p=0.75, top_k=3) == "hello"
    with pytest.raises(ContractError, match="it is the user's turn"):
        chat.step()
    assert chat.step("6*7?") == "6*7 is 42"
    roles = [message["role"] for message in chat.conversation]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    with pytest.raises(ContractError, match="max_turns=2"):
        chat.step("more")
    first, second = engine.engine.requests
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert first.session_id == second.session_id == chat.trajectory.id
    assert [turn.starts_segment for turn in chat.trajectory.turns] == [True, False]
    assert first.sampling == SamplingParams(9, 0.5, 0.75, 3, seed=derive_seed(7, 0))
    assert second.sampling == SamplingParams(256, 1.0, 1.0, 0, seed=derive_seed(7, 1))
    chat.start_conversation("again")
    assert engine.engine.released == ["", first.session_id]
    assert chat.trajectory.id != first.session_id
    engine.close()


def test_tools_in_a_conversation(lm: LoadedModel) -> None:
    engine = says(lm, CALL, "it is 42")
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), QWEN)
    chat = MultiTurnInferenceEngine(engine, system_prompt="be brief", tool_manager=manager, enable_tools=True)
    chat.start_conversation("6*7?")
    assert chat.step() == CALL
    assert chat.step() == "it is 42"
    assert chat.conversation[3] == {"role": "tool", "content": "42", "name": "calculator"}
    system = chat.conversation[0]["content"]
    # the built-in template shows no tools, so the system prompt tells of them
    assert system.startswith("be brief\n\n- calculator(")
    assert manager.parser.describe() in system
    with pytest.raises(ContractError, match="needs a tool_manager"):
        MultiTurnInferenceEngine(engine, enable_tools=True)
    engine.close()
    manager.close()


def test_tools_that_the_template_shows_are_not_told_twice(lm: LoadedModel) -> None:
    engine = says(with_template(lm, "hermes"), "hello")
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), QWEN)
    chat = MultiTurnInferenceEngine(engine, system_prompt="be brief", tool_manager=manager, enable_tools=True)
    chat.start_conversation("hi")
    assert chat.step() == "hello"
    assert chat.conversation[0] == {"role": "system", "content": "be brief"}
    (request,) = engine.engine.requests
    assert '"name": "calculator"' in engine.loaded.tokenizer.decode(request.prompt_ids)
    engine.close()
    manager.close()


def test_an_episode_with_an_environment(lm: LoadedModel) -> None:
    engine = says(lm, "41", CALL, "42")
    env = Asks()
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), QWEN, env)
    multi_turn = MultiTurnInferenceEngine(engine, tool_manager=manager, enable_tools=True)
    summary = multi_turn.run_episode(env, "Answer with a number.", max_turns=5)
    assert list(summary) == ["41", CALL, "42"]
    assert (summary.success, summary.total_reward, summary.stop_reason) == (True, 1.0, "terminated")
    assert summary.tools["calculator"].successes == 1
    seen = [turn.observation for turn in summary.trajectory.turns]
    assert seen[0].text == "Answer with a number.\n6*7?"
    assert [result.text for result in seen[2].tool_results] == ["42"]
    # a record like any other: what was fed and sampled is on it, token for token
    ids: tuple[int, ...] = ()
    for turn, request in zip(summary.trajectory.turns, engine.engine.requests, strict=True):
        ids += turn.context_ids
        assert request.prompt_ids == ids
        ids += turn.response_ids
    engine.close()
    manager.close()


def test_without_tools_an_episode_is_the_environments_own(lm: LoadedModel) -> None:
    engine = says(lm, "41", "42")
    front = MultiTurnInferenceEngine(engine, max_turns=1)
    responses = front.run_episode(environment=Asks(), initial_prompt="Go.")
    assert (list(responses), responses.stop_reason, responses[0], responses[-1:]) == (
        ["41"],
        "max_turns",
        "41",
        ("41",),
    )
    said = front.run_episode(Asks(), max_turns=3, max_tokens=9, temperature=0.5, top_p=0.75, top_k=2, seed=4)
    assert (list(said), said.success, said.trajectory.seed) == (["42"], True, 4)
    assert engine.engine.requests[1].sampling == SamplingParams(9, 0.5, 0.75, 2, seed=derive_seed(4, 0))
    more = MultiTurnInferenceEngine(says(lm, "1", "2", "3", "4"), max_turns=2).run_episode(Asks(), max_turns=3)
    assert (list(more), more.stop_reason) == (["1", "2", "3"], "max_turns")
    engine.close()


def test_what_a_trainer_plays_is_what_an_episode_plays(lm: LoadedModel) -> None:
    registry = ToolRegistry([CalculatorTool()])
    env = Asks()
    manager = MultiTurnManager(registry, QWEN, env)
    engine = says(lm, CALL, "42")
    with_tools = MultiTurnInferenceEngine(engine, 7, "be brief", tool_manager=manager, enable_tools=True)
    assert with_tools.run_episode(env).success is True
    world, prompt = with_tools.with_tools(env)
    assert create_parser(world.action_format).render(Action.of("f")) == QWEN.render(Action.of("f"))
    said = lm.tokenizer.decode(engine.engine.requests[0].prompt_ids)
    assert prompt is not None
    assert prompt.startswith("be brief\n\n- calculator(")
    assert prompt in said
    talker = says(lm, CALL, "42")
    bare = MultiTurnInferenceEngine(talker, tool_manager=manager, enable_tools=True)
    assert bare.run_episode(env).success is True
    world, prompt = bare.with_tools(env)
    assert prompt is None
    assert "- calculator(" in world.get_prompt_prefix()
    assert world.get_prompt_prefix() in lm.tokenizer.decode(talker.engine.requests[0].prompt_ids)
    talker.close()
    plain = MultiTurnInferenceEngine(engine)
    assert plain.with_tools(env) == (env, None)

    class Own(JSONActionParser):
        """No name makes it."""

    with pytest.raises(ConfigError, match="no name makes this Own"):
        MultiTurnInferenceEngine(
            engine, tool_manager=MultiTurnManager(registry, Own(), env), enable_tools=True
        ).with_tools(env)
    engine.close()
    manager.close()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("chatml", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ("llama-2", "<s>[INST] hi [/INST] "),
        (
            "llama-3",
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (None, "<|user|>hi<|assistant|>"),
    ],
)
def test_conversations_are_formatted_for_any_model(lm: LoadedModel, template: str | None, expected: str) -> None:
    chat = MultiTurnInferenceEngine(says(lm, "hello"))
    assert chat.format_conversation([Message("user", "hi")], template) == expected
    chat.start_conversation("hi")
    assert chat.format_conversation(template=template) == expected


def test_observations_of_any_kind_are_taken(manager: MultiTurnManager) -> None:
    manager.env.reset()
    manager.step(CALL, Observation("what is it?"))
    assert manager.trajectory.turns[0].observation.text == "what is it?"
    manager.step("42", "look again")
    assert manager.trajectory.turns[1].observation.text == "look again"
