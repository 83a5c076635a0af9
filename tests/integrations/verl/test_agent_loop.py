"""Our episodes as verl's agent loop: verl is handed what the server was fed and sampled, and all is recorded."""

from __future__ import annotations

import asyncio
import copy
import pickle
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from ray.exceptions import ActorDiedError
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from tests.integrations.test_mobile_world import says
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
from tests.integrations.verl.worlds import TwoLooks, share_of_good
from uirl.errors import AlignmentError, ConfigError, ContractError
from uirl.images import ImageStore, Screenshot, screenshot
from uirl.integrations.verl import EnvironmentAgentLoop, MobileWorldAgentLoop
from uirl.integrations.verl.agent_loop import EpisodeFailed, RemoteImage, ServerAgent, context_of, outputs_of
from uirl.integrations.verl.record import RunCoordinator
from uirl.integrations.verl.settings import put
from uirl.integrations.verl.task_runner import create_agent_loop_manager
from uirl.integrations.verl.workers import portable
from uirl.rollout.conversation import Context
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
    assert {len(output.multi_modal_data["images"]) for output in outputs} == {1, 2}
    assert sum(asked["image_data"] is None for asked in client.asked) == 4
    for output in outputs:
        pads = (output.prompt_ids + output.response_ids).count(5)  # <|image_pad|>; a picture of 56 x 56 takes 4
        assert pads == 4 * len(output.multi_modal_data["images"])


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
    assert outputs[1].as_dict()["rm_scores"][-1].item() == pytest.approx(total)
    # where the window is not what rewrites history, but a chat template, only the first episode tells
    for key, value, ours, message in (
        ("algorithm.adv_estimator", "rloo", False, "rloo would count it once per sequence under this trainer"),
        ("algorithm.adv_estimator", "opo", True, "opo would count it once per sequence under this trainer"),
        ("trainer.use_v1", False, False, "legacy trainer takes one"),
    ):
        other = copy.deepcopy(config)
        put(other, key, value)
        put(other, "data.uirl.credits_episodes", ours)
        with pytest.raises(ConfigError, match=message):
            play(other, Client(client.server), *rows(other))
    put(config, "data.uirl.credits_episodes", True)
    put(config, "algorithm.adv_estimator", "rloo")
    assert len(play(config, Client(client.server), *rows(config))[0]) == 2


SYNC = {"trainer.v1.trainer_mode": "sync"}


