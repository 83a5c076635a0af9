"""One run of verl, in the actor that verl calls its task runner."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.utils.import_utils import load_class_from_fqn

from uirl.errors import ConfigError
from uirl.integrations.verl.config.llm import llm_variables
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.rollout.context import close_environments
from uirl.integrations.verl.rollout.coordinator import RunObjects, start_coordinator
from uirl.integrations.verl.rollout.servers import surviving
from uirl.integrations.verl.trainer.liveness import DEATHS, Watch, actors_of, lost


def run(config: Any, objects: RunObjects) -> None:
    """Train until verl's trainer has come to its end. Raises what broke it, ProcessLost where a process died."""
    refuse_trl()
    runner = _BoundRunner(objects)
    before = _Traces.now()
    try:
        run_ppo(config, runner)
    except (ray.exceptions.RayTaskError, *DEATHS) as error:
        raise _cause(error) from error
    finally:
        runner.end()
        before.restore()


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
        self._packed = (objects.of_workers().pack(), objects.of_datasets().pack())
        self._actor: Any = None

    def options(self, **options: Any) -> Any:
        """Return the runner itself: verl asks for options where it profiles, and the runner takes none."""
        return self

    def remote(self) -> Any:
        self._actor = ray.remote(Runner).options(num_cpus=1).remote(*self._packed)
        self._actor.set_env.remote(llm_variables())
        return self._actor

    def end(self) -> None:
        """End the runner, and with it everything it started."""
        if self._actor is not None:
            ray.kill(self._actor)


class Runner:
    """Ray actor: sets verl's trainer up and fits it, in the process where the datasets live."""

    def __init__(self, worker_objects: bytes | None, dataset_objects: bytes | None) -> None:
        """Keep packed `RunObjects`."""
        self._packed = (worker_objects, dataset_objects)

    def set_env(self, variables: dict[str, str]) -> None:
        """Set environment variables of this process; as arguments of a call Ray keeps them nowhere."""
        os.environ.update(variables)

    def run(self, config: Any) -> None:
        """Train; called by verl."""
        OmegaConf.resolve(config)
        settings = Settings.read(config.data)
        name, coordinator = start_coordinator(settings.config, settings.directory, *self._packed)
        settings.coordinator = name
        settings.write(config)
        try:
            if config.trainer.use_v1:
                self._run_v1(config, coordinator)
            else:
                from uirl.integrations.verl.trainer.legacy import run_legacy

                run_legacy(config)
        finally:
            ray.get(coordinator.close.remote())

    def _run_v1(self, config: Any, coordinator: Any) -> None:
        import transfer_queue
        from verl.trainer.ppo.v1 import get_trainer_cls

        from uirl.integrations.verl.trainer import v1  # noqa: F401  (registers our trainer)

        config.transfer_queue.enable = True
        transfer_queue.init(config.transfer_queue)
        trainer = manager = None
        ended_well = False
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
            ended_well = True
            record = getattr(trainer, "record", None)
            if record is not None:
                record.finish()
        finally:
            try:
                close_environments(manager)
            finally:
                tracking = getattr(trainer, "logger", None)
                if tracking is not None:
                    tracking.finish(exit_code=0 if ended_well else 1)
                transfer_queue.close()


def create_agent_loop_manager(config: Any, trainer: Any) -> Any:
    """Return the agent-loop manager that `rollout.agent.agent_loop_manager_class` names, or the V1 trainer's own with
    workers that tell of errors, with the servers and reward workers of `trainer`. A server that dies is left out."""
    from uirl.integrations.verl.rollout.workers import ReportingManager

    named = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    manager = load_class_from_fqn(named, "AgentLoopManager") if named else ReportingManager
    return manager.create(
        config=config,
        llm_client=surviving(trainer.get_llm_client()),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


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


def _cause(error: Exception) -> Exception:
    """Return the error of ours inside what Ray made of it, ProcessLost where a process died; Ray's own otherwise."""
    from uirl.errors import UirlError

    cause: Any = error
    while getattr(cause, "cause", None) is not None:  # one more for every actor it came through
        cause = cause.cause
    if isinstance(cause, DEATHS):
        return lost("a process of the run died", cause)
    return cause if isinstance(cause, UirlError) else error


@dataclass(frozen=True, slots=True)
class _Traces:
    """What stands in Ray's cluster by name. A run ends when its own is gone: the next one uses the same names and the
    same devices."""

    actors: frozenset[str]
    groups: frozenset[str]

    @classmethod
    def now(cls) -> _Traces:
        if not ray.is_initialized():
            return cls(frozenset(), frozenset())
        table = ray.util.placement_group_table()
        groups = {entry["name"] for entry in table.values() if entry["state"] != "REMOVED" and entry["name"]}
        return cls(frozenset(ray.util.list_named_actors()), frozenset(groups))

    def restore(self, seconds: float = 60.0) -> None:
        """Remove the placement groups that were made since, which Ray keeps as long as the driver lives, and wait until
        they and the actors are gone."""
        for name in self.now().groups - self.groups:
            with suppress(ValueError):  # it went by itself
                ray.util.remove_placement_group(ray.util.get_placement_group(name))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            left = self.now()
            if left.actors <= self.actors and left.groups <= self.groups:
                return
            time.sleep(0.1)
