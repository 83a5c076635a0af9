"""Whole tasks against a model behind a server, without verl."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from typing import Any

import pytest

from tests.environments.mobile_world.playing import SOLUTIONS, act, environment, phones, reply
from tests.inference.openai.stand_in_openai import StandInOpenAI
from tests.integrations.verl.worlds import Fragile, Ladder, TwoLooks
from tests.patience import PATIENCE
from uirl import MobileWorldAgentLoop
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.inference import LoadedModel, ScriptedInferenceEngine
from uirl.types import Action, Trajectory


def says(*replies: str) -> Any:
    """Makes an engine that gives these replies in turn, for ever."""

    def make(loaded: LoadedModel) -> ScriptedInferenceEngine:
        ids = [[*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], 2] for text in replies]
        said = iter(range(10**9))
        return ScriptedInferenceEngine(lambda request: ids[next(said) % len(ids)], end_ids=(2,))

    return make


def model(vlm: LoadedModel, *actions: Action) -> StandInOpenAI:
    """A server whose model plays these actions."""
    server = StandInOpenAI(vlm, "chat", models=["Tongyi-MAI/MAI-UI-2B"])
    server.scripted.extend(({"role": "assistant", "content": reply(action)}, "stop") for action in actions)
    return server


def chats(server: StandInOpenAI) -> list[Any]:
    """The requests for replies; the questions of what the server can do left out."""
    return [seen for seen in server.seen if seen.path.endswith("/chat/completions") and seen.body["max_tokens"] > 1]


def test_the_documented_call(vlm: LoadedModel) -> None:
    ladder = Ladder()
    ladder.register_tasks(["ReadClockTask"])
    paid: list[Trajectory] = []

    def reward_calc(trajectory: Trajectory) -> float:
        paid.append(trajectory)
        return 10 * trajectory.total_reward() - len(trajectory)

    with phones() as (phone,), model(vlm, *SOLUTIONS["SendMessageTask"]) as server:
        agent_loop = MobileWorldAgentLoop(
            env=environment(phone),
            agent_type="mai_ui_agent",
            model_name="Tongyi-MAI/MAI-UI-2B",
            llm_base_url=f"{server.url}/v1",
            api_key="your-key",
            max_step=50,
            task_curriculum=ladder,
            reward_calculator=reward_calc,
        )
        result = agent_loop.run_full_interaction(interaction_id="interaction_1", task_name="SendMessageTask")
        agent_loop.close()
        agent_loop.close()
        assert {name: value for name, value in result.items() if name != "trajectory"} == {
            "interaction_id": "interaction_1",
            "task_name": "SendMessageTask",
            "success": True,
            "score": 1.0,
            "reward": 5.0,
            "steps": 5,
            "stop_reason": "terminated",
            "failure": None,
        }
        assert paid == [result["trajectory"]]
        assert [turn.action.thought for turn in result["trajectory"].turns] == ["so it goes"] * 5
        assert ladder.reports == [["SendMessageTask", True, 1]]
        assert {seen.headers["authorization"] for seen in chats(server)} == {"Bearer your-key"}
        assert phone.idle


def test_what_the_model_is_shown(vlm: LoadedModel) -> None:
    asked = [act("open", text="sms"), act("ask_user", text="Which colour?"), act("wait"), act("wait"), act("wait")]
    seen = {}
    for prompt in (None, "own"):
        with phones() as (phone,), model(vlm, *asked) as server:
            env = environment(phone)
            with MobileWorldAgentLoop(
                env, llm_base_url=f"{server.url}/v1", api_key="k", max_step=5, prompt=prompt
            ) as loop:
                loop.run_full_interaction("a", "AskColourTask")
            assert env.prompt is None, "what is used elsewhere stays as it is"
            last = chats(server)[-1].body
        assert (last["temperature"], last["max_tokens"]) == (0.0, 2048)
        assert [message["role"] for message in last["messages"]] == ["system", *["user", "assistant"] * 4, "user"]
        assert "ask_user" in last["messages"][0]["content"]
        users = [message["content"] for message in last["messages"] if message["role"] == "user"]
        # three pictures at most; the owner's reply stands in place of one
        pictures = [sum(part["type"] == "image_url" for part in c) if isinstance(c, list) else 0 for c in users]
        assert pictures == [0, 1, 0, 1, 1]
        assistants = [message["content"] for message in last["messages"] if message["role"] == "assistant"]
        assert assistants == [reply(action) for action in asked[:4]]
        seen[prompt] = (users[0], users[2])
    own = ("Tell me my favourite colour.\n(earlier picture)", "The owner replied:\nIt is teal.")
    published = ("Tell me my favourite colour.", "It is teal.")
    assert seen == {"own": own, None: tuple([{"type": "text", "text": words}] for words in published)}


def test_a_prompt_that_is_chosen_for_phones_alone(vlm: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="prompt is for phones, and Fragile has its own"):
        MobileWorldAgentLoop(Fragile(), prompt="mai_ui", engine=says("x"))
    with phones() as (phone,):
        for agent_type, chosen, prompt in (
            ("mai_ui_agent", None, "mai_ui"), ("mai_ui_agent", "own", "own"), ("mai_ui", None, None),
        ):  # fmt: skip
            with MobileWorldAgentLoop(environment(phone, prompt=chosen), agent_type, engine=says("x")) as loop:
                assert loop.env.prompt == prompt


def test_the_last_step_is_scored(vlm: LoadedModel) -> None:
    with phones() as (phone,), model(vlm, *SOLUTIONS["OpenSettingsTask"]) as server:
        with MobileWorldAgentLoop(environment(phone), llm_base_url=f"{server.url}/v1", api_key="k", max_step=1) as loop:
            result = loop.run_full_interaction("a", "OpenSettingsTask")
        assert (result["steps"], result["score"], result["reward"], result["success"]) == (1, 1.0, 1.0, True)
        assert phone.idle


def test_a_phone_or_a_model_that_breaks_gives_no_reward(vlm: LoadedModel) -> None:
    ladder = Ladder()
    with phones() as (phone,), model(vlm, *SOLUTIONS["OpenSettingsTask"]) as server:
        phone.double.spoil["score"] = {}
        with MobileWorldAgentLoop(
            environment(phone), llm_base_url=f"{server.url}/v1", api_key="k", task_curriculum=ladder
        ) as loop:
            result = loop.run_full_interaction("a", "OpenSettingsTask")
            assert (result["reward"], result["score"], result["success"]) == (None, None, None)
            assert "the answer.score is missing" in result["failure"]
            server.scripted.append(({"role": "assistant", "content": None}, "no_such_reason"))
            other = loop.run_full_interaction("b", "OpenSettingsTask")
            assert (other["reward"], other["trajectory"].failure.kind) == (None, "engine")
        assert ladder.reports == []
        assert phone.idle


def test_ctrl_c_tears_the_task_down() -> None:
    def wrap(app: Any) -> Any:
        async def interrupting(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") == "/step":
                os.kill(os.getpid(), signal.SIGINT)
            elif scope.get("path") == "/task/tear_down":
                await asyncio.sleep(0.3)  # as a phone takes its time
            await app(scope, receive, send)

        return interrupting

    with phones(wrap=wrap) as (phone,):
        loop = MobileWorldAgentLoop(environment(phone), engine=says(reply(act("wait"))))
        with pytest.raises(KeyboardInterrupt):
            loop.run_full_interaction("a", "OpenSettingsTask")
        assert phone.double.begun == 1
        assert phone.idle
        loop.close()


def test_addresses_in_place_of_an_environment(vlm: LoadedModel) -> None:
    with phones() as (phone,), model(vlm, act("terminate", status="fail")) as server:
        with MobileWorldAgentLoop(phone.url, llm_base_url=f"{server.url}/v1", api_key="k") as loop:
            result = loop.run_full_interaction("a", "OpenSettingsTask")
        assert (result["success"], result["score"]) == (False, 0.0)
    gone = MobileWorldAgentLoop([phone.url], engine=says("ab"))
    with pytest.raises(EnvironmentFailure, match="no MobileWorld server lists its tasks"):
        gone.run_full_interaction("a")
    gone.close()
    for wrong in ([], 3):
        with pytest.raises(ConfigError, match="the addresses of MobileWorld servers"):
            MobileWorldAgentLoop(wrong)  # type: ignore[arg-type]


def test_two_loops_keep_their_own_keys(vlm: LoadedModel) -> None:
    with phones() as (phone,), model(vlm, *[act("terminate", status="fail")] * 2) as server:
        options = {"env": environment(phone), "llm_base_url": f"{server.url}/v1"}
        loops = [MobileWorldAgentLoop(api_key=key, **options) for key in ("first", "second")]
        for loop in loops:
            loop.run_full_interaction("a", "ReadClockTask")
        for loop in loops:
            loop.close()
        assert [seen.headers["authorization"] for seen in chats(server)] == ["Bearer first", "Bearer second"]
        assert not {"first", "second"} & set(os.environ.values())


def test_a_loop_that_is_dropped_ends_its_thread_and_forgets_its_key() -> None:
    closed = threading.Event()

    class Engine(ScriptedInferenceEngine):
        async def close(self) -> None:
            closed.set()

    before = set(threading.enumerate())
    loop = MobileWorldAgentLoop(
        TwoLooks(), "text", api_key="secret", engine=lambda loaded: Engine(lambda request: [2], end_ids=(2,))
    )
    (thread,) = set(threading.enumerate()) - before
    assert "secret" in os.environ.values()
    del loop
    gc.collect()
    thread.join(timeout=PATIENCE)
    assert closed.is_set()
    assert not thread.is_alive()
    assert "secret" not in os.environ.values()


# -- any environment ---------------------------------------------------------------------------------------------------


def test_an_interaction_tells_how_it_went() -> None:
    loop = MobileWorldAgentLoop(TwoLooks(), agent_type="text", engine=says("ab", "12"), max_step=5)
    result = loop.run_full_interaction("interaction_1", "letters/few", seed=3)
    loop.close()
    assert (result["task_name"], result["steps"], result["reward"]) == ("letters/few", 2, 0.5)
    assert (result["success"], result["score"], result["failure"]) == (False, None, None)
    assert result["trajectory"].actions == ["ab", "12"]


def test_the_curriculum_chooses_and_hears() -> None:
    ladder = Ladder()
    ladder.register_tasks(["letters/some"])
    loop = MobileWorldAgentLoop(TwoLooks(), agent_type="text", engine=says("ab"), task_curriculum=ladder)
    assert loop.run_full_interaction("a")["task_name"] == "letters/some"
    loop.run_full_interaction("b")
    loop.close()
    assert ladder.reports == [["letters/some", True, 1], ["letters/some", True, 2]]


def test_what_does_not_exist_is_told() -> None:
    for options, words in (
        ({"agent_type": "mai_agent"}, "unknown action format 'mai_agent'"),
        ({"max_step": 0}, "max_step: got 0, expected whole number >= 1"),
        ({"max_tokns": 10}, "has no argument 'max_tokns'; did you mean 'max_tokens'"),
        ({"agent_typ": "text"}, "did you mean 'agent_type'"),
        ({"prompt": "mine"}, "prompt: got 'mine', expected 'own' or 'mai_ui' or null"),
        ({"reward_calculator": 3}, "reward_calculator takes a trajectory"),
    ):
        with pytest.raises(ConfigError, match=words):
            MobileWorldAgentLoop(TwoLooks(), engine=says("ab"), **options)  # type: ignore[arg-type]
    loop = MobileWorldAgentLoop(TwoLooks(), agent_type="mai_ui_agent", engine=says("ab"))
    with pytest.raises(ConfigError, match="did you mean 'letters/few'"):
        loop.run_full_interaction("a", "letters/fwe")
    loop.close()
