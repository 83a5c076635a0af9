"""Who works on which GPU under verl, and whether the parts of a run fit together: found out before anything starts.

One setting, `trainer.nnodes` x `trainer.n_gpus_per_node`, says how many GPUs there are: policy, reference, critic and
rollout servers take turns on all of them. `config` is verl's whole config in every function here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from uirl.config import RolloutConfig
from uirl.errors import ConfigError, did_you_mean
from uirl.integrations.verl.mapping import ACTOR, ESTIMATORS, ROLLOUT

STRATEGIES = ("fsdp", "fsdp2", "megatron")
"""Training engines of verl's for which there is a schema here (`actor_rollout_ref.actor.strategy`)."""
CRITIC_TOKENS = "critic.ppo_max_token_len_per_gpu"
"""Tokens of a micro-batch of the critic, on each GPU."""
CREDITING = "uirl_sync"
"""`trainer.v1.trainer_mode` of our trainer, which gives credit to whole episodes."""
ROW_BY_ROW = ("grpo", "uirl_rejection_sampling")
"""Estimators that give the credit of an episode to each of its sequences under any trainer of verl's. The others would
count it once per sequence."""


def strategy_keys(
    strategy: str = "fsdp2",
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
    offload: bool = False,
) -> dict[str, Any]:
    """Return verl's keys that divide policy, reference and critic among the GPUs; data parallel is the rest.

    Args:
        strategy: 'fsdp2': every GPU holds a slice of every layer. 'megatron': layers are split as the rest says.
        tensor, pipeline, expert: GPUs that share the matrices of a layer, the layers, the experts. Megatron's.
        context: GPUs that share a sequence; with FSDP2 by Ulysses.
        offload: Keep weights and optimiser in host memory while nobody trains.

    Raises ConfigError for a strategy that has no place here, and for a split that FSDP2 does not know.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} has no place here; {did_you_mean(strategy, STRATEGIES)}")
    split = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    offloads = {"param_offload": offload, "optimizer_offload": offload}
    keys: dict[str, Any] = {}
    if strategy == "megatron":
        sizes = {f"{name}_model_parallel_size": count for name, count in split.items()}
        sizes |= {"context_parallel_size": context, **offloads}
        for part in (ACTOR, "critic"):
            keys |= {f"{part}.strategy": strategy, **{f"{part}.megatron.{name}": v for name, v in sizes.items()}}
        return keys | {"actor_rollout_ref.ref.megatron.param_offload": offload}
    wrong = [f"{name}={count}" for name, count in split.items() if count != 1]
    if wrong:
        raise ConfigError(f"{strategy} does not split a model by {', '.join(wrong)}; use strategy megatron")
    for part, engine in ((ACTOR, "fsdp_config"), ("critic", "fsdp")):
        # the critic's engine reads its own section alone, the reference follows the policy's outer key
        keys |= {f"{part}.strategy": strategy, f"{part}.ulysses_sequence_parallel_size": context}
        keys[f"{part}.{engine}.ulysses_sequence_parallel_size"] = context
        keys |= {f"{part}.{engine}.{name}": value for name, value in offloads.items()}
    return keys | {"actor_rollout_ref.ref.fsdp_config.param_offload": offload}


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
        """Return (role -> worker as a Ray actor class, resource pool manager), which verl's trainers take."""
        import ray
        from verl.single_controller.ray import ResourcePoolManager

        manager = ResourcePoolManager(resource_pool_spec=self.pools, mapping=self.mapping)
        return {role: ray.remote(worker) for role, worker in self.workers.items()}, manager


