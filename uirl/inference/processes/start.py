"""The engine processes of a config behind one router."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from uirl.inference.base import InferenceEngine
from uirl.inference.models.loading import LoadedModel
from uirl.inference.processes.engine import EngineProcess
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
    whole = config.to_dict()
    plain = {"model": whole["model"], "inference": whole["inference"], "training": {"seed": config.training.seed}}
    plain["actors"] = {name: whole["actors"][name] for name in ("swap", "keep_cache")}
    plain["model"]["local_path"] = model_folder(config, loaded, files, program="an engine process")
    engines = [EngineProcess(plain, files=files, name=name, threads=threads) for name in names]
    return Router(engines, names=names, files=files)
