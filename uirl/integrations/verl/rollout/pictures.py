"""verl's agent-loop workers for episodes with pictures: processed beside the event loop, kept as bytes.

verl makes pixels of all pictures of a sequence where its episodes are played, on their event loop and as float32: about
0.1 s and 22.5 MB for each screenshot of 1280 x 720, in which no other episode moves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from uirl.integrations.verl.rollout.packing import PackedInputs

_Worker: type = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__


class PictureWorker(_Worker):
    """verl's worker of the V1 trainers, one thread beside it for pictures. `ReportingWorker` is the one that runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # one: HuggingFace's tokenizers do not bear two callers at once
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="pictures")
        self._packed_inputs: dict[int, PackedInputs] = {}

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: Any) -> None:
        outputs = output if isinstance(output, list) else [output]
        loop = asyncio.get_running_loop()
        for one in outputs:
            if one.multi_modal_data:
                self._packed_inputs[id(one)] = await loop.run_in_executor(self._beside, self._packed, one)
        try:
            await super()._agent_loop_postprocess(output, validate, **row)
        finally:
            for one in outputs:
                self._packed_inputs.pop(id(one), None)

    def _compute_multi_modal_inputs(self, output: Any, input_ids: torch.Tensor) -> Any:
        packed = self._packed_inputs.pop(id(output), None)
        return super()._compute_multi_modal_inputs(output, input_ids) if packed is None else packed

    def _packed(self, output: Any) -> PackedInputs:
        ids = torch.tensor([*output.prompt_ids, *output.response_ids])
        inputs = super()._compute_multi_modal_inputs(output, ids)
        return PackedInputs(inputs, getattr(self.processor, "image_processor", None))
