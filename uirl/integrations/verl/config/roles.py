"""Who does what on which GPU under verl: roles, workers and pools; strategies and adapters; what does not go together.

All of it follows from verl's config, in which one setting, `trainer.nnodes` x `trainer.n_gpus_per_node`, says how many
GPUs there are: policy, reference, critic and rollout servers take turns on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError, did_you_mean
from uirl.learner.lora import ATTENTION, MLP, VISION_ROOTS

STRATEGIES = ("fsdp", "fsdp2", "megatron")
"""Training engines of verl's for which there is a schema here (`actor_rollout_ref.actor.strategy`)."""
POOL, REWARD_POOL, TEACHER_POOL = "global_pool", "reward_pool", "teacher_pool"
_A, _HF = "actor_rollout_ref.actor", "actor_rollout_ref.model"
CRITIC_TOKENS = "critic.ppo_max_token_len_per_gpu"
"""Tokens of a micro-batch of the critic, on each GPU."""
CRITIC_READS = "critic.ppo_infer_max_token_len_per_gpu"
"""What verl's trainers take in its place, in every pass: a key its schema does not hold, and 32768 where none stands
(`trainer/ppo/v1/trainer_base.py`)."""
_HF_LAYERS: dict[str, Any] = {
    "all": "all-linear",
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
}
_HF_LAYERS_WITH_VISION = {"all": "all-linear", "attention": sorted(ATTENTION), "mlp": sorted(MLP)}
_VISION = rf"(.*\.)?({'|'.join(sorted(VISION_ROOTS))})\..*"
_MEGATRON_LAYERS = {
    "all": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    "attention": ["linear_qkv", "linear_proj"],
    "mlp": ["linear_fc1", "linear_fc2"],
}


@dataclass(frozen=True, slots=True)
class Roles:
    """Who works where, in verl's terms."""

    workers: dict[Any, type]
    """verl's `Role` -> the class of its workers, one per GPU. Rollout servers are started by these."""
    mapping: dict[Any, str]
    """`Role` -> the pool it works in."""
    pools: dict[str, list[int]]
    """Pool -> GPUs of each of its nodes."""

    def for_ray(self) -> tuple[dict[Any, Any], Any]:
        """(role -> worker as a Ray actor class, resource pool manager), which verl's trainers take."""
        import ray
        from verl.single_controller.ray import ResourcePoolManager

        manager = ResourcePoolManager(resource_pool_spec=self.pools, mapping=self.mapping)
        return {role: ray.remote(worker) for role, worker in self.workers.items()}, manager


def roles_of(config: Any) -> Roles:
    """The roles of a run of verl's synchronous trainers, V1 and legacy. `config`: verl's whole config.

    A policy with adapters is its own reference (they are switched off for it). Raises ConfigError for a pool without
    GPUs.
    """
    from verl.trainer.ppo.utils import Role, need_critic
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    actor = Role.ActorRolloutRef if needs_reference(config) else Role.ActorRollout
    workers: dict[Any, type] = {actor: ActorRolloutRefWorker}
    if need_critic(config):
        workers[Role.Critic] = TrainingWorker
    mapping = dict.fromkeys(workers, POOL)
    pools = {POOL: _pool(config.trainer, "trainer")}
    own_reward_pool = config.reward.reward_model.enable_resource_pool
    mapping[Role.RewardModel] = REWARD_POOL if own_reward_pool else POOL
    if own_reward_pool:
        pools[REWARD_POOL] = _pool(config.reward.reward_model, "reward.reward_model")
    distillation = config.get("distillation")
    if distillation is not None and distillation.enabled:
        mapping[Role.TeacherModel] = TEACHER_POOL
        pools[TEACHER_POOL] = _pool(distillation, "distillation")
    return Roles(workers, mapping, pools)


def _pool(section: Any, name: str) -> list[int]:
    if section.nnodes < 1 or section.n_gpus_per_node < 1:
        raise ConfigError(
            f"{name}.nnodes={section.nnodes} x {name}.n_gpus_per_node={section.n_gpus_per_node} is no GPU; both must "
            "be at least 1 (ray.nnodes and ray.gpus_per_node in our terms)"
        )
    return [section.n_gpus_per_node] * section.nnodes