def roles_of(config: Any) -> Roles:
    """Return the roles of a run of verl's synchronous trainers, V1 and legacy. Raises ConfigError for a pool without
    GPUs."""
    from verl.trainer.ppo.utils import Role, need_critic
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    actor = Role.ActorRolloutRef if needs_reference(config) else Role.ActorRollout
    workers: dict[Any, type] = {actor: ActorRolloutRefWorker}
    if need_critic(config):
        workers[Role.Critic] = TrainingWorker
    mapping, pools = dict.fromkeys(workers, "global_pool"), {"global_pool": pool_of(config.trainer, "trainer")}
    mapping[Role.RewardModel] = "global_pool"
    if config.reward.reward_model.enable_resource_pool:
        mapping[Role.RewardModel] = "reward_pool"
        pools["reward_pool"] = pool_of(config.reward.reward_model, "reward.reward_model")
    distillation = config.get("distillation")
    if distillation is not None and distillation.enabled:
        mapping[Role.TeacherModel] = "teacher_pool"
        pools["teacher_pool"] = pool_of(distillation, "distillation")
    return Roles(workers, mapping, pools)


def pool_of(section: Any, name: str) -> list[int]:
    """Return the GPUs of each node of a pool. `name`: of its section. Raises ConfigError for none."""
    if section.nnodes < 1 or section.n_gpus_per_node < 1:
        raise ConfigError(
            f"{name}.nnodes={section.nnodes} x {name}.n_gpus_per_node={section.n_gpus_per_node} is no GPU; both must "
            "be at least 1 (ray.nnodes and ray.gpus_per_node in our terms)"
        )
    return [section.n_gpus_per_node] * section.nnodes


def adapter_ranks(config: Any) -> dict[str, int]:
    """Return key of the model -> rank of its adapters: FSDP reads `lora_rank`, Megatron `lora.rank`; 0: no adapters."""
    model = config.actor_rollout_ref.model
    return {"lora_rank": int(model.get("lora_rank") or 0), "lora.rank": int(model.get("lora", {}).get("rank") or 0)}


def has_adapters(config: Any) -> bool:
    """Return whether verl trains adapters: by rank, in the key of either engine, or from a folder."""
    return config.actor_rollout_ref.model.get("lora_adapter_path") is not None or any(adapter_ranks(config).values())


def needs_reference(config: Any) -> bool:
    """Return whether verl keeps the weights of a reference: with a KL term and without adapters."""
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
    """Return the policy, and the critic where there is one."""
    from verl.trainer.ppo.utils import need_critic

    sections = [(ACTOR, config.actor_rollout_ref.actor, "fsdp_config")]
    if need_critic(config):
        sections.append(("critic", config.critic, "fsdp"))
    parts = []
    for name, section, engine in sections:
        if section.strategy == "megatron":
            split = section.megatron
            model = split.tensor_model_parallel_size * split.pipeline_model_parallel_size
            context = split.context_parallel_size
        else:
            model, context = 1, section[engine].ulysses_sequence_parallel_size
            if name != "critic" and section.ulysses_sequence_parallel_size > 1:
                context = section.ulysses_sequence_parallel_size  # verl copies the outer key for the policy alone
        parts.append(Part(name, section, section.strategy, model, context))
    return parts


def longest_sequence(config: Any) -> int:
    """Return the tokens of the longest sequence that an episode may become."""
    rollout = config.actor_rollout_ref.rollout  # of the prompts in `data` these are copies, unless somebody wrote them
    return int(rollout.prompt_length + rollout.response_length)


def check_placement(config: Any) -> None:
    """Raise ConfigError for a run whose parts do not fit together or on its GPUs."""
    for problem in _problems(config):
        raise ConfigError(problem)


