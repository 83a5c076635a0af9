"""Our agent loop without Ray: a client of a server in this process, rows, and what the loop makes of them."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from tests.integrations.verl.cpu.rollout import CPUServer
from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import BROKEN
from uirl.integrations.verl.agent_loop import EnvironmentAgentLoop
from uirl.integrations.verl.tasks import CustomEnvironmentDataset

TWO_LOOKS = "environment.name=tests.integrations.verl.worlds:TwoLooks"


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


TEXT = ("model.model_name=uirl/tiny-lm", "environment.options={pictures: false}")


class Client:
    """verl's server client without Ray: remembers what it was asked and what it answered."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.asked: list[dict[str, Any]] = []
        self.answers: list[Any] = []

    async def generate(self, request_id: str, **request: Any) -> Any:
        request = pickle.loads(pickle.dumps(request))  # as Ray does
        self.asked.append({"request_id": request_id, **request})
        made = await self.server.generate(request_id, **request)
        steps = made.extra_fields["global_steps"]
        made.extra_fields |= {"min_global_steps": steps, "max_global_steps": steps}
        self.answers.append(made)
        return made


def prepared(folder: Path, *overrides: str, verl: dict[str, Any] | None = None) -> tuple[Any, Client]:
    """(verl's config of a run, a client of its server), in this process."""
    run = trainer(config(folder, TWO_LOOKS, *overrides), verl=verl)
    run._place_model(run.directory / "model")
    part = run.config.actor_rollout_ref
    return run.config, Client(CPUServer(part.rollout, part.model))


def play(config: Any, client: Any, *rows: dict[str, Any]) -> list[Any]:
    """What the loop makes of each row, played together as verl's worker does."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(loop_of(config, client).run(dict(SAMPLING), **row) for row in rows))

    return asyncio.run(all_of_them())


def loop_of(config: Any, client: Any) -> EnvironmentAgentLoop:
    tokenizer = SimpleNamespace(chat_template="", apply_chat_template=lambda *_, **__: [])
    return EnvironmentAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=CustomEnvironmentDataset,
        data_config=DictConfigWrap(config.data),
    )


def rows(config: Any, count: int = 1, members: int = 1) -> list[dict[str, Any]]:
    """Rows of the dataset as the V1 trainer hands them on, `members` of each."""
    dataset = CustomEnvironmentDataset(config=config.data, data_files="uirl:train")
    made = [dataset[i] for i in range(count)]
    return [{**row, "session_id": m, "global_steps": 1} for row in made for m in range(members)]


class CustomTokenizer:
    """Decodes as the policy's tokenizer does."""

    def __init__(self, config: Any) -> None:
        from transformers import AutoTokenizer

        self._own = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)

    def __call__(self, ids: list[int]) -> str:
        return str(self._own.decode(ids, skip_special_tokens=True))


def broken_row(config: Any) -> dict[str, Any]:
    """A row with the task that breaks."""
    (row,) = rows(config)
    return {**row, "extra_info": {**row["extra_info"], "task": BROKEN}}
