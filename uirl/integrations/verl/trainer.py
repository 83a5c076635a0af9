"""`create_trainer(config, environment, tokenizer).fit()`: our environments and rewards under verl's own trainer."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.config.stored import remember
from uirl.environments import BaseEnvironment, EnvironmentSession, create_environment
from uirl.errors import ConfigError, did_you_mean
from uirl.integrations.verl.mapping import ignored
from uirl.integrations.verl.placement import (
    CREDITING,
    check_heads,
    check_idle_keys,
    check_picture_options,
    check_placement,
    check_window,
    longest_sequence,
)
from uirl.integrations.verl.settings import Settings, create_verl_config, put, tell_critic
from uirl.metrics import read_metrics
from uirl.rollout.multi_turn import MultiTurnInferenceEngine
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.files import write_atomically
from uirl.storage import RunDirectory, free_run_name
from uirl.training.record.progress import say
from uirl.training.record.tally import Tally
from uirl.training.summary import excluded_rows, warn_of_excluded
from uirl.training.tasks.sources import tasks_of
from uirl.training.tasks.task_sets import require_shared_instances, require_tasks_arrive

HOOKS = {
    "trainer.v1.trainer_mode": CREDITING,
    "trainer.checkpoint_callback_class": "uirl.integrations.verl.v1.StateCallback",
    "data.custom_cls.path": "pkg://uirl.integrations.verl.tasks",
    "data.custom_cls.name": "CustomEnvironmentDataset",
    "data.train_files": "uirl:train",
    "data.val_files": "uirl:eval",
    "data.shuffle": False,
    "data.validation_shuffle": False,
    "data.dataloader_num_workers": 0,
    "actor_rollout_ref.rollout.agent.default_agent_loop": "uirl",
}
"""verl's keys that put our parts into its places."""
LEGACY_HOOKS = {"trainer.use_v1": False, "trainer.v1.trainer_mode": "sync", "trainer.checkpoint_callback_class": None}
VISION_OUTPUTS = "uirl.integrations.verl.vision_outputs"
"""What every process that holds a model imports."""