def _problems(config: Any) -> Iterator[str]:
    gpus = sum(pool_of(config.trainer, "trainer"))
    members = config.actor_rollout_ref.rollout.n
    yield from _section_problems(config)
    for part in trained_parts(config):
        share = part.model * part.context
        if gpus % share:
            yield (
                f"{part.name} is split over {part.model} x {part.context} GPUs (tensor x pipeline, context), which "
                f"does not divide the {gpus} GPUs of trainer.nnodes x trainer.n_gpus_per_node"
            )
        size, copies = part.section.ppo_mini_batch_size, gpus // share
        if size * members % copies:
            yield (
                f"{part.name}.ppo_mini_batch_size={size} x rollout.n={members} = {size * members} episodes: expected a "
                f"multiple of the {copies} copies of the model (training.batch_size, training.minibatches)"
            )
    longest = longest_sequence(config)
    for key, tokens, sharing in _micro_batches(config):
        if tokens * sharing < longest:
            yield (
                f"{key}={tokens} on {sharing} GPUs holds no sequence of {longest} tokens (data.max_prompt_length + "
                f"data.max_response_length); raise it (training.micro_batch_tokens) to {-(-longest // sharing)} or "
                "share a sequence among more GPUs"
            )
    yield from _rollout_problems(config, gpus)
    strategy = config.actor_rollout_ref.actor.strategy
    wrong, right = ("lora_rank", "lora.rank") if strategy == "megatron" else ("lora.rank", "lora_rank")
    rank = adapter_ranks(config)[wrong]
    if rank:
        yield (
            f"adapters of rank {rank} stand in the key that {strategy} does not read: all weights would be trained; "
            f"set actor_rollout_ref.model.{right} and leave the other 0"
        )


def _section_problems(config: Any) -> Iterator[str]:
    for name, section in {ACTOR: config.actor_rollout_ref.actor, "critic": config.critic}.items():
        if section.strategy not in STRATEGIES:
            nearest = did_you_mean(section.strategy, STRATEGIES)
            yield f"{name}.strategy={section.strategy!r} has no place here; {nearest}"
        composed = "megatron" if "megatron" in section else "fsdp"
        if (composed == "megatron") != (section.strategy == "megatron"):
            yield (
                f"{name}.strategy={section.strategy!r}, but verl's schema was composed for {composed}; set both "
                "strategies to the same, where the config is made"
            )
        if section.shuffle:
            yield f"{name}.shuffle=true would tear an episode into several mini-batches; leave it false"


