"""verl's workers with pictures: processed beside the event loop, kept packed in verl's queue, read as before."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from uirl.integrations.verl.rollout.packing import PIXELS, PackedInputs
from uirl.integrations.verl.rollout.pictures import PictureWorker

pytestmark = pytest.mark.verl
BASE = AgentLoopWorkerTQ.__ray_actor_class__


def pixels(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (8, 24), generator=torch.Generator().manual_seed(seed)).float() / 255


def worker() -> Any:
    made = PictureWorker.__new__(PictureWorker)
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
