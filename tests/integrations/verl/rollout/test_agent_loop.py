"""Our episodes as verl's agent loop: what verl is handed is what the server was fed and sampled."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.integrations.verl.loops import (
    SAMPLING,
    TEXT,
    TWO_LOOKS,
    Client,
    CustomTokenizer,
    broken_row,
    loop_of,
    play,
    prepared,
    rows,
)
from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import share_of_good
from uirl.errors import AlignmentError, ConfigError
from uirl.images import ImageStore
from uirl.integrations.verl.config.keys import put
from uirl.integrations.verl.config.mapping import ESTIMATORS
from uirl.integrations.verl.rollout.agent_loop import EpisodeFailed
from uirl.integrations.verl.rollout.context import context_of
from uirl.integrations.verl.rollout.outputs import outputs_of
from uirl.integrations.verl.trainer.task_runner import create_agent_loop_manager
from uirl.types import Observation, Trajectory, Turn

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Client]:
    """A run with pictures in the second turn."""
    return prepared(tmp_path_factory.mktemp("seeing"))


def test_verl_gets_what_the_server_was_fed_and_sampled(seeing: tuple[Any, Client]) -> None:
    config, client = seeing
    client.asked.clear(), client.answers.clear()
    (output,) = play(config, client, *rows(config))
    first, second = client.asked
    assert output.prompt_ids == first["prompt_ids"]
    ids = output.prompt_ids + output.response_ids
    assert ids[: len(second["prompt_ids"])] == second["prompt_ids"]
    assert ids[len(second["prompt_ids"]) :] == client.answers[1].token_ids
    between = len(second["prompt_ids"]) - len(first["prompt_ids"]) - len(client.answers[0].token_ids)
    n, m = (len(a.token_ids) for a in client.answers)
    assert output.response_mask == [1] * n + [0] * between + [1] * m
    sampled = [p for p, own in zip(output.response_logprobs, output.response_mask, strict=True) if own]
    assert sampled == client.answers[0].log_probs + client.answers[1].log_probs


def test_pictures_of_the_second_turn_go_along(seeing: tuple[Any, Client]) -> None:
    config, client = seeing
    client.asked.clear(), client.answers.clear()
    outputs = play(config, client, *rows(config, count=4))
    counts = {len(output.multi_modal_data["images"]) for output in outputs}
    assert counts == {1, 2}
    opening = [asked for asked in client.asked if asked["image_data"] is None]
    assert len(opening) == 4
    for output in outputs:
        ids = torch.tensor(output.prompt_ids + output.response_ids)
        pad = 5  # <|image_pad|> of the built-in tokenizer; a picture of 56 x 56 takes 4
        assert (ids == pad).sum() == 4 * len(output.multi_modal_data["images"])


def test_pictures_are_kept_no_longer_than_episodes(seeing: tuple[Any, Client]) -> None:
    """A worker lives as long as the run: it must not gather what was ever seen."""
    config, client = seeing

    async def played_and_left() -> tuple[int, int]:
        context = await context_of(config, client)
        with context.playing():
            await loop_of(config, client).run(dict(SAMPLING), **rows(config)[0])
            kept = len(context.images)
        return kept, len(context.images)

    kept, left = asyncio.run(played_and_left())
    assert kept in (1, 2)
    assert left == 0


def test_rewards_stand_where_they_were_earned(seeing: tuple[Any, Client]) -> None:
    config, client = seeing
    client.asked.clear(), client.answers.clear()
    (output,) = play(config, client, *rows(config))
    rewards = output.as_dict()["rm_scores"]
    decode = CustomTokenizer(config)
    paid = [share_of_good(decode(answer.token_ids)) / 2 for answer in client.answers]
    ends = [len(client.answers[0].token_ids) - 1, len(output.response_ids) - 1]
    assert [rewards[at].item() for at in ends] == pytest.approx(paid)
    assert rewards.sum().item() == pytest.approx(output.reward_score) == pytest.approx(sum(paid))
    assert (rewards != 0).sum() <= 2


def test_members_share_the_instance_and_draw_for_themselves(seeing: tuple[Any, Client]) -> None:
    config, client = seeing
    made = play(config, client, *rows(config, members=3))
    assert len({tuple(output.prompt_ids) for output in made}) == 1
    assert len({tuple(output.response_ids) for output in made}) == 3
    again = play(config, client, *rows(config, members=3))
    assert [output.response_ids for output in again] == [output.response_ids for output in made]


def test_an_episode_tells_verl_what_it_asks(seeing: tuple[Any, Client]) -> None:
    config, client = seeing
    (output,) = play(config, client, *rows(config))
    fields = output.extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (0, 0)
    assert len(fields["turn_scores"]) == 2
    assert fields["reward_extra_info"]["success"] in (True, False)
    assert output.num_turns == 4
    assert output.metrics.generate_sequences > 0


def test_rewritten_history_makes_several_sequences(tmp_path: Path) -> None:
    config, client = prepared(tmp_path, *TEXT, "rollout.token_budget=16")
    (outputs,) = play(config, client, *rows(config))
    assert len(outputs) == 2
    assert [output.prompt_ids for output in outputs] == [asked["prompt_ids"] for asked in client.asked]
    assert [output.response_ids for output in outputs] == [answer.token_ids for answer in client.answers]
    total = sum(outputs[0].extra_fields["turn_scores"])
    assert [output.reward_score for output in outputs] == [total, total]
    last = outputs[1].as_dict()["rm_scores"]
    assert last[-1].item() == pytest.approx(total)


def test_a_trainer_that_credits_episodes_takes_several_sequences(tmp_path: Path) -> None:
    config, client = prepared(tmp_path, *TEXT, "rollout.token_budget=16")
    put(config, "data.uirl.credits_episodes", True)
    for estimator in ESTIMATORS.values():
        put(config, "algorithm.adv_estimator", estimator)
        (outputs,) = play(config, client, *rows(config))
        assert len(outputs) == 2, estimator


@pytest.mark.parametrize(
    ("keys", "ours", "message"),
    [
        ({"algorithm.adv_estimator": "rloo"}, False, "rloo would count it once per sequence under this trainer"),
        ({"algorithm.adv_estimator": "opo"}, True, "opo would count it once per sequence under this trainer"),
        ({"trainer.use_v1": False}, False, "legacy trainer takes one"),
    ],
)
def test_several_sequences_are_refused_where_they_would_be_misread(
    tmp_path: Path, keys: dict[str, Any], ours: bool, message: str
) -> None:
    """Where the window is not what rewrites history, but a chat template, only the first episode tells."""
    config, client = prepared(tmp_path, *TEXT, "rollout.token_budget=16")
    for key, value in (keys | {"data.uirl.credits_episodes": ours}).items():
        put(config, key, value)
    with pytest.raises(ConfigError, match=message):
        play(config, client, *rows(config))


SYNC = {"trainer.v1.trainer_mode": "sync"}


@pytest.mark.parametrize("window", ["rollout.token_budget=16", "rollout.max_images=1"])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (SYNC | {"algorithm.adv_estimator": "rloo"}, "rloo would count it once per sequence under this trainer"),
        ({"algorithm.adv_estimator": "opo"}, "opo would count it once per sequence under this trainer"),
        ({"trainer.use_v1": False}, "legacy trainer takes one"),
    ],
)
def test_a_window_is_refused_before_the_run_where_its_sequences_would_be_misread(
    tmp_path: Path, window: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(config(tmp_path, TWO_LOOKS, *TEXT, window), verl=keys)


@pytest.mark.parametrize(
    ("window", "keys"),
    [("rollout.token_budget=16", SYNC), ("rollout.token_budget=null", SYNC | {"algorithm.adv_estimator": "rloo"})],
)
def test_other_trainers_of_verls_go_with_what_they_read(tmp_path: Path, window: str, keys: dict[str, Any]) -> None:
    made = trainer(config(tmp_path, TWO_LOOKS, *TEXT, window), verl=keys)
    assert made.config.trainer.v1.trainer_mode == "sync"


def test_an_episode_that_fails_is_no_zero(tmp_path: Path) -> None:
    config, client = prepared(
        tmp_path, *TEXT, "environment.name=tests.integrations.verl.worlds:OneBrokenTask", "rollout.retries=1"
    )
    with pytest.raises(EpisodeFailed, match="the cable was pulled") as caught:
        play(config, client, broken_row(config))
    assert caught.value.kind == "environment"
    assert len({asked["request_id"] for asked in client.asked}) == 2, "it was to be played twice"


def test_under_the_legacy_trainer_a_failed_episode_is_masked_out(tmp_path: Path) -> None:
    fragile = "environment.name=tests.integrations.verl.worlds:OneBrokenTask"
    config, client = prepared(tmp_path, *TEXT, fragile, verl={"trainer.use_v1": False})
    (output,) = play(config, client, broken_row(config))
    assert output.response_mask == [0]
    assert output.extra_fields["uirl"]["failure"] == "environment"


def test_rows_name_their_environment(tmp_path: Path) -> None:
    config, client = prepared(tmp_path, *TEXT)
    row = {"extra_info": {"environment": "guess_number", "task": "a-number", "seed": 3}, "session_id": 0}
    (output,) = play(config, client, {"index": 0, **row})
    opening = CustomTokenizer(config)(output.prompt_ids)
    assert "guess 1-7" in opening
    assert output.extra_fields["uirl"]["task"] == "a-number"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "holds no mapping `extra_info`"),
        ({"extra_info": {"task": {"id": "x", "colour": "red"}}}, "expected the fields of uirl.Task"),
        ({"extra_info": {"environment": "gess_number"}}, "unknown environment"),
    ],
)
def test_rows_that_say_nothing_are_refused(seeing: tuple[Any, Client], row: dict[str, Any], message: str) -> None:
    config, client = seeing
    with pytest.raises(ConfigError, match=message):
        play(config, client, row)


def test_a_prompt_without_room_is_told(tmp_path: Path) -> None:
    lengths = {"data.max_prompt_length": 2, "data.max_response_length": 2}
    config, client = prepared(tmp_path, *TEXT, verl=lengths)
    with pytest.raises(EpisodeFailed, match=r"^prompt: .*data\.max_prompt_length .*; raise the limit"):
        play(config, client, *rows(config))


def test_an_episode_ends_where_verls_sequence_ends(tmp_path: Path) -> None:
    lengths = {"data.max_prompt_length": 8, "data.max_response_length": 10}
    config, client = prepared(tmp_path, *TEXT, verl=lengths)
    for output in play(config, client, *rows(config, count=3)):
        assert len(output.prompt_ids) + len(output.response_ids) <= 18


def test_a_sequence_that_is_too_long_never_reaches_verl() -> None:
    turn = Turn(Observation("look"), (1, 2), (3, 4), (-0.5, -0.5), starts_segment=True)
    with pytest.raises(AlignmentError, match=r"has 4 tokens, more than the 3 of data.max_prompt_length"):
        outputs_of(Trajectory(turns=[turn]), ImageStore(), [0], max_tokens=3)


class Manager:
    """An agent-loop manager of somebody else's; remembers what it was made of."""

    @classmethod
    def create(cls, **parts: Any) -> dict[str, Any]:
        return parts


def test_the_config_names_the_manager_of_the_loops(seeing: tuple[Any, Client]) -> None:
    config = copy.deepcopy(seeing[0])
    put(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class", f"{__name__}.Manager")
    running = SimpleNamespace(
        get_llm_client=lambda: "client", get_teacher_client=lambda: None, get_reward_handles=lambda: ["worker"]
    )
    made = create_agent_loop_manager(config, running)
    assert made == {
        "config": config,
        "llm_client": "client",
        "teacher_client": None,
        "reward_loop_worker_handles": ["worker"],
    }
