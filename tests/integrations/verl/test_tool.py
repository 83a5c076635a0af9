"""Our environments as tools of verl's own tool agent loop: its real classes, and a policy that says its lines."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.tool_registry import load_all_tools
from verl.workers.rollout.replica import TokenOutput

from tests.inference.pictures import picture
from uirl.config import TinyConfig
from uirl.environments import BaseEnvironment
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.errors import ConfigError, ContractError
from uirl.inference.models.tiny import build_tokenizer
from uirl.integrations.verl.agent_loop import EpisodeFailed
from uirl.integrations.verl.tool import EnvironmentTool, reward_of_calls, tool_config, tool_rows, write_tool_config
from uirl.types import Action, Observation, StepResult

pytestmark = pytest.mark.verl


HERE = "tests.integrations.verl.test_tool"
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Watched(GuessNumberEnvironment):
    """Guessing a number of 1 to 3, with a count of open instances."""

    runs_inline = True
    open = 0

    def __init__(self, config: Any = None, fails: str = "") -> None:
        super().__init__(config, n=3, guesses=3)
        self.fails = fails
        self.counted = False

    def reset(self, *, seed: int | None = None) -> str:
        Watched.open += not self.counted
        self.counted = True
        if self.fails == "reset":
            raise OSError("no screen")
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        if self.fails == "step":
            raise OSError("the cable was pulled")
        return super().step(action)

    def close(self) -> None:
        Watched.open -= self.counted
        self.counted = False


class Drawing(BaseEnvironment):
    """Two functions, and a picture after each call; `finish` pays the number of strokes."""

    action_format = "json"
    runs_inline = True

    def tool_schemas(self) -> Sequence[dict[str, Any]]:
        x = {"type": "integer", "minimum": 0, "maximum": 9}
        stroke = {"name": "stroke", "parameters": {"type": "object", "properties": {"x": x}, "required": ["x"]}}
        return [stroke, {"name": "finish", "parameters": {"type": "object", "properties": {}}}]

    def reset(self, *, seed: int | None = None) -> Observation:
        self.strokes: list[int] = []
        return Observation("draw", (picture(seed or 0),))

    def step(self, action: Action) -> StepResult:
        assert action.call is not None
        if action.call.name == "finish":
            return StepResult(Observation("done"), float(len(self.strokes)), terminated=True)
        self.strokes.append(action.call.arguments["x"])
        return StepResult(Observation(f"{len(self.strokes)} strokes", (picture(len(self.strokes)),)))

    def get_state_description(self) -> str:
        return str(self.strokes)


@pytest.fixture(autouse=True)
def none_open() -> None:
    Watched.open = 0


class Reciter:
    """verl's server client with a policy that says its lines, one per turn, and remembers what it was shown."""

    def __init__(self, tokenizer: Any, *lines: str) -> None:
        self.tokenizer, self.lines = tokenizer, list(lines)
        self.shown: list[str] = []

    async def generate(self, request_id: str, prompt_ids: list[int], **_: Any) -> TokenOutput:
        self.shown.append(self.tokenizer.decode(prompt_ids))
        ids = [*self.tokenizer(self.lines.pop(0), add_special_tokens=False).input_ids, self.tokenizer.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.1] * len(ids), stop_reason="completed")


def loop_with(config_file: Path, *lines: str) -> tuple[ToolAgentLoop, Reciter]:
    """verl's loop with the tools of a file, read by verl."""
    tokenizer = build_tokenizer(TinyConfig().vocab_size)
    tokenizer.chat_template = TEMPLATE
    tokenizer.eos_token = "<|im_end|>"
    turns = {"max_user_turns": 5, "max_assistant_turns": 6, "max_parallel_calls": 2, "format": "hermes"}
    multi_turn = {**turns, "max_tool_response_length": 200, "tool_response_truncate_side": "middle"}
    rollout = {"multi_turn": multi_turn, "prompt_length": 2000, "response_length": 2000, "full_determinism": False}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    client = Reciter(tokenizer, *lines)
    loop = ToolAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=SimpleNamespace,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap(load_all_tools(str(config_file), None)),
    )
    return loop, client


def play(config_file: Path, row: dict[str, Any], *lines: str) -> tuple[Any, Reciter]:
    """One trajectory of verl's loop, and what the policy was shown."""

    async def episode() -> tuple[Any, Reciter]:
        loop, client = loop_with(config_file, *lines)
        kwargs = {"raw_prompt": row["prompt"], "tools_kwargs": row["extra_info"]["tools_kwargs"]}
        try:
            return await loop.run({"temperature": 1.0}, **kwargs), client
        finally:
            gc.collect()
            await asyncio.sleep(0.05)  # what is closed with the trajectory is closed on this loop

    return asyncio.run(episode())


def act(word: str) -> str:
    return CALL.format("act", f'{{"action": "{word}"}}')


def secret(seed: int) -> int:
    env = Watched()
    env.reset(seed=seed)
    Watched.open = 0
    return env._secret


def test_verls_loop_plays_an_episode(tmp_path: Path) -> None:
    name = f"{HERE}:Watched"
    file = write_tool_config(tmp_path / "tools.yaml", name)
    (row,) = tool_rows(name, count=1, seed=7)
    assert row["prompt"] == [{"role": "user", "content": "guess 1-3"}]
    wrong = 1 + secret(7) % 3
    output, client = play(file, row, act(str(wrong)), act(str(secret(7))), "I found it.")
    word = "higher" if wrong < secret(7) else "lower"
    assert f"<|tool|>{word}<|im_end|>" in client.shown[1]
    assert "<|tool|>right\nThe episode is over.<|im_end|>" in client.shown[2]
    assert output.extra_fields["tool_rewards"] == [0.0, 1.0]
    assert reward_of_calls("", "", "", output.extra_fields) == 1.0
    assert Watched.open == 0
    early, _ = play(file, row, act(str(wrong)), "I give up.")
    assert (early.extra_fields["tool_rewards"], Watched.open) == ([0.0], 0)


