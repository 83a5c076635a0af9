"""Whether the parts of a run fit together and on its GPUs: what verl would find out hours later, or never."""

from __future__ import annotations

from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.integrations.verl.config.keys import ACTOR, CRITIC_TOKENS, ROLLOUT
from uirl.integrations.verl.config.roles import Part, adapter_ranks, needs_reference, pool_of, trained_parts
from uirl.integrations.verl.config.strategies import STRATEGIES


def check_placement(config: Any) -> None:
    """Refuse a run whose parts do not fit together or on its GPUs. `config`: verl's whole config.

    Raises ConfigError for what verl would find out hours later, or never: splits that do not divide the GPUs, a
    sequence that no micro-batch can hold, adapters in the key of the other engine, a schema of another strategy.
    """
    gpus = sum(pool_of(config.trainer, "trainer"))
    _check_sections(config)
    for part in trained_parts(config):
        _check_split(part, gpus)
        _check_mini_batch(part, gpus, config.actor_rollout_ref.rollout.n)
    _check_tokens(config)
    _check_rollout(config, gpus)
    _check_adapters(config)


def check_heads(config: Any, heads: int, kv_heads: int) -> None:
    """Refuse a model whose attention heads cannot be shared by the GPUs that share a layer or a sequence.

    `heads`, `kv_heads`: of queries, and of keys and values, of one layer. vLLM and SGLang split the heads of queries
    evenly, and either split those of keys or keep copies of them; Megatron (tensor parallel) and Ulysses do too.
    Raises ConfigError.
    """
    split = {f"{ROLLOUT}.tensor_model_parallel_size": config.actor_rollout_ref.rollout.tensor_model_parallel_size}
    for part in trained_parts(config):
        if part.strategy == "megatron":
            key = f"{part.name}.megatron.tensor_model_parallel_size"
            split[key] = part.section.megatron.tensor_model_parallel_size
        else:
            split[f"{part.name}.ulysses_sequence_parallel_size"] = part.context
    for key, gpus in split.items():
        if heads % gpus or (kv_heads % gpus and gpus % kv_heads):
            fitting = [n for n in range(1, heads + 1) if not heads % n and (not kv_heads % n or not n % kv_heads)]
            raise ConfigError(
                f"{key}={gpus} does not divide the {heads} attention heads ({kv_heads} of keys and values) of the "
                f"model; expected one of {', '.join(map(str, fitting))}"
            )


def longest_sequence(config: Any) -> int:
    """Return the number of tokens of the longest sequence that an episode may become. `config`: verl's whole config."""
    rollout = config.actor_rollout_ref.rollout  # of the prompts in `data` these are copies, unless somebody wrote them
    return int(rollout.prompt_length + rollout.response_length)


def _check_sections(config: Any) -> None:
    for name, section in {ACTOR: config.actor_rollout_ref.actor, "critic": config.critic}.items():
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
        if section.shuffle:
            raise ConfigError(
                f"{name}.shuffle=true would tear the sequences of an episode into several mini-batches, some of them "
                "without any; leave it false, verl's own value"
            )


def _check_split(part: Part, gpus: int) -> None:
    share = part.model * part.context
    if gpus % share:
        raise ConfigError(
            f"{part.name} is split over {part.model} x {part.context} GPUs (tensor x pipeline, context), which does "
            f"not divide the {gpus} GPUs of trainer.nnodes x trainer.n_gpus_per_node; change the one or the other"
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
    """Return (key, tokens, GPUs that share them) of every pass whose micro-batches are filled up with tokens."""
    from omegaconf import OmegaConf

    parts = {part.name: part for part in trained_parts(config)}
    actor = parts["actor_rollout_ref.actor"]
    passes = [(actor.section.use_dynamic_bsz, f"{ACTOR}.ppo_max_token_len_per_gpu", actor.context)]
    forward = "log_prob_max_token_len_per_gpu"
    scoring = {"rollout": config.actor_rollout_ref.rollout}
    if needs_reference(config):
        scoring["ref"] = config.actor_rollout_ref.ref
    for name, section in scoring.items():
        passes.append((section.log_prob_use_dynamic_bsz, f"actor_rollout_ref.{name}.{forward}", actor.context))
    if "critic" in parts:  # verl's critic fills up its micro-batches whatever its `use_dynamic_bsz` says
        passes.append((True, CRITIC_TOKENS, parts["critic"].context))
    return [(key, int(OmegaConf.select(config, key)), gpus) for filled, key, gpus in passes if filled]


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
    backends = list(RolloutReplicaRegistry._registry)
    if rollout.name not in backends:
        raise ConfigError(f"{ROLLOUT}.name={rollout.name!r} is unknown; {did_you_mean(rollout.name, backends)}")
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
    strategy = config.actor_rollout_ref.actor.strategy
    wrong, right = ("lora_rank", "lora.rank") if strategy == "megatron" else ("lora.rank", "lora_rank")
    rank = adapter_ranks(config)[wrong]
    if rank:
        raise ConfigError(
            f"adapters of rank {rank} stand in the key that {strategy} does not read, and all weights would be "
            f"trained; set actor_rollout_ref.model.{right} and leave the other 0"
        )
