"""verl's whole config: composed from ours or read from a file in verl's terms, with our section `data.uirl` in it."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from uirl.config import ConfigStore, Section, yaml_text
from uirl.config.keys import leaves
from uirl.config.rates import rate_of
from uirl.errors import ConfigError, did_you_mean
from uirl.integrations.verl.mapping import (
    ACTOR,
    FIXED,
    FOR_SMALL_MODELS,
    HF,
    MAPPED,
    ROLLOUT,
    UNSET,
    adapter_keys,
    decay_keys,
    recompute_keys,
    verl_values,
)
from uirl.runtime.lazy import load

LLM_BASE_URL, LLM_API_KEY = "UIRL_LLM_BASE_URL", "UIRL_LLM_API_KEY"
"""Variables with the address of a judge's server (OpenAI-compatible) and with its key. The processes that play episodes
have them; they stand in no config, no file and no message."""
FREE = ("override_config", "engine_kwargs", "ray_init", "mixed_precision", "mm_processor_kwargs")
"""Sections in which anything goes: verl hands them on as they are."""
CRITIC_READS = "critic.ppo_infer_max_token_len_per_gpu"
"""What verl's trainers take in place of `critic.ppo_max_token_len_per_gpu`; 32768 where none stands."""
UNLISTED = (f"{ROLLOUT}.agent.agent_loop_manager_class", CRITIC_READS)
"""Keys that verl reads although its schema does not hold them."""
OTHER_NAMES = {
    "algorithm.clip_ratio": f"{ACTOR}.clip_ratio",
    "algorithm.clip_eps_low": f"{ACTOR}.clip_ratio_low",
    "algorithm.clip_eps_high": f"{ACTOR}.clip_ratio_high",
}
"""Names under which people write verl's keys -> where verl has them."""


def llm_variables() -> dict[str, str]:
    """Return the variables of a judge as far as they are set here; empty without an address."""
    names = (LLM_BASE_URL, LLM_API_KEY) if os.environ.get(LLM_BASE_URL) else ()
    return {name: os.environ[name] for name in names if os.environ.get(name)}


class Settings(Section):
    """The section `data.uirl`, which every process of verl is handed (verl gives datasets the section `data` alone)."""

    key = "data.uirl"

    config: dict[str, Any] = Field(default_factory=dict)
    """A `ConfigStore` as plain data; keys left out have their defaults."""
    coordinator: str | None = None
    """Name of the Ray actor that keeps the record and hands out the objects of a run; None: there is none."""
    directory: str | None = None
    """Run directory; None: none is written."""
    poll_seconds: float = 0.2
    """How often the trainer looks whether the episodes of a step are complete (verl's own default is 2 s)."""
    credits_episodes: bool = False
    """Whether the trainer gives credit to whole episodes where they are several sequences; ours says so itself."""

    @classmethod
    def read(cls, data: Any) -> Settings:
        """Read the settings in verl's section `data`. Raises ConfigError for unknown keys."""
        from omegaconf import OmegaConf

        values = data.get("uirl") or {}
        return cls.build(OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values)

    def write(self, config: Any) -> None:
        """Put the settings into verl's whole config."""
        from omegaconf import open_dict

        with open_dict(config):
            config.data.uirl = self.to_dict()

    def store(self) -> ConfigStore:
        """Return the config of our own parts. Raises ConfigError."""
        return ConfigStore.build(self.config)


def compose(name: str = "ppo_trainer") -> Any:
    """Return verl's own config with all its defaults. Raises ConfigError where verl is not installed."""
    try:
        import verl
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
    except ImportError as error:
        raise ConfigError(f"verl is not installed ({error}); pip install 'uirl[verl]'") from error
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return hydra_compose(name)