class CustomRayPPOTrainer:
    """A run of verl's trainer on an environment of ours."""

    def __init__(
        self,
        config: Any,
        environment: BaseEnvironment | None = None,
        tokenizer: Any = None,
        *,
        reward_fn: RewardFunction | None = None,
        dataset: Iterable[Any] | None = None,
        curriculum: Any | None = None,
        multi_turn_engine: MultiTurnInferenceEngine | None = None,
        use_v1: bool = True,
        overrides: Mapping[str, Any] | None = None,
        eval_dataset: Iterable[Any] | None = None,
    ) -> None:
        """Build all parts and check them; start nothing.

        Args:
            config: A `ConfigStore`, or verl's own config (OmegaConf), whose `data.uirl.config` may hold one.
            environment: The environment; None: the one the config names.
            tokenizer: The tokenizer whose chat template to use; None: the model's own.
            reward_fn: Total reward of an episode from its trajectory (and the environment); None: what the environment
                pays.
            dataset: Tasks; None: those that the config names, else the environment's.
            curriculum: Says which task comes next (`uirl.training.tasks.curriculum.Curriculum`); None: the section
                `curriculum` of the config does.
            multi_turn_engine: Its turns, system prompt and tools are those of the episodes; verl's servers sample in
                the place of its own engine. None: the config's turns, the environment as it is.
            use_v1: False: verl's legacy trainer, as long as verl has it.
            overrides: verl's own keys; they win.
            eval_dataset: Tasks of the validation; None: those that the config names or chooses, else those of training
                on held-out instances.

        Raises ConfigError for what cannot work.
        """
        self.store = _store_of(config)
        without_effect = ignored(self.store.to_dict())
        if without_effect:
            warnings.warn("no effect under verl: " + "; ".join(without_effect), stacklevel=2)
        settings = self.store.environment
        if multi_turn_engine is not None:
            world = environment or create_environment(settings.name, settings.options_for("train"), settings)
            environment, prompt = multi_turn_engine.with_tools(world)
            self.store.inference.max_turns = multi_turn_engine.max_turns
            self.store.inference.system_prompt = prompt or self.store.inference.system_prompt
        if environment is None:
            settings.require_named()
        else:
            settings.note_object(environment)
        logging = self.store.logging
        name = logging.run_name or free_run_name(logging.runs_dir, f"{settings.label}-verl")
        self.directory = (Path(logging.runs_dir) / name).absolute()
        self.config = self._verl_config(config, overrides or {}, use_v1)
        """verl's whole config."""
        self.source = str(self.config.actor_rollout_ref.model.path)
        """The policy to start from, as the config names it."""
        _point_at_folder(self.config, self.source, self.directory / "model")
        self._environment, self._reward_fn, self._curriculum = environment, reward_fn, curriculum
        world = environment or create_environment(settings.name, settings.options_for("train"), settings)
        self._tasks = None if dataset is None else tuple(tasks_of(world, dataset, settings.columns))
        self._eval_tasks = None if eval_dataset is None else tuple(tasks_of(world, eval_dataset, settings.columns))
        for tasks in (self._tasks, self._eval_tasks):
            if tasks is not None:
                require_tasks_arrive(world, tasks, of_environment=False)
        estimator = self.store.training.adv_estimator
        require_shared_instances(world, self._tasks or tasks_of(world), estimator, settings.reset_timeout)
        if environment is None:
            loop = EventLoopThread()  # the caller may be in a loop of its own
            try:
                loop.run(EnvironmentSession(world).close())  # it was made to see that it can be made
            finally:
                loop.close()
        if tokenizer is not None:
            template = getattr(tokenizer, "chat_template", None)  # ids must be those of the model's own
            if not template:
                raise ConfigError("the tokenizer has no chat template; leave it out, or set model.chat_template")
            put(self.config, "actor_rollout_ref.model.custom_chat_template", template)

    def fit(self) -> dict[str, Any]:
        """Train until verl's trainer has come to its end and return the last row of the run's `metrics.jsonl`. The
        results are printed, and last a warning where many episodes are no evidence.

        Starts Ray where it does not run, as `ray_kwargs.ray_init` says, and stops what it started. Raises what broke
        the run: RolloutFailure where every episode of a step failed, CheckpointError for a model verl cannot load,
        StorageError for a run directory that is taken, ProcessLost where a process of the run died.
        """
        import ray
        from omegaconf import OmegaConf

        from uirl.integrations.verl.record import RunObjects
        from uirl.integrations.verl.task_runner import run

        running = ray.is_initialized()
        resume = self.config.trainer.resume_mode != "disable"
        with RunDirectory.create(self.directory, self.store.to_yaml(), resume=resume) as directory:
            remember(self.store.to_dict())
            self._place_model(directory.path / "model")
            write_atomically(directory.path / "verl.yaml", OmegaConf.to_yaml(self.config))
            objects = RunObjects(self._environment, self._reward_fn, self._tasks, self._eval_tasks, self._curriculum)
            try:
                run(self.config, objects)
            finally:
                if not running:
                    ray.shutdown()
            rows = read_metrics(directory.metrics_path)
            self._tell(rows[-1] if rows else {}, directory)
        return rows[-1] if rows else {}

    def _verl_config(self, config: Any, overrides: Mapping[str, Any], use_v1: bool) -> Any:
        """Return verl's whole config with our parts in their places, and checked."""
        from omegaconf import OmegaConf

        if isinstance(config, ConfigStore):
            composed = create_verl_config(self.store, overrides)
        else:
            composed = copy.deepcopy(config)
            for key, value in overrides.items():
                put(composed, key, value)
        if "${" in str(OmegaConf.to_container(composed.trainer, resolve=False)["default_local_dir"]):  # verl's own
            put(composed, "trainer.default_local_dir", str(self.directory / "checkpoints"))
        for key, value in (HOOKS if use_v1 else HOOKS | LEGACY_HOOKS).items():
            if key not in overrides:
                put(composed, key, value)
        poll_seconds = Settings.read(composed.data).poll_seconds
        Settings(config=self.store.to_dict(), directory=str(self.directory), poll_seconds=poll_seconds).write(composed)
        tell_critic(composed)
        for key in ("actor_rollout_ref.model.external_lib", "critic.model.external_lib"):
            named = OmegaConf.select(composed, key)  # modules that verl imports where it loads a model
            modules = [named] if isinstance(named, str) else list(named or ())
            if VISION_OUTPUTS not in modules:
                put(composed, key, [*modules, VISION_OUTPUTS] if modules else VISION_OUTPUTS)
        rollout, data = composed.actor_rollout_ref.rollout, composed.data
        if rollout.max_model_len is None:
            # verl's None is all that the model's positions allow, and a server without a cache for that does not start;
            # SGLang leaves one token free
            rollout.max_model_len = longest_sequence(composed) + (rollout.name == "sglang")
        if data.custom_cls.name == HOOKS["data.custom_cls.name"]:
            if data.shuffle or data.dataloader_num_workers:
                raise ConfigError(
                    f"data.shuffle={data.shuffle} and data.dataloader_num_workers={data.dataloader_num_workers}, but "
                    "the dataset makes its rows as the curriculum moves, in order and in the trainer's own process; "
                    "leave them false and 0, or name a dataset of your own (data.custom_cls)"
                )
            check_idle_keys(composed)
        check_placement(composed)
        check_window(composed, self.store.rollout)
        check_picture_options(composed)
        return composed

    def _tell(self, last: Mapping[str, Any], directory: RunDirectory) -> None:
        numbers = {name: last.get(name) for name in ("step", "success", "reward", "eval/success")}
        say("  ".join(f"{name} {value}" for name, value in numbers.items() if value is not None))
        say(f"checkpoints     {self.config.trainer.default_local_dir}")
        say(f"measure it      uirl verl --export {self.directory} && uirl eval {self.directory}")
        if not directory.summary_path.is_file():  # a trainer of verl's own
            return
        excluded = directory.read_json("summary.json")["excluded"]
        tallies = {"training": Tally.from_dict(excluded["training"])}
        if excluded["after"]["episodes"]:
            tallies["the last evaluation"] = Tally.from_dict(excluded["after"])
        for name, words in excluded_rows(tallies).items():
            say(f"{name}: {words}")
        warn_of_excluded(tallies)

    def _place_model(self, target: Path) -> None:
        from uirl.integrations.verl.models import check_model_folder, model_folder
        from uirl.training.memory import attention_heads

        model = self.config.actor_rollout_ref.model
        if _needs_writing(self.source):
            key = "model_name" if self.source.startswith("uirl/") else "local_path"
            policy = self.store.override(["model.local_path=null", f"model.{key}={self.source}"]).model
            model_folder(policy, target, seed=self.store.training.seed)
        described = check_model_folder(model.path, trust_remote_code=bool(model.trust_remote_code))
        check_heads(self.config, *attention_heads(described))


