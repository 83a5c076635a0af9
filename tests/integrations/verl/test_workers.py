"""verl's agent-loop workers: pictures packed beside the event loop, errors reported, dead servers left out."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from ray.exceptions import ActorDiedError
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from uirl import ConfigStore, load_model
from uirl.errors import ConfigError
from uirl.inference.models.picture_cache import PackedPixels, pack_pixels
from uirl.integrations.verl import workers
from uirl.integrations.verl.agent_loop import EpisodeFailed
from uirl.integrations.verl.workers import PIXELS, EpisodeWorker, PackedInputs, SurvivingClient, surviving

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def processor() -> Any:
    """The image processor of the built-in Qwen2-VL."""
    vision = load_model(ConfigStore().override(["model.model_name=uirl/tiny-vlm"]).model, weights=False).vision
    assert vision is not None
    return vision.processor


def processed(processor: Any, *sizes: tuple[int, int]) -> dict[str, Any]:
    """What it makes of noise of these sizes, which it has to resize."""
    draw = np.random.default_rng(0)
    shots = [Image.fromarray(draw.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    return dict(processor(images=shots, return_tensors="pt"))


def test_planes_of_other_processors_come_back_too() -> None:
    raw = torch.randint(0, 256, (2, 3, 8, 6), generator=torch.Generator().manual_seed(0)).float()
    packed = pack_pixels(raw / 255)
    assert packed is not None
    assert torch.equal(packed.unpack(), raw / 255)
    assert packed.codes.nbytes * 4 == raw.nbytes


def test_frames_that_differ_are_all_kept(processor: Any) -> None:
    pixels = processed(processor, (56, 56))[PIXELS]
    planes = pixels.reshape(len(pixels), 3, 2, -1)
    planes[:, :, 1] = planes[:, :, 1].flip(-1)
    packed = pack_pixels(pixels, processor)
    assert packed is not None
    assert (packed.frames, packed.codes.nbytes * 4) == (1, pixels.nbytes)
    assert torch.equal(packed.unpack(), pixels)


@pytest.mark.parametrize(
    "pixels", [torch.randn(4, 24), torch.zeros(0, 24), torch.zeros(4, 23), torch.ones(4, 24).int()]
)
def test_what_would_not_come_back_exactly_is_left_alone(pixels: torch.Tensor) -> None:
    assert pack_pixels(pixels) is None
    assert torch.equal(PackedInputs({PIXELS: pixels})[PIXELS], pixels)


def test_the_inputs_of_a_sequence_are_read_as_before_and_travel_small(processor: Any) -> None:
    inputs = processed(processor, (140, 84))
    packed = PackedInputs(inputs | {"mm_token_type_ids": torch.ones(3)}, processor)
    assert packed.pop("mm_token_type_ids", None) is not None
    assert set(packed) == set(inputs) == set(packed.keys())
    assert all(torch.equal(value, inputs[name]) for name, value in packed.items())
    assert packed.get("image_grid_thw") is inputs["image_grid_thw"]
    travelled = pickle.dumps(packed)
    assert len(travelled) < inputs[PIXELS].nbytes / 8 + 8000
    again = pickle.loads(travelled)
    assert isinstance(again.data[PIXELS], PackedPixels), "still packed"
    assert torch.equal(again[PIXELS], inputs[PIXELS])
    assert packed != again, "compared by identity: tensors have no truth value"


BASE = AgentLoopWorkerTQ.__ray_actor_class__


def pixels(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (8, 24), generator=torch.Generator().manual_seed(seed)).float() / 255


def worker() -> Any:
    made = EpisodeWorker.__new__(EpisodeWorker)
    made._beside, made._packed_inputs = ThreadPoolExecutor(1, thread_name_prefix="pictures"), {}
    made.processor = SimpleNamespace(image_processor=None)
    return made


def output(pictures: bool = True) -> Any:
    return SimpleNamespace(
        prompt_ids=[1, 2], response_ids=[3], multi_modal_data={"images": ["one"]} if pictures else {}
    )


def test_episodes_go_on_while_pictures_are_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor waits for something that only the event loop does."""
    moved = threading.Event()
    seen: list[Any] = []

    def compute(self: Any, output: Any, input_ids: torch.Tensor) -> dict[str, Any]:
        assert input_ids.tolist() == [1, 2, 3]
        seen.append((threading.current_thread().name.startswith("pictures"), moved.wait(60)))
        return {PIXELS: pixels(0)}

    async def postprocess(self: Any, output: Any, validate: bool, **row: Any) -> None:
        seen.append([self._compute_multi_modal_inputs(one, torch.tensor([1, 2, 3])) for one in output])

    monkeypatch.setattr(BASE, "_compute_multi_modal_inputs", compute)
    monkeypatch.setattr(BASE, "_agent_loop_postprocess", postprocess)
    w = worker()

    async def play() -> None:
        working = asyncio.ensure_future(w._agent_loop_postprocess([output(), output()], False, uid="u"))
        await asyncio.sleep(0)
        moved.set()
        await working

    asyncio.run(play())
    *processed, inputs = seen
    assert processed == [(True, True)] * 2
    assert [isinstance(one, PackedInputs) for one in inputs] == [True, True]
    assert torch.equal(inputs[0][PIXELS], pixels(0))
    assert w._packed_inputs == {}


