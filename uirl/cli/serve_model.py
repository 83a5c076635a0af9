"""`uirl serve-model`: a model behind an OpenAI-compatible address."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.errors import ConfigError

if TYPE_CHECKING:
    from uirl.config import ConfigStore, InferenceConfig
    from uirl.inference import InferenceEngine
    from uirl.learner import Policy
    from uirl.serving import ModelEndpoint
    from uirl.storage import TrajectoryStore
    from uirl.types import Trajectory


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    serve = commands.add_parser("serve-model", help="serve a model to programs written for the OpenAI client")
    serve.add_argument("model", metavar="MODEL", help="built-in name, HF id, folder, run directory or checkpoint")
    serve.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="0: a free one (default 8000)")
    serve.add_argument("--backend", help="engine: transformers, vllm, sglang, ... (default: that of the config)")
    serve.add_argument("--api-key-env", metavar="NAME", help="environment variable with the operator's key")
    serve.add_argument("--parser", default="qwen", help="how the model writes tool calls (default qwen)")
    serve.add_argument("--name", help="what clients call the model (default: MODEL)")
    serve.add_argument("--any-model", action="store_true", help="answer whatever model a client names")
    serve.add_argument("--record", metavar="PATH", help="SQLite file or folder for finished sessions; needs a key")
    serve.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the config")
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; return 0."""
    from uirl.inference import create_engine
    from uirl.storage import origin_of

    key = _api_key(options.api_key_env)
    policy, config = _load(options.model, options.backend, options.overrides)
    store = None
    if options.record is not None:
        store = _open_store(Path(options.record), origin_of(config.model, config.inference, served=options.model))
    try:
        engine = create_engine(config, policy.loaded, shared=True)
        asyncio.run(_serve(options, key, policy, engine, config.inference, store))
    finally:
        if store is not None:
            store.close()
    return 0


async def _serve(
    options: argparse.Namespace,
    key: str | None,
    policy: Policy,
    engine: InferenceEngine,
    settings: InferenceConfig,
    store: TrajectoryStore | None,
) -> None:
    from uirl.images import ImageStore
    from uirl.serving import ModelEndpoint
    from uirl.training.assembly import sampling_of

    images = ImageStore()
    await send_weights(policy, engine)
    endpoint = ModelEndpoint(
        engine,
        policy.loaded,
        parser=options.parser,
        images=images,
        model_name=options.name or options.model,
        sampling=sampling_of(settings),
        host=options.host,
        port=options.port,
        api_key=key,
        max_context=settings.max_context,
        any_model=options.any_model,
        remote_sessions=store is not None,
        for_training=False,
        on_finished=_recorder(store, images),
    )
    try:
        async with endpoint:
            _announce(endpoint, options.api_key_env, store)
            await _interrupted()
    finally:
        await engine.close()


async def send_weights(policy: Policy, engine: InferenceEngine) -> None:
    """Make `engine` sample from `policy`: one with a model of its own is sent the weights."""
    if engine.takes_weights and not engine.shares_weights:
        weights, adapter = policy.update_for(engine)
        await engine.update_weights(weights, engine.policy_version, adapter=adapter)


def _load(model: str, backend: str | None, overrides: list[str]) -> tuple[Policy, ConfigStore]:
    """Load the policy that `model` names and the config it runs with."""
    from uirl.config import ConfigStore
    from uirl.config.stored import override_stored
    from uirl.learner import Policy
    from uirl.storage import run_of
    from uirl.training.evaluation.measure import locate, policy_at

    changes = [*overrides, *([f"inference.backend={backend}"] if backend else [])]
    if Path(model).exists():
        folder, stored = locate(Path(model))
        config = override_stored(stored, changes, run_of(model) or Path(model))
        return policy_at(folder, config), config
    config = ConfigStore()
    config.model.model_name = model
    config = config.override(changes)
    return Policy.from_config(config, critic=False), config


def _api_key(name: str | None) -> str | None:
    """Return the key in the environment variable `name`; None: no variable was named."""
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise ConfigError(
            f"--api-key-env {name}: there is no such environment variable, or it is empty; export it first"
        )
    return key


def _open_store(path: Path, origin: Mapping[str, Any]) -> TrajectoryStore:
    from uirl.storage import TrajectoryStore

    if path.suffix not in (".sqlite", ".db"):
        path.mkdir(parents=True, exist_ok=True)
        path = path / "trajectories.sqlite"
    return TrajectoryStore(path, origin=origin)


def _recorder(store: TrajectoryStore | None, images: Any) -> Callable[[Trajectory], None] | None:
    """Return the recorder of finished sessions under the policy version that sampled last; None: none."""
    if store is None:
        return None

    def keep(record: Trajectory) -> None:
        version = max((turn.policy_version for turn in record.turns), default=0)
        store.add(record, step=version, split="serve", images=images)

    return keep


def _announce(endpoint: ModelEndpoint, key_name: str | None, store: TrajectoryStore | None) -> None:
    key = f"os.environ[{key_name!r}]" if key_name else "'none'"
    print(f"serving {endpoint.model_name} at {endpoint.base_url}")
    print(f"  client = openai.OpenAI(base_url={endpoint.base_url!r}, api_key={key})")
    print(f"  client.chat.completions.create(model={endpoint.model_name!r}, messages=[...])")
    if store is not None:
        print(f"  finished sessions go to {store.path}: POST {{}} to {endpoint.url}/sessions opens one and tells the")
        print("  base_url and api_key for its agent, and the finish_url and grader_key for whoever judges it:")
        print('  POST {"reward": 1.0} there finishes it')
    print("Ctrl-C ends it", flush=True)


async def _interrupted() -> None:
    """Wait for SIGINT or SIGTERM."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
            loop.add_signal_handler(name, ended.set)
    await ended.wait()
