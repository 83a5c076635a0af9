"""One run of verl, in the actor that verl calls its task runner."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.utils.import_utils import load_class_from_fqn

from uirl.errors import ConfigError, UirlError
from uirl.integrations.verl.record import RunObjects, start_coordinator
from uirl.integrations.verl.settings import Settings, llm_variables
from uirl.integrations.verl.workers import DEATHS, EpisodeManager, Watch, actors_of, close_environments, lost, surviving


def run(config: Any, objects: RunObjects) -> None:
    """Train until verl's trainer has come to its end. Raises what broke it, ProcessLost where a process died."""
    refuse_trl()
    runner = _BoundRunner(objects)
    actors, groups = _names_in_ray()
    try:
        run_ppo(config, runner)
    except (ray.exceptions.RayTaskError, *DEATHS) as error:
        cause: Any = error
        while getattr(cause, "cause", None) is not None:  # one more for every actor it came through
            cause = cause.cause
        if isinstance(cause, DEATHS):
            raise lost("a process of the run died", cause) from error
        raise (cause if isinstance(cause, UirlError) else error) from error
    finally:
        if runner.actor is not None:
            ray.kill(runner.actor)  # and with it everything it started
        _wait_until_gone(actors, groups)


def refuse_trl() -> None:
    """Raise ConfigError where a TRL is installed with which verl's workers fail: they import a class of TRL's wherever
    they find TRL, and TRL 1 has it no more."""
    if importlib.util.find_spec("trl") is None:
        return
    name = "AutoModelForCausalLMWithValueHead"
    for module in ("trl.experimental.ppo", "trl"):
        with suppress(ImportError):
            if hasattr(importlib.import_module(module), name):
                return
    raise ConfigError(
        f"verl imports {name} from TRL, and the TRL installed here has no such class; pip uninstall trl, or give verl "
        "an environment of its own"
    )


class _BoundRunner:
    """What `run_ppo` takes for a class of task runners: the one below, with its objects."""

    def __init__(self, objects: RunObjects) -> None:
        self._packed = objects.pack()
        self.actor: Any = None

    def options(self, **options: Any) -> Any:
        """Return the runner itself: verl asks for options where it profiles, and the runner takes none."""
        return self

    def remote(self) -> Any:
        self.actor = ray.remote(Runner).options(num_cpus=1).remote(self._packed)
        self.actor.set_env.remote(llm_variables())
        return self.actor


class Runner:
    """Ray actor: sets verl's trainer up and fits it, in the process where the datasets live."""

    def __init__(self, objects: bytes | None) -> None:
        """Keep packed `RunObjects`."""
        self._packed = objects

    def set_env(self, variables: dict[str, str]) -> None:
        """Set environment variables of this process; as arguments of a call Ray keeps them nowhere."""
        os.environ.update(variables)

    def run(self, config: Any) -> None:
        """Train; called by verl."""
        OmegaConf.resolve(config)
        settings = Settings.read(config.data)
        settings.coordinator, coordinator = start_coordinator(settings.config, settings.directory, self._packed)
        settings.write(config)
        try:
            from uirl.integrations.verl.v1 import run_legacy  # and registers our trainer

            if config.trainer.use_v1:
                _run_v1(config, coordinator)
            else:
                run_legacy(config)
        finally:
            ray.get(coordinator.close.remote())


def _run_v1(config: Any, coordinator: Any) -> None:
    import transfer_queue
    from verl.trainer.ppo.v1 import get_trainer_cls

    config.transfer_queue.enable = True
    transfer_queue.init(config.transfer_queue)
    trainer = manager = None
    exit_code = 1
    try:
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        trainer.init()
        manager = create_agent_loop_manager(config, trainer)
        watch = Watch({**actors_of(trainer, manager), "the coordinator": coordinator})
        watch_over(trainer, watch, lambda: ray.get(coordinator.first_error.remote()))
        try:
            trainer.fit(manager)
        except DEATHS as error:  # in a call, where it is found earlier than by asking
            raise watch.lost(error) from error
        exit_code = 0
        record = getattr(trainer, "record", None)
        if record is not None:
            record.finish()
    finally:
        try:
            close_environments(manager)
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=exit_code)
            transfer_queue.close()


def create_agent_loop_manager(config: Any, trainer: Any) -> Any:
    """Return the agent-loop manager that `rollout.agent.agent_loop_manager_class` names, or the V1 trainer's own with
    workers that tell of errors, with the servers and reward workers of `trainer`. A server that dies is left out."""
    named = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    manager = load_class_from_fqn(named, "AgentLoopManager") if named else EpisodeManager
    return manager.create(
        config=config,
        llm_client=surviving(trainer.get_llm_client()),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def _names_in_ray() -> tuple[set[str], set[str]]:
    """Return the names of actors and of placement groups in Ray's cluster."""
    if not ray.is_initialized():
        return set(), set()
    table = ray.util.placement_group_table().values()
    groups = {entry["name"] for entry in table if entry["state"] != "REMOVED" and entry["name"]}
    return set(ray.util.list_named_actors()), groups


def _wait_until_gone(actors: set[str], groups: set[str], seconds: float = 60.0) -> None:
    """Remove the placement groups beside `groups`, which Ray keeps as long as the driver lives, and wait until they and
    the actors beside `actors` are gone: the next run uses the same names and the same devices."""
    for name in _names_in_ray()[1] - groups:
        with suppress(ValueError):  # it went by itself
            ray.util.remove_placement_group(ray.util.get_placement_group(name))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left_actors, left_groups = _names_in_ray()
        if left_actors <= actors and left_groups <= groups:
            return
        time.sleep(0.1)


def watch_over(trainer: Any, watch: Watch, first_error: Callable[[], Exception | None]) -> None:
    """Make the trainer's waiting for episodes end with ProcessLost where a process has died, and with what
    `first_error` returns: an error that is meant for the user.

    With a sampler of somebody else's that waits in another way, errors are raised when all episodes have ended.
    """
    buffer = trainer.replay_buffer
    sample, wait = buffer.sample, getattr(buffer, "_wait_for_next_poll", None)

    def listen() -> None:
        error = first_error()
        if error is not None:
            raise error

    def wait_among_the_living(*arguments: Any) -> Any:
        watch.check()
        listen()
        return wait(*arguments)  # type: ignore[misc]

    def sample_and_listen(*arguments: Any, **options: Any) -> Any:
        try:
            return sample(*arguments, **options)
        finally:
            listen()  # nothing is learned from a step that lost episodes without a reason on the record

    buffer.sample = sample_and_listen
    if wait is not None:
        buffer._wait_for_next_poll = wait_among_the_living