@pytest.mark.parametrize(
    ("window", "keys", "message"),
    [
        (
            "rollout.token_budget=16",
            SYNC | {"algorithm.adv_estimator": "rloo"},
            "rloo would count it once per sequence",
        ),
        ("rollout.max_images=1", {"algorithm.adv_estimator": "opo"}, "opo would count it once per sequence"),
        ("rollout.token_budget=16", {"trainer.use_v1": False}, "legacy trainer takes one"),
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


class Recorder:
    """A server client that answers one end token and keeps nothing; `sizes`: of the pictures, as Ray sends them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sent: list[Any] = []
        self.sampling: dict[str, Any] = {}
        self.further: dict[str, Any] = {}

    async def generate(self, *, sampling_params: dict[str, Any], image_data: Any, **request: Any) -> Any:
        self.sizes.append(len(pickle.dumps(image_data)))
        self.sent += [weakref.ref(picture) for picture in image_data or ()]
        self.sampling, self.further = sampling_params, request
        return SimpleNamespace(token_ids=[2], log_probs=[-1.0], stop_reason="completed", extra_fields={})


def shown(*shots: Screenshot) -> Context:
    return Context((1, 2), shots, (1, 2), shots, True)


def ask(agent: ServerAgent, *contexts: Context) -> None:
    async def turns() -> None:
        for context in contexts:
            await agent.act(context, None, None, 8)  # type: ignore[arg-type]

    asyncio.run(turns())


def test_pictures_go_to_the_server_as_they_were_captured_and_are_forgotten() -> None:
    plain = Image.new("RGB", (640, 360), (20, 40, 60))
    shots = [screenshot(plain), screenshot(plain.rotate(180).resize((320, 360)))]
    client = Recorder()
    agent = ServerAgent(client, {}, max_tokens=8, end_ids=[2])
    ask(agent, shown(*shots), shown(shots[1]))
    assert client.sizes[0] < sum(len(shot.data) for shot in shots) + 1000
    assert client.sizes[0] < 640 * 360 * 3 / 20, "not the pixels"
    assert [sent() for sent in client.sent] == [None] * 3, "the agent keeps none"
    (arrived,) = pickle.loads(pickle.dumps([RemoteImage(shots[0])]))
    assert (arrived.mode, arrived.tobytes()) == ("RGB", plain.tobytes())


@pytest.mark.parametrize(("server", "left"), [("sglang", True), ("vllm", False)])
def test_no_server_samples_placeholders_of_pictures(server: str, left: bool, tmp_path: Path) -> None:
    """verl tells vLLM to leave them out; SGLang is told with every request."""
    key = "actor_rollout_ref.rollout.name"
    config, _ = prepared(tmp_path, "inference.seed=null", verl={key: server})
    client = Recorder()
    context = asyncio.run(opened(config, client))
    asyncio.run(loop_of(config, client).run(dict(SAMPLING), **rows(config)[0]))
    pad = context.loaded.vision.image_token_id
    assert pad in context.loaded.banned_ids
    biases = client.sampling.get("logit_bias", {})
    assert biases == ({str(token): -1e9 for token in context.loaded.banned_ids} if left else {})


async def opened(config: Any, client: Any) -> Any:
    return await context_of(config, client)


def test_the_bounds_of_pictures_are_those_of_prompt_and_server(tmp_path: Path) -> None:
    config, _ = prepared(tmp_path, verl={"data.mm_processor_kwargs.max_pixels": 28 * 28})
    client = Recorder()
    context = asyncio.run(opened(config, client))
    large = screenshot(Image.new("RGB", (112, 112)))
    (encoded,) = context.loaded.vision.encode([large])
    assert encoded.tokens == 1, "28 x 28 pixels are one cell"
    agent = ServerAgent(client, {}, max_tokens=8, end_ids=[2], picture_options=context.picture_options)
    ask(agent, shown(large))
    assert client.further["mm_processor_kwargs"] == {"max_pixels": 28 * 28}
    plain, _ = prepared(tmp_path / "plain")
    other = asyncio.run(opened(plain, Recorder()))
    assert other.picture_options == {}
    assert other.loaded.vision.encode([large])[0].tokens == 4, "its own bounds: processors share nothing"


def test_a_seed_is_refused_where_the_server_takes_none(tmp_path: Path) -> None:
    config, client = prepared(tmp_path, *TEXT, verl={"actor_rollout_ref.rollout.name": "sglang"})
    with pytest.raises(ConfigError, match="takes no seed per request"):
        play(config, client, *rows(config))


def test_a_server_that_died_is_an_engine_failure(tmp_path: Path) -> None:
    config, _ = prepared(tmp_path, *TEXT)

    class Dead:
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise ActorDiedError

    with pytest.raises(EpisodeFailed, match="rollout server did not answer") as caught:
        play(config, Client(Dead()), *rows(config))
    assert caught.value.kind == "engine"


class Desk:
    """A coordinator by hand: says of each episode whether it kept it, and remembers which pictures came along."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.came: list[set[str]] = []
        self.repeated: list[bool] = []
        self.add = SimpleNamespace(remote=self._add)

    async def _add(
        self, trajectory: Trajectory, pictures: dict[str, bytes], step: int, split: str, repeated: bool
    ) -> bool:
        self.came.append(set(pictures))
        self.repeated.append(repeated)
        return self.answers[len(self.came) - 1]


def test_pictures_that_were_not_kept_are_sent_again(tmp_path: Path) -> None:
    config, client = prepared(tmp_path)
    desk = Desk(False, True, True)

    async def same_episode_three_times() -> None:
        context = await context_of(config, client)
        context.coordinator = desk
        (row,) = rows(config)
        for _ in range(3):
            await loop_of(config, client).run(dict(SAMPLING), **row)

    asyncio.run(same_episode_three_times())
    first, second, third = desk.came
    assert first == second != set()
    assert third == set()


def test_an_evaluation_is_on_the_record_once(tmp_path: Path) -> None:
    """verl evaluates once more where a run continues."""
    turn = Turn(Observation("look"), (1, 2), (3, 4), (-0.5, -0.5))
    held_out = Trajectory(id="eval-0@1-0", group_id="eval-0@1", turns=[turn])
    coordinator = RunCoordinator({}, str(tmp_path))
    coordinator.begin(None)
    assert coordinator.add(held_out, {}, 1, "eval")
    coordinator.close()
    again = RunCoordinator({}, str(tmp_path))
    again.begin(1)
    assert not again.add(replace(held_out, id="eval-0@1-1"), {}, 1, "eval")
    assert again.add(replace(held_out, id="train-0-0", group_id="train-0"), {}, 2, "train")
    again.close()


def test_attempts_that_were_repeated_are_told_from_episodes(tmp_path: Path) -> None:
    fragile = "environment.name=tests.integrations.verl.worlds:OneBrokenTask"
    config, client = prepared(tmp_path, *TEXT, fragile, "rollout.retries=1")
    desk = Desk(True, True)

    async def played() -> None:
        (await context_of(config, client)).coordinator = desk
        with pytest.raises(EpisodeFailed):
            await loop_of(config, client).run(dict(SAMPLING), **broken_row(config))

    asyncio.run(played())
    assert desk.repeated == [True, False]
    coordinator = RunCoordinator({}, None)
    for i, repeated in enumerate(desk.repeated):
        coordinator.add(Trajectory(id=f"train-0-{i}"), {}, 1, "train", repeated)
    taken = coordinator.take()
    assert ([t.id for t in taken.episodes], [t.id for t in taken.attempts]) == (["train-0-1"], ["train-0-0"])
    assert coordinator.take().episodes == []


class Unsendable(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code} {reason}")


def test_the_first_error_for_the_person_is_kept_as_it_is_where_it_can_be_sent() -> None:
    coordinator = RunCoordinator({}, None)
    assert coordinator.first_error() is None
    coordinator.report_error(portable(ConfigError("install abacus")))
    coordinator.report_error(portable(Unsendable(5, reason="later")))
    assert repr(coordinator.first_error()) == repr(ConfigError("install abacus"))
    assert repr(portable(Unsendable(5, reason="no way"))) == repr(RuntimeError("Unsendable: 5 no way"))


def test_it_is_registered_and_plays_alone_too() -> None:
    assert issubclass(MobileWorldAgentLoop, EnvironmentAgentLoop)
    for name, loop_class in (("uirl", EnvironmentAgentLoop), ("mobile_world", MobileWorldAgentLoop)):
        assert _agent_loop_registry[name] == {"_target_": f"{loop_class.__module__}.{loop_class.__qualname__}"}
    loop = MobileWorldAgentLoop(env=TwoLooks(), agent_type="text", engine=says("ab"), max_step=3)
    assert loop.run_full_interaction("a", "letters/few")["reward"] == 1.0
    assert loop.alone is not None
    loop.alone.close()


def test_a_loop_that_verl_made_has_no_environment() -> None:
    loop = MobileWorldAgentLoop.__new__(MobileWorldAgentLoop)
    loop.alone = None
    with pytest.raises(ContractError, match="give it env="):
        loop.run_full_interaction("a")