def has_adapters(config: Any) -> bool:
    """Whether verl trains adapters: by rank, in the key of either engine, or from a folder."""
    model = config.actor_rollout_ref.model
    ranks = (int(model.get("lora", {}).get("rank") or 0), int(model.get("lora_rank") or 0))
    return max(ranks) > 0 or model.get("lora_adapter_path") is not None


def strategy_keys(
    strategy: str = "fsdp2",
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
    offload: bool = False,
) -> dict[str, Any]:
    """verl's keys that divide the trained models (policy, reference, critic) among the GPUs; data parallel is the rest.

    Args:
        strategy: 'fsdp2': every GPU holds a slice of every layer. 'megatron': layers are split as the rest says.
        tensor: GPUs that share the matrices of a layer. Megatron's.
        pipeline: GPUs that share the layers. Megatron's.
        context: GPUs that share a sequence; with FSDP2 by Ulysses.
        expert: GPUs that share the experts of a layer. Megatron's.
        offload: Keep weights and optimiser in host memory while nobody trains.

    Raises ConfigError for a strategy that has no place here, and for a split that FSDP2 does not know.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} has no place here; {did_you_mean(strategy, STRATEGIES)}")
    split = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    if strategy != "megatron":
        wrong = [f"{name}={count}" for name, count in split.items() if count != 1]
        if wrong:
            raise ConfigError(f"{strategy} does not split a model by {', '.join(wrong)}; use strategy megatron")
        return _fsdp_keys(strategy, context, offload)
    sizes = {f"{name}_model_parallel_size": count for name, count in split.items()}
    sizes |= {"context_parallel_size": context, "param_offload": offload, "optimizer_offload": offload}
    parts = (f"{_A}.megatron", "critic.megatron")
    keys = {f"{part}.{name}": value for part in parts for name, value in sizes.items()}
    keys["actor_rollout_ref.ref.megatron.param_offload"] = offload
    return {f"{_A}.strategy": "megatron", "critic.strategy": "megatron", **keys}


def _fsdp_keys(strategy: str, context: int, offload: bool) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for part, engine in ((_A, "fsdp_config"), ("critic", "fsdp")):
        keys |= {f"{part}.strategy": strategy, f"{part}.ulysses_sequence_parallel_size": context}
        # the critic's engine reads its own section alone, the reference follows the policy's outer key
        keys[f"{part}.{engine}.ulysses_sequence_parallel_size"] = context
        keys |= {f"{part}.{engine}.param_offload": offload, f"{part}.{engine}.optimizer_offload": offload}
    return keys | {"actor_rollout_ref.ref.fsdp_config.param_offload": offload}


def schema_of(keys: Mapping[str, Any]) -> str:
    """Name of verl's schema that knows the strategy in `keys` (verl's key -> value)."""
    return "ppo_megatron_trainer" if keys.get(f"{_A}.strategy") == "megatron" else "ppo_trainer"


def adapter_keys(config: ConfigStore, strategy: str) -> dict[str, Any]:
    """verl's keys for `model.use_lora` and `model.lora`; its two engines read different ones and other layer names.

    Raises ConfigError for dropout of adapters with FSDP, whose adapters have none.
    """
    model, lora = config.model, config.model.lora
    if strategy != "megatron":
        if model.use_lora and lora.lora_dropout:
            raise ConfigError(
                f"model.lora.lora_dropout={lora.lora_dropout}, but the adapters of verl's FSDP engines have none; "
                "set it to 0"
            )
        return {
            f"{_HF}.lora_rank": lora.r if model.use_lora else 0,
            f"{_HF}.target_modules": _hf_layers(lora.target, lora.vision),
            f"{_HF}.exclude_modules": _VISION if model.use_lora and not lora.vision else None,
        }
    rows: dict[str, Any] = {"rank": lora.r, "alpha": lora.lora_alpha, "dropout": lora.lora_dropout}
    rows["target_modules"] = _megatron_layers(lora.target)
    return {f"{_HF}.lora_rank": 0, **{f"{_HF}.lora.{name}": value for name, value in rows.items() if model.use_lora}}


def recompute_keys(config: ConfigStore, strategy: str) -> dict[str, Any]:
    """verl's keys for `model.gradient_checkpointing` that Megatron reads, which recomputes nothing by itself; FSDP's
    is one key of the model (`uirl.integrations.verl.config.mapping.MAPPED`) and on by itself."""
    if strategy != "megatron" or config.model.gradient_checkpointing is False:
        return {}
    how = {"granularity": "full", "method": "uniform", "num_layers": 1}
    parts = (f"{_A}.megatron", "critic.megatron")
    return {f"{p}.override_transformer_config.recompute_{key}": how[key] for p in parts for key in how}


def _hf_layers(target: str | list[str], vision: bool) -> Any:
    known = _HF_LAYERS_WITH_VISION if vision else _HF_LAYERS
    return known[target] if isinstance(target, str) else list(target)


def _megatron_layers(target: str | list[str]) -> list[str]:
    if isinstance(target, str):
        return _MEGATRON_LAYERS[target]
    known = _MEGATRON_LAYERS["all"]
    foreign = sorted(set(target) - set(known))
    if foreign:
        raise ConfigError(
            f"model.lora.target names {', '.join(foreign)}; Megatron merges layers and calls them {', '.join(known)}. "
            "Use these names, or 'attention', 'mlp', 'all'"
        )
    return list(target)


def check_placement(config: Any) -> None:
    """Nothing, where the parts of a run fit together and on its GPUs. `config`: verl's whole config.

    Raises ConfigError for what verl would find out hours later, or never: splits that do not divide the GPUs, a
    sequence that no micro-batch can hold, adapters in the key of the other engine, a schema of another strategy.
    """
    gpus = sum(_pool(config.trainer, "trainer"))
    _check_schema(config)
    _check_order(config)
    for part in trained_parts(config):
        _check_split(part, gpus)
        _check_mini_batch(part, gpus, config.actor_rollout_ref.rollout.n)
    _check_tokens(config)
    _check_rollout(config, gpus)
    _check_adapters(config)


def longest_sequence(config: Any) -> int:
    """Tokens of the longest sequence that an episode may become. `config`: verl's whole config."""
    rollout = config.actor_rollout_ref.rollout  # of the prompts in `data` these are copies, unless somebody wrote them
    return int(rollout.prompt_length + rollout.response_length)


