"""Who works on which GPU under verl: roles, their workers and pools, and the models that are trained.

All of it follows from verl's config, in which one setting, `trainer.nnodes` x `trainer.n_gpus_per_node`, says how many
GPUs there are: policy, reference, critic and rollout servers take turns on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError

POOL, REWARD_POOL, TEACHER_POOL = "global_pool", "reward_pool", "teacher_pool"


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
    """Return the roles of a run of verl's synchronous trainers, V1 and legacy. `config`: verl's whole config.

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
    pools = {POOL: pool_of(config.trainer, "trainer")}
    own_reward_pool = config.reward.reward_model.enable_resource_pool
    mapping[Role.RewardModel] = REWARD_POOL if own_reward_pool else POOL
    if own_reward_pool:
        pools[REWARD_POOL] = pool_of(config.reward.reward_model, "reward.reward_model")
    distillation = config.get("distillation")
    if distillation is not None and distillation.enabled:
        mapping[Role.TeacherModel] = TEACHER_POOL
        pools[TEACHER_POOL] = pool_of(distillation, "distillation")
    return Roles(workers, mapping, pools)


def pool_of(section: Any, name: str) -> list[int]:
    """Return the GPUs of each node of the pool that `section`, called `name`, describes. Raises ConfigError for
    none."""
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
    from_folder = config.actor_rollout_ref.model.get("lora_adapter_path") is not None
    return from_folder or max(adapter_ranks(config).values()) > 0


def needs_reference(config: Any) -> bool:
    """Return whether verl keeps the weights of a reference: with a KL term, and without adapters, which are switched
    off."""
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