def _micro_batches(config: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (key, tokens, GPUs that share them) of every pass whose micro-batches are filled up with tokens."""
    from omegaconf import OmegaConf

    parts = {part.name: part for part in trained_parts(config)}
    policy, context = config.actor_rollout_ref, parts[ACTOR].context
    passes = [(policy.actor.use_dynamic_bsz, f"{ACTOR}.ppo_max_token_len_per_gpu", context)]
    for name in ("rollout", "ref") if needs_reference(config) else ("rollout",):
        key = f"actor_rollout_ref.{name}.log_prob_max_token_len_per_gpu"
        passes.append((policy[name].log_prob_use_dynamic_bsz, key, context))
    if "critic" in parts:  # verl's critic fills up its micro-batches whatever its `use_dynamic_bsz` says
        passes.append((True, CRITIC_TOKENS, parts["critic"].context))
    return ((key, int(OmegaConf.select(config, key)), sharing) for filled, key, sharing in passes if filled)


def _rollout_problems(config: Any, gpus: int) -> Iterator[str]:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    rollout, per_node = config.actor_rollout_ref.rollout, config.trainer.n_gpus_per_node
    longest = longest_sequence(config)
    backends = list(RolloutReplicaRegistry._registry)
    if rollout.name not in backends:
        yield f"{ROLLOUT}.name={rollout.name!r} is unknown; {did_you_mean(rollout.name, backends)}"
    size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if per_node % size and (size % per_node or gpus % size):
        yield (
            f"a rollout server of {size} GPUs (rollout.tensor_model_parallel_size x data x pipeline) does not fit "
            f"{config.trainer.nnodes} nodes of {per_node}: it must divide the GPUs of a node or take whole nodes"
        )
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        yield (
            f"rollout.max_model_len={rollout.max_model_len} is less than the {longest} tokens of rollout.prompt_length "
            "+ rollout.response_length; raise it (inference.max_context) or leave it null, which is as many"
        )


def check_heads(config: Any, heads: int, kv_heads: int) -> None:
    """Raise ConfigError for a model whose attention heads cannot be shared by the GPUs that share a layer or a
    sequence: heads of queries are split evenly, those of keys are split or copied.

    `heads`, `kv_heads`: of queries, and of keys and values, of one layer.
    """
    split = {f"{ROLLOUT}.tensor_model_parallel_size": config.actor_rollout_ref.rollout.tensor_model_parallel_size}
    for part in trained_parts(config):
        if part.strategy == "megatron":
            key = f"{part.name}.megatron.tensor_model_parallel_size"
            split[key] = part.section.megatron.tensor_model_parallel_size
        else:
            split[f"{part.name}.ulysses_sequence_parallel_size"] = part.context
    fitting = [n for n in range(1, heads + 1) if not heads % n and (not kv_heads % n or not n % kv_heads)]
    for key, gpus in split.items():
        if gpus not in fitting:
            raise ConfigError(
                f"{key}={gpus} does not divide the {heads} attention heads ({kv_heads} of keys and values) of the "
                f"model; expected one of {', '.join(map(str, fitting))}"
            )


def reads_several(config: Any, *, credits_episodes: bool) -> str | None:
    """Return why several sequences of an episode would not be read as one; None: they are. `credits_episodes`: the
    trainer is ours."""
    estimator = str(config.algorithm.adv_estimator)
    if not config.trainer.use_v1:
        return "verl's legacy trainer takes one per episode. Use trainer.use_v1=true"
    if estimator not in (ESTIMATORS.values() if credits_episodes else ROW_BY_ROW):
        return (
            f"algorithm.adv_estimator={estimator} would count it once per sequence under this trainer. Use one of "
            f"{', '.join(ESTIMATORS.values())} with trainer.v1.trainer_mode={CREDITING}"
        )
    return None


def check_window(config: Any, rollout: RolloutConfig) -> None:
    """Raise ConfigError where a window rewrites history under a trainer that would misread those episodes. A chat
    template that rewrites history by itself is found when the first episode is played."""
    if rollout.max_images is None and rollout.token_budget is None:
        return
    why = reads_several(config, credits_episodes=config.trainer.v1.trainer_mode == CREDITING)
    if why is not None:
        raise ConfigError(
            f"rollout.max_images={rollout.max_images} and rollout.token_budget={rollout.token_budget} let the context "
            "window rewrite the history of an episode, which makes it several sequences, and "
            f"{why}, or set both to null"
        )


def check_idle_keys(config: Any) -> None:
    """Raise ConfigError for keys of verl's own tool loop and reward manager under a dataset of ours, whose rows name
    our loop: nobody would read them."""
    from verl.workers.config import MultiTurnConfig

    section = config.actor_rollout_ref.rollout.multi_turn
    for field in fields(MultiTurnConfig):
        if not field.name.startswith("_") and section.get(field.name, field.default) != field.default:
            raise ConfigError(
                f"{ROLLOUT}.multi_turn.{field.name}={section[field.name]!r} has no effect: it is read by verl's own "
                "tool loop, and these episodes are played by ours. Leave it out; turns are inference.max_turns of the "
                "section uirl, tools those of the environment"
            )
    if config.reward.custom_reward_function.path is not None:
        raise ConfigError(
            f"reward.custom_reward_function.path={config.reward.custom_reward_function.path!r} has no effect: rewards "
            "are computed while the episode is played, by the environment or by `reward_fn` of create_trainer. Leave "
            "it out, or name a dataset of your own (data.custom_cls) whose rows name a loop of verl's"
        )


def check_picture_options(config: Any) -> None:
    """Raise ConfigError for `data.mm_processor_kwargs` that servers, verl's workers and our own rendering would not all
    obey."""
    options = config.data.get("mm_processor_kwargs") or {}
    for key in options:
        if key not in ("min_pixels", "max_pixels"):
            raise ConfigError(
                f"data.mm_processor_kwargs.{key} has no place here: prompts are rendered with min_pixels and "
                "max_pixels alone; put it into the model's preprocessor_config.json, which every process reads"
            )
    if options and config.actor_rollout_ref.rollout.name == "sglang":
        raise ConfigError(
            "verl's SGLang server takes no data.mm_processor_kwargs; put the sizes into the model's "
            "preprocessor_config.json, which every process reads"
        )