def needs_reference(config: Any) -> bool:
    """Whether verl keeps the weights of a reference: with a KL term, and without adapters, which are switched off."""
    from verl.trainer.ppo.utils import need_reference_policy

    return need_reference_policy(config) and not has_adapters(config)


@dataclass(frozen=True, slots=True)
class Part:
    """A model that is trained, and how its workers divide it."""

    name: str
    """Its section in verl's config."""
    section: Any
    strategy: str
    model: int
    """GPUs that share one copy, apart from FSDP's slices: tensor x pipeline parallel."""
    context: int
    """GPUs that share one sequence."""


def trained_parts(config: Any) -> list[Part]:
    """The policy, and the critic where there is one."""
    from verl.trainer.ppo.utils import need_critic

    sections = [("actor_rollout_ref.actor", config.actor_rollout_ref.actor, "fsdp_config")]
    if need_critic(config):
        sections.append(("critic", config.critic, "fsdp"))
    parts = []
    for name, section, engine in sections:
        if section.strategy == "megatron":
            split = section.megatron
            model = split.tensor_model_parallel_size * split.pipeline_model_parallel_size
            context = split.context_parallel_size
        else:
            model = 1
            context = section[engine].ulysses_sequence_parallel_size
            if name != "critic" and section.ulysses_sequence_parallel_size > 1:
                context = section.ulysses_sequence_parallel_size  # verl copies the outer key for the policy alone
        parts.append(Part(name, section, section.strategy, model, context))
    return parts


def _check_schema(config: Any) -> None:
    strategies = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor, "critic": config.critic}
    for name, section in strategies.items():
        if section.strategy not in STRATEGIES:
            raise ConfigError(
                f"{name}.strategy={section.strategy!r} has no place here; {did_you_mean(section.strategy, STRATEGIES)}"
            )
        if ("megatron" in section) != (section.strategy == "megatron"):
            raise ConfigError(
                f"{name}.strategy={section.strategy!r}, but verl's schema was composed for "
                f"{'megatron' if 'megatron' in section else 'fsdp'}; set actor_rollout_ref.actor.strategy and "
                "critic.strategy to the same, in the file or the overrides from which the config is made"
            )