def test_what_is_left_of_an_output_that_verl_could_not_take_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any, output: Any, validate: bool, **row: Any) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(BASE, "_compute_multi_modal_inputs", lambda *_: {PIXELS: pixels(0)})
    monkeypatch.setattr(BASE, "_agent_loop_postprocess", broken)
    w = worker()
    with pytest.raises(ValueError, match="no room"):
        asyncio.run(w._agent_loop_postprocess(output(), False))
    assert w._packed_inputs == {}


def test_a_sequence_vision_outputs_is_left_to_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    async def postprocess(self: Any, output: Any, validate: bool, **row: Any) -> None:
        taken.append(self._compute_multi_modal_inputs(output, torch.tensor([1])))

    monkeypatch.setattr(BASE, "_compute_multi_modal_inputs", lambda *_: {"text": 1})
    monkeypatch.setattr(BASE, "_agent_loop_postprocess", postprocess)
    asyncio.run(worker()._agent_loop_postprocess(output(pictures=False), False))
    assert taken == [{"text": 1}]


def test_verls_queue_keeps_them_packed_and_its_trainer_reads_the_same_pixels() -> None:
    from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder
    from verl.utils.model import extract_multi_modal_inputs
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [PackedInputs({PIXELS: pixels(i), "image_grid_thw": torch.tensor([[1, 2, 4]])}) for i in range(2)]
    batch = list_of_dict_to_tensordict([{"multi_modal_inputs": row, "n": torch.tensor([1])} for row in rows])
    frames = MsgpackEncoder().encode({"multi_modal_inputs": list(batch["multi_modal_inputs"])})
    kept = MsgpackDecoder().decode(frames)["multi_modal_inputs"]
    assert [type(row) for row in kept] == [PackedInputs, PackedInputs]
    read = extract_multi_modal_inputs(kept)
    assert torch.equal(read[PIXELS], torch.cat([pixels(0), pixels(1)]))
    assert read["image_grid_thw"].tolist() == [[1, 2, 4], [1, 2, 4]]


CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="cpu")))


class Local:
    """An object called as Ray calls an actor, in this process."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **options: Any) -> asyncio.Future[Any]:
            answer = asyncio.get_running_loop().create_future()
            try:
                answer.set_result(getattr(self.inner, name)(*arguments, **options))
            except Exception as error:
                answer.set_exception(error)
                answer.exception()  # not every answer is waited for
            return answer

        return SimpleNamespace(remote=remote)


class Server:
    """Answers with its number, until it is dead."""

    def __init__(self, number: int) -> None:
        self.number, self.dead, self.asked = number, False, 0

    def generate(self, **request: Any) -> TokenOutput:
        self.asked += 1
        if self.dead:
            raise ActorDiedError
        return TokenOutput(token_ids=[self.number], log_probs=[-0.5], stop_reason="completed")


def started(count: int) -> tuple[list[Server], LLMServerClient]:
    servers = [Server(i) for i in range(count)]
    balancer = GlobalRequestLoadBalancer({f"server {s.number}": Local(s) for s in servers})
    return servers, surviving(LLMServerClient(CONFIG, Local(balancer)))


def answers(client: LLMServerClient, ids: list[str]) -> list[int]:
    async def ask() -> list[Any]:
        asked = (client.generate(request_id, prompt_ids=[1], sampling_params={}) for request_id in ids)
        return await asyncio.gather(*asked)

    return [made.token_ids[0] for made in asyncio.run(ask())]


def test_a_dead_server_is_left_out_and_no_request_is_lost() -> None:
    servers, client = started(3)
    ids = [f"episode {i}" for i in range(30)]
    assert set(answers(client, ids)) == {0, 1, 2}
    servers[1].dead, servers[1].asked = True, 0
    assert set(answers(client, ids)) == {0, 2}
    assert servers[1].asked <= len(ids)
    servers[1].asked = 0
    answers(client, ids)
    assert servers[1].asked == 0, "the idlest server of all would get everything"


def test_turns_of_an_episode_stay_at_one_server() -> None:
    _, client = started(3)
    assert len({answers(client, ["one"])[0] for _ in range(10)}) == 1


def test_without_a_server_it_is_told() -> None:
    servers, client = started(2)
    for server in servers:
        server.dead = True
    with pytest.raises(RuntimeError, match="No available servers"):
        answers(client, ["one"])


def test_other_clients_are_left_as_they_are() -> None:
    own = FullyAsyncLLMServerClient(CONFIG, None)
    assert surviving(own) is own
    assert surviving("client") == "client"
    assert isinstance(surviving(LLMServerClient(CONFIG, None)), SurvivingClient)


def test_an_error_that_is_no_failure_of_an_episode_reaches_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Exception] = []
    raised: list[Exception] = [EpisodeFailed("environment", "the cable was pulled"), ConfigError("install abacus")]

    async def play(self: Any) -> None:
        raise raised[0]

    async def report(error: Exception) -> None:
        told.append(error)

    desk = SimpleNamespace(report_error=SimpleNamespace(remote=report))
    monkeypatch.setattr(BASE, "_run_agent_loop", play, raising=False)
    monkeypatch.setattr(workers, "find_coordinator", {"desk": desk}.get)
    w = worker()
    w.config = SimpleNamespace(data={"uirl": {"coordinator": "desk"}})
    while raised:
        with pytest.raises(type(raised[0])):
            asyncio.run(w._run_agent_loop())
        raised.pop(0)
    assert [str(error) for error in told] == ["install abacus"]