def create_trainer(
    config: Any, environment: BaseEnvironment | None = None, tokenizer: Any = None, **options: Any
) -> CustomRayPPOTrainer:
    """Return a trainer that is ready to `fit()`; `options` are those of `CustomRayPPOTrainer`. Raises ConfigError."""
    parameters = inspect.signature(CustomRayPPOTrainer).parameters
    for name in options:
        if name not in parameters:
            raise ConfigError(f"create_trainer has no option {name!r}; {did_you_mean(name, parameters)}")
    return CustomRayPPOTrainer(config, environment, tokenizer, **options)


def _store_of(config: Any) -> ConfigStore:
    if isinstance(config, ConfigStore):
        return config.model_copy(deep=True)
    if not hasattr(config, "actor_rollout_ref"):
        raise ConfigError(
            f"expected a ConfigStore or verl's config with actor_rollout_ref, got {type(config).__name__}; make one "
            "with uirl.integrations.verl.create_verl_config"
        )
    return Settings.read(config.data).store()


def _needs_writing(path: str) -> bool:
    """Return whether verl cannot load this itself: a model of ours, one in GGUF, a checkpoint or a run of the local
    trainer."""
    local = Path(path).is_dir() and not (Path(path) / "config.json").is_file()
    return local or path.startswith("uirl/") or path.endswith(".gguf")


def _point_at_folder(config: Any, source: str, written: Path) -> None:
    """Set in `config` the folder that verl's processes load, wherever they run: `source`, or what will be `written` of
    it."""
    from omegaconf import OmegaConf

    local = Path(source).is_dir()
    folder = written if _needs_writing(source) else Path(source).absolute() if local else source
    for key in ("actor_rollout_ref.model.path", "critic.model.path", "critic.model.tokenizer_path"):
        if str(OmegaConf.select(config, key)) == source:
            put(config, key, str(folder))