def put(config: Any, key: str, value: Any) -> None:
    """Set one of verl's keys. In the sections `FREE`, and in those that verl leaves empty, anything goes. Raises
    ConfigError for a key that verl does not have, and for a value that it cannot hold."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        _put(config, OTHER_NAMES.get(key, key), value)
    except OmegaConfBaseException as error:
        raise ConfigError(f"verl's key {key} cannot hold {value!r:.80}: {error}") from error


def _put(config: Any, key: str, value: Any) -> None:
    from omegaconf import OmegaConf, open_dict

    path = key.split(".")
    free = key in UNLISTED or any(f".{section}." in f".{key}." for section in FREE)
    node: Any = config
    for i, part in enumerate(() if free else path):
        # keys(), not `in`: omegaconf hides keys whose value is still missing
        names = [str(name) for name in node.keys()] if OmegaConf.is_dict(node) else []  # noqa: SIM118
        free = bool(i) and OmegaConf.is_dict(node) and not names
        if free:
            break
        if part not in names:
            raise ConfigError(
                f"verl has no key {key!r}: {'.'.join(path[:i]) or 'the top'} holds no {part!r}; "
                f"{did_you_mean(part, names)}"
            )
        node = node[part] if i < len(path) - 1 else node
    if free:
        with open_dict(config):
            OmegaConf.update(config, key, value, force_add=True)
        return
    is_open = OmegaConf.is_interpolation(node, path[-1]) or OmegaConf.is_missing(node, path[-1])
    current = None if is_open else node[path[-1]]
    is_section = OmegaConf.is_dict(current)
    if current is not None and value is not None and is_section != isinstance(value, Mapping):
        expected = "keys and values" if is_section else f"a value like {current!r:.60}"
        raise ConfigError(f"verl's key {key} cannot hold {value!r:.80}; expected {expected}")
    OmegaConf.update(config, key, value)


def _as_mapping(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    out = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"got {text!r}, expected KEY=VALUE, e.g. trainer.nnodes=2")
        out[key.lstrip("+")] = yaml_text.parse(value, f"the value of {key}")
    return out


def _schema_of(keys: Mapping[str, Any]) -> str:
    return "ppo_megatron_trainer" if keys.get(f"{ACTOR}.strategy") == "megatron" else "ppo_trainer"


def tell_critic(config: Any) -> None:
    """Write the tokens of the critic's micro-batches where verl reads them, unless somebody did."""
    from omegaconf import OmegaConf

    if OmegaConf.select(config, CRITIC_READS) is None:
        put(config, CRITIC_READS, "${critic.ppo_max_token_len_per_gpu}")


def create_verl_config(
    config: ConfigStore,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    model_path: str | None = None,
    prompt_length: int = 1024,
    response_length: int | None = None,
    megatron: bool = False,
) -> Any:
    """Return verl's whole config (OmegaConf) that says what `config` says, which goes along in `data.uirl`.

    Args:
        overrides: verl's own keys; they win.
        model_path: The folder that verl loads; None: `model.local_path` or `model.model_name`.
        prompt_length: Most tokens of the opening prompt.
        response_length: Most tokens after it, all turns and observations together; None: `rollout.max_tokens`, or 4
            times what all replies may take.
        megatron: verl's schema for it even if `overrides` name no strategy.

    Raises ConfigError for what verl cannot do, for keys verl does not have, and where verl is not installed.
    """
    verl_keys = _as_mapping(overrides)
    schema = "ppo_megatron_trainer" if megatron else _schema_of(verl_keys)
    composed = compose(schema)
    strategy = "megatron" if schema == "ppo_megatron_trainer" else "fsdp2"
    model, rate = config.model, rate_of(config, "training")
    values = FIXED | adapter_keys(model.use_lora, model.lora, strategy) | decay_keys(config.training, rate, strategy)
    values |= recompute_keys(model.gradient_checkpointing, strategy) | verl_values(config, MAPPED)
    path = model_path or config.model.source
    values |= {f"{HF}.path": path, "critic.model.path": path, "critic.model.tokenizer_path": path}
    values["data.max_prompt_length"] = prompt_length
    longest = config.rollout.max_tokens or 4 * config.inference.max_tokens * config.turn_limit
    values["data.max_response_length"] = response_length or longest
    values["critic.enable"] = config.training.adv_estimator == "gae"
    if config.inference.engine_options:
        values[f"{ROLLOUT}.engine_kwargs.{values[f'{ROLLOUT}.name']}"] = dict(config.inference.engine_options)
    for key, value in (values | verl_keys).items():
        put(composed, key, value)
    tell_critic(composed)
    Settings(config=config.to_dict()).write(composed)
    return composed