def _check_split(part: Part, gpus: int) -> None:
    share = part.model * part.context
    if gpus % share:
        raise ConfigError(
            f"{part.name} is split over {part.model} x {part.context} GPUs (tensor x pipeline, context), which does "
            f"not divide the {gpus} GPUs of trainer.nnodes x trainer.n_gpus_per_node; change the one or the other"
        )


def _check_order(config: Any) -> None:
    for name in ("actor_rollout_ref.actor", "critic"):
        if (config.actor_rollout_ref.actor if name != "critic" else config.critic).shuffle:
            raise ConfigError(
                f"{name}.shuffle=true would tear the sequences of an episode into several mini-batches, some of them "
                "without any; leave it false, verl's own value"
            )


def _check_tokens(config: Any) -> None:
    longest = longest_sequence(config)
    for key, tokens, gpus in _micro_batches(config):
        if tokens * gpus < longest:
            raise ConfigError(
                f"{key}={tokens} on {gpus} GPUs holds no sequence of {longest} tokens "
                "(actor_rollout_ref.rollout.prompt_length + response_length, by themselves data.max_prompt_length + "
                f"data.max_response_length); raise it (training.micro_batch_tokens) to {-(-longest // gpus)} or share "
                "a sequence among more GPUs"
            )


def _micro_batches(config: Any) -> list[tuple[str, int, int]]:
    """(key, tokens, GPUs that share them) of every pass whose micro-batches are filled up with tokens."""
    parts = {part.name: part for part in trained_parts(config)}
    actor = parts["actor_rollout_ref.actor"]
    passes = [(actor.section.use_dynamic_bsz, f"{_A}.ppo_max_token_len_per_gpu", actor.context)]
    forward = "log_prob_max_token_len_per_gpu"
    scoring = {"rollout": config.actor_rollout_ref.rollout}
    if needs_reference(config):
        scoring["ref"] = config.actor_rollout_ref.ref
    for name, section in scoring.items():
        passes.append((section.log_prob_use_dynamic_bsz, f"actor_rollout_ref.{name}.{forward}", actor.context))
    if "critic" in parts:  # verl's critic fills up its micro-batches whatever its `use_dynamic_bsz` says
        passes.append((True, CRITIC_TOKENS, parts["critic"].context))
    out = []
    for filled, key, gpus in passes:
        section = config
        for name in key.split(".")[:-1]:
            section = section[name]
        if filled:
            out.append((key, int(section[key.split(".")[-1]]), gpus))
    return out


def _check_mini_batch(part: Part, gpus: int, members: int) -> None:
    copies = gpus // (part.model * part.context)
    sequences = part.section.ppo_mini_batch_size * members
    if sequences % copies:
        raise ConfigError(
            f"{part.name}.ppo_mini_batch_size={part.section.ppo_mini_batch_size} x rollout.n={members} = {sequences} "
            f"episodes cannot be shared by {copies} copies of the model; expected a multiple (training.batch_size, "
            "training.minibatches)"
        )


def _check_rollout(config: Any, gpus: int) -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    rollout, per_node = config.actor_rollout_ref.rollout, config.trainer.n_gpus_per_node
    known = list(RolloutReplicaRegistry._registry)
    if rollout.name not in known:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={rollout.name!r} is unknown; {did_you_mean(rollout.name, known)}"
        )
    size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    within, across = per_node % size == 0, size % per_node == 0 and gpus % size == 0
    if not (within or across):
        raise ConfigError(
            f"a rollout server of {size} GPUs (rollout.tensor_model_parallel_size x data x pipeline) does not fit "
            f"{config.trainer.nnodes} nodes of {per_node}: it must divide the GPUs of a node or take whole nodes"
        )
    longest = longest_sequence(config)
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        raise ConfigError(
            f"rollout.max_model_len={rollout.max_model_len} is less than the {longest} tokens of rollout.prompt_length "
            "+ rollout.response_length; raise it (inference.max_context) or leave it null, which is as many"
        )


def _check_adapters(config: Any) -> None:
    model, strategy = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.strategy
    flat, section = int(model.get("lora_rank") or 0), int(model.get("lora", {}).get("rank") or 0)
    wrong, right = (flat, "lora.rank") if strategy == "megatron" else (section, "lora_rank")
    if wrong:
        raise ConfigError(
            f"adapters of rank {wrong} stand in the key that {strategy} does not read, and all weights would be "
            f"trained; set actor_rollout_ref.model.{right} and leave the other 0"
        )
