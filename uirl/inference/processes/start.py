"""The engine processes of a config behind one router."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from uirl.inference.base import InferenceEngine
from uirl.inference.models.loading import LoadedModel
from uirl.inference.processes.engine import EngineProcess
from uirl.inference.processes.life import ChildProcesses
from uirl.inference.router import Router
from uirl.inference.servers import model_folder
from uirl.inference.weight_files import WeightFiles, plain_parameters

if TYPE_CHECKING:
    from uirl.config import ConfigStore


def processes_of(engine: InferenceEngine) -> list[EngineProcess]:
    """Return the processes that an engine consists of; none where it is in this process or somebody else's."""
    return [one for one in engine.engines if isinstance(one, EngineProcess)] if isinstance(engine, Router) else []


def engine_processes(config: ConfigStore, loaded: LoadedModel) -> Router:
    """Return `config.actors.engines` engine processes as one engine; each loads the model of the config when it is
    first asked. `loaded`: the learner's model, whose size says where its weights have room."""
    count = config.actors.engines
    files = WeightFiles(config.inference.weights_dir, size=sum(p.nbytes for _, p in plain_parameters(loaded)))
    threads = config.training.threads
    if threads is None and loaded.device.type == "cpu":
        threads = max(1, (os.cpu_count() or 1) // count)
    names = [f"engine-{number}" for number in range(count)]
    gpus = gpus_for(count, loaded.device, os.environ.get("CUDA_VISIBLE_DEVICES"))
    whole = config.to_dict()
    plain = {"model": whole["model"], "inference": whole["inference"], "training": {"seed": config.training.seed}}
    plain["actors"] = {name: whole["actors"][name] for name in ("swap", "keep_cache")}
    plain["model"]["local_path"] = model_folder(config, loaded, files, program="an engine process")
    if loaded.device.type == "cuda":
        plain["model"]["device"] = "cuda"  # the one that it sees
    launches = [ChildProcesses({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in gpus]
    engines = [
        EngineProcess(plain, files=files, name=name, threads=threads, launch=launch)
        for name, launch in zip(names, launches, strict=True)
    ]
    return Router(engines, names=names, files=files)


def gpus_for(count: int, learner: torch.device, visible: str | None, *, present: int | None = None) -> list[str | None]:
    """Return the GPU of each of `count` engine processes, as CUDA_VISIBLE_DEVICES names it; None: none.

    The learner's is left out where there are others, and these are given out in turn. `visible`: CUDA_VISIBLE_DEVICES
    of this process, `present`: how many GPUs it sees; None: as many as torch says.
    """
    if learner.type != "cuda":
        return [None] * count
    seen = torch.cuda.device_count() if present is None else present
    all_of_them = [one.strip() for one in visible.split(",")] if visible else [str(number) for number in range(seen)]
    mine = learner.index or 0
    others = [gpu for number, gpu in enumerate(all_of_them[:seen]) if number != mine] or all_of_them[mine : mine + 1]
    return [others[number % len(others)] for number in range(count)]