class Written(NamedTuple):
    """What a file in verl's terms says, with the changes of the command line."""

    flat: dict[str, Any]
    """verl's key -> value."""
    store: ConfigStore
    """The section `uirl`, a whole `ConfigStore`."""
    curriculum: dict[str, Any]
    """The section `curriculum` where it names a class of the user's own, else {}."""
    ours: set[str]
    """Keys of ours that are written."""

    def merged(self) -> ConfigStore:
        """Return `store` with what `flat` says, where we have a key of that meaning. Raises ConfigError."""
        found: dict[str, Any] = {}
        for key, row in MAPPED.items():
            if row.back is not None and row.names[0] in self.flat:
                value = row.back(self.flat[row.names[0]], self.store, self.flat)
                found |= {} if value is UNSET else {key: value}
        model = self.flat.get(f"{HF}.path")
        if model is not None:
            found["model.local_path" if Path(str(model)).exists() else "model.model_name"] = str(model)
        return self.store.override(_assignments(found))


def read_verl_yaml(path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = ()) -> Written:
    """Read a YAML of verl's keys with the sections `uirl` and `curriculum` beside them; verl need not be installed.
    `overrides` are verl's keys, or ours as `uirl.section.key`. Raises ConfigError."""
    values = yaml_text.read(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}; expected sections such as trainer: and algorithm:")
    ours, curriculum = (values.pop(name, None) or {} for name in ("uirl", "curriculum"))
    for name, section in (("uirl", ours), ("curriculum", curriculum)):
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: section {name} is {section!r:.60}; expected keys and values")
    flat = dict(leaves(values))
    for key, theirs in OTHER_NAMES.items():
        if key in flat and theirs in flat:
            raise ConfigError(f"{path}: {key} and {theirs} say the same thing; keep one of them")
    flat = {OTHER_NAMES.get(key, key): value for key, value in flat.items()}
    store, changes = ConfigStore.build(ours), {}
    written = {key for key, _ in leaves(ours)}
    for key, value in _as_mapping(overrides).items():
        first, _, rest = key.partition(".")
        if first == "uirl":
            changes[rest] = value
            written |= {key for key, _ in leaves({rest: value})}
        elif first == "curriculum":
            curriculum[rest] = value
        else:
            # another spelling of the same key, one in the file and one on the command line, must not be written twice
            flat[OTHER_NAMES.get(key, key)] = value
    if "class" not in curriculum:
        changes |= {f"curriculum.{key}": value for key, value in curriculum.items()}
        curriculum = {}
    return Written(flat, store.override(_assignments(changes)), curriculum, written)