@pytest.mark.parametrize("when", ["reset", "step"])
def test_a_failure_ends_the_trajectory_and_is_no_reward(tmp_path: Path, when: str) -> None:
    (row,) = tool_rows(f"{HERE}:Watched", count=1, seed=7)
    file = write_tool_config(tmp_path / "tools.yaml", f"{HERE}:Watched", {"fails": when})
    with pytest.raises(EpisodeFailed, match=r"no screen|the cable was pulled") as failed:
        play(file, row, act("1"), "I give up.")
    assert failed.value.kind == "environment"
    assert Watched.open == 0


def test_the_models_mistakes_are_told_to_it(tmp_path: Path) -> None:
    name = f"{HERE}:Watched"
    (row,) = tool_rows(name, count=1, seed=7)
    lines = [CALL.format("act", '{"move": "1"}'), act("one"), "I give up."]
    output, client = play(write_tool_config(tmp_path / "tools.yaml", name), row, *lines)
    assert "missing argument 'action'" in client.shown[1]
    assert "not a number" in client.shown[2]
    assert output.extra_fields["tool_rewards"] == [0.0, 0.0]


def test_functions_of_one_trajectory_share_its_episode() -> None:
    def tools() -> list[EnvironmentTool]:
        made = tool_config(f"{HERE}:Drawing")["tools"]
        return [EnvironmentTool(dict(tool["config"])) for tool in made]

    async def play_both() -> None:
        stroke, finish = tools()
        mine, other = SimpleRecord(), SimpleRecord()
        for trajectory, x in ((mine, 1), (mine, 2), (other, 3)):
            identity, first = await stroke.create(create_kwargs={"seed": 1})
            assert first.is_empty()
            seen, reward, _ = await stroke.execute(identity, {"x": x}, agent_data=trajectory)
            await stroke.release(identity)
            assert reward == 0.0
            assert len(seen.image) == 1
        assert seen.text == "1 strokes"
        for trajectory, strokes in ((mine, 2.0), (other, 1.0)):
            identity, _ = await finish.create(create_kwargs={"seed": 1})
            seen, reward, _ = await finish.execute(identity, {}, agent_data=trajectory)
            await finish.release(identity)
            assert (seen.text, reward) == ("done\nThe episode is over.", strokes)

    asyncio.run(play_both())


class SimpleRecord:
    """Stands for verl's record of a trajectory."""


def test_without_verls_loop_an_instance_has_an_episode_of_its_own() -> None:
    async def direct() -> None:
        tool = EnvironmentTool({"type": "native", "environment": f"{HERE}:Watched"})
        assert tool.name == "act"
        identity, first = await tool.create(seed=7)
        assert first.text == "guess 1-3"
        assert Watched.open == 1
        seen, reward, metrics = await tool.execute(identity, {"action": str(secret_seven)})
        assert (seen.text, reward, metrics) == ("right\nThe episode is over.", 1.0, {"success": 1.0})
        assert await tool.calc_reward(identity) == 1.0
        await tool.release(identity)
        assert Watched.open == 0
        with pytest.raises(ContractError, match="expected one that `create` gave"):
            await tool.execute(identity, {"action": "1"})

    secret_seven = secret(7)
    asyncio.run(direct())


def test_a_failed_episode_has_no_reward() -> None:
    async def direct() -> None:
        tool = EnvironmentTool({"type": "native", "environment": f"{HERE}:Watched", "options": {"fails": "step"}})
        identity, _ = await tool.create(seed=7)
        with pytest.raises(EpisodeFailed):
            await tool.execute(identity, {"action": "1"})
        with pytest.raises(EpisodeFailed):
            await tool.calc_reward(identity)
        with pytest.raises(EpisodeFailed):
            await tool.release(identity)
        assert Watched.open == 0

    asyncio.run(direct())


def test_schemas_say_what_verl_would_drop() -> None:
    stroke, _ = (EnvironmentTool(dict(t["config"])) for t in tool_config(f"{HERE}:Drawing")["tools"])
    x = stroke.tool_schema.function.parameters.properties["x"]
    assert (x.type, x.description) == ("integer", "(0 to 9)")
    assert stroke.tool_schema.function.parameters.required == ["x"]


def test_rows_carry_pictures_as_verls_dataset_reads_them() -> None:
    (row,) = tool_rows(f"{HERE}:Drawing", count=1, instructions="Draw.")
    assert [message["content"] for message in row["prompt"]] == ["Draw.", "<image>draw"]
    assert row["images"][0]["bytes"].startswith(b"\x89PNG")
    assert set(row["extra_info"]["tools_kwargs"]) == {"stroke", "finish"}


def test_a_configuration_that_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'EnvironmentTool\.options'"):
        EnvironmentTool({"environment": "guess_number", "option": {}})
    with pytest.raises(ConfigError, match="`function` is None"):
        EnvironmentTool({"environment": f"{HERE}:Drawing"})
    with pytest.raises(ContractError, match="tool_agent"):
        reward_of_calls("", "", "", {})