def load_verl_config(
    path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = (), *, model_path: str | None = None
) -> tuple[Any, ConfigStore, dict[str, Any]]:
    """Return (verl's config, ours, the section `curriculum` where it names a class of the user's own, else {}) of a
    YAML in verl's terms; `overrides` are verl's keys, or ours as `uirl.section.key`.

    What the file says in verl's terms is also written into our config, as far as we have a key for it, so that the two
    never disagree. Of `FOR_SMALL_MODELS`, what nobody wrote keeps verl's own value. `model_path` replaces the model of
    the file. Raises ConfigError for a key that neither verl nor we have.
    """
    read = read_verl_yaml(path, overrides)
    flat, written = read.flat, read.ours
    silent = [key for key in FOR_SMALL_MODELS if key not in written and not set(MAPPED[key].names) & set(flat)]
    theirs = compose(_schema_of(flat))  # raises ConfigError where verl is not installed
    from omegaconf import OmegaConf

    for name in (name for key in silent for name in MAPPED[key].names):
        value = OmegaConf.select(theirs, name)
        flat[name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    if model_path is not None:
        flat[f"{HF}.path"] = model_path
    store = read.merged()
    if "rollout.parallel" not in written:  # verl plays all episodes of an update at once
        store.rollout.parallel = max(store.rollout.parallel_limit, store.training.batch_size)
    return create_verl_config(store, flat, model_path=flat.get(f"{HF}.path")), store, read.curriculum


def _assignments(changes: Mapping[str, Any]) -> list[str]:
    return [f"{key}={yaml_text.render(value).strip()}" for key, value in changes.items()]


def create_curriculum(section: Mapping[str, Any]) -> Any | None:
    """Return the object of the class of the user's own that a section `curriculum` of a file in verl's terms names;
    None: it names none, or is not `enabled`.

    `class` is 'package.module:Class'; all other keys are its arguments. Raises ConfigError.
    """
    options = dict(section)
    enabled, named = options.pop("enabled", True), options.pop("class", None)
    if enabled not in (True, False):
        raise ConfigError(f"curriculum.enabled is {enabled!r}, expected true or false")
    if named is None or not enabled:
        return None
    try:
        curriculum = load(str(named))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"curriculum.class={named!r}: {error}; expected 'package.module:Class'") from error
    try:
        return curriculum(**options)
    except TypeError as error:
        raise ConfigError(
            f"section curriculum: {error}; its keys are the arguments of {curriculum.__name__}"
        ) from error


class CustomGRPOTrainer:
    """GRPO with asymmetric clipping (Yu et al. 2025, arXiv:2503.14476, eq. 10): an upper clip further from 1 than the
    lower one lets unlikely tokens gain. It holds the settings; `create_trainer` trains with them.
    """

    def __init__(
        self, eps_low: float = 0.2, eps_high: float = 0.3, normalize_by_std: bool = True, kl_coef: float = 0.0
    ) -> None:
        """Check the settings and keep them.

        Args:
            eps_low, eps_high: Distances of the lower and the upper clip of the probability ratio from 1.
            normalize_by_std: Advantages are divided by the spread of their group; False: Dr. GRPO's.
            kl_coef: Weight of the KL term of the loss, against the policy at the start; 0: none.

        Raises ConfigError for a number out of range.
        """
        if not 0 < eps_low < 1 or not eps_high > 0 or not kl_coef >= 0:
            raise ConfigError(
                f"expected 0 < eps_low < 1, eps_high > 0 and kl_coef >= 0, got {eps_low}, {eps_high} and {kl_coef}"
            )
        self.eps_low, self.eps_high = eps_low, eps_high
        self.normalize_by_std, self.kl_coef = normalize_by_std, kl_coef

    def update_config_for_verl(self, config: Any) -> Any:
        """Return a copy of `config`, a ConfigStore or a whole config of verl's (OmegaConf), with these settings.

        Raises ConfigError for anything else.
        """
        settings = {
            "training.adv_estimator": "grpo",
            "training.clip_ratio_low": self.eps_low,
            "training.clip_ratio_high": self.eps_high,
            "algorithm.normalize_by_std": self.normalize_by_std,
            "algorithm.kl_loss_coef": self.kl_coef,
        }
        ours = (config if isinstance(config, ConfigStore) else ConfigStore()).override(_assignments(settings))
        if isinstance(config, ConfigStore):
            return ours
        if not hasattr(config, "actor_rollout_ref"):
            raise ConfigError(f"expected a ConfigStore or verl's config, got {type(config).__name__}")
        changed = copy.deepcopy(config)
        try:
            for key, value in verl_values(ours, settings).items():
                put(changed, key, value)
        except ConfigError as error:
            raise ConfigError(
                f"{error} Expected a whole config of verl's; a file in verl's terms becomes one with "
                "uirl.integrations.verl.load_verl_config(path)[0]"
            ) from error
        return changed
