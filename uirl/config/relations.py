"""What must hold between keys. Each rule says why, so that the message teaches what the combination would do."""

from __future__ import annotations

from collections.abc import Iterator

from uirl.config.sections.training import GROUP_ESTIMATORS
from uirl.config.tree import ConfigTree
from uirl.config.unused import has_policy_loss, reads_stale_correction, unused_settings

BUILT_IN_VLM = "uirl/tiny-vlm"
BUILT_IN = (BUILT_IN_VLM, "uirl/tiny-lm")
GROUNDED = "uirl/tiny-vlm-grounded"


def broken_relations(config: ConfigTree) -> list[str]:
    """Return one message per combination of values that cannot work; empty: none."""
    rules = (_batches, _rollouts, _objective, _run, _sleep, _model)
    return [message for rule in rules for message in rule(config)]


def broken_for_training(config: ConfigTree) -> list[str]:
    """Return one message per combination that can be played and evaluated, but from which nothing can be learned."""
    return [*unused_settings(config), *_learnable(config)]


def _learnable(config: ConfigTree) -> Iterator[str]:
    training, inference = config.training, config.inference
    if inference.backend == "scripted":
        yield (
            "inference.backend=scripted replays given replies and learns nothing from them; train with transformers, "
            "vllm or sglang"
        )
    yield from _like_with_like(config)
    for key, value in (("old_log_probs", "rollout"), ("adv_estimator", "rejection_sampling")):
        if config.actors.staleness == "auto" and getattr(training, key) == value:
            yield (
                f"actors.staleness=auto with training.{key}={value}: the bound follows the gap between the learner's "
                "own log-probs and the engine's, and nothing would measure it; give a number, as actors.staleness=1"
            )
    if inference.temperature == 0:
        yield (
            "inference.temperature=0: a greedy policy never explores, every episode of a task is the same and every "
            "advantage is 0; sample with 1.0, and use training.eval_temperature=0 for greedy evaluation"
        )
    if config.model.dtype == "float16":
        yield (
            "model.dtype=float16: gradients below 6e-8 become 0 without loss scaling, which the learner does not do; "
            "use bfloat16 or float32"
        )


def _like_with_like(config: ConfigTree) -> Iterator[str]:
    """Yield what would weigh the learner's log-probs against those of an engine that filters what it samples from."""
    if not config.inference.filtered or not has_policy_loss(config):
        return
    algorithm, actors = config.algorithm, config.actors
    weighs_stale = algorithm.stale_correction != "off" and reads_stale_correction(config)
    weighed = {
        "training.old_log_probs=rollout": (config.training.old_log_probs == "rollout", "use auto or recompute"),
        f"algorithm.tis_cap={algorithm.tis_cap}": (algorithm.tis_cap is not None, "set it to null"),
        f"algorithm.mismatch_range={algorithm.mismatch_range}": (
            algorithm.mismatch_range is not None,
            "set it to null",
        ),
        f"actors.staleness={actors.staleness}": (
            actors.staleness == "auto" or (actors.run_ahead and weighs_stale),
            "give a number and algorithm.stale_correction=off, or use 0",
        ),
    }
    for words, (used, remedy) in weighed.items():
        if used:
            yield (
                f"{words} with inference.top_p={config.inference.top_p} and top_k={config.inference.top_k}: the "
                "engine's log-probs are those of what it had left to choose from, the learner's are of all tokens, so "
                f"every ratio of the two would be too small; use top_p=1 and top_k=0, or {remedy}"
            )


def _batches(config: ConfigTree) -> Iterator[str]:
    training = config.training
    if training.adv_estimator in GROUP_ESTIMATORS and training.episodes_per_group < 2:
        yield (
            f"training.adv_estimator={training.adv_estimator} with training.group_size=1: a group of one has no "
            "baseline, its reward minus the mean of the group is always 0 and nothing is learned; use a group_size of "
            "2 or more, or adv_estimator=gae"
        )
    if training.batch_size % training.episodes_per_group:
        yield (
            f"training.batch_size={training.batch_size} is no multiple of the {training.episodes_per_group} episodes "
            "of a group: one group would be cut and its baseline wrong; change batch_size or training.group_size"
        )
    if config.actors.group_floor is not None and config.actors.group_floor > training.episodes_per_group:
        yield (
            f"actors.group_floor={config.actors.group_floor} is more than the {training.episodes_per_group} episodes "
            "of a group: none would ever be learned from; lower it, or raise training.group_size"
        )
    if training.minibatches > training.batch_size:
        yield (
            f"training.minibatches={training.minibatches} is more than training.batch_size={training.batch_size}: a "
            "minibatch needs at least one episode"
        )


def _rollouts(config: ConfigTree) -> Iterator[str]:
    response = config.inference.max_tokens
    limits = {
        "rollout.max_tokens": config.rollout.max_tokens,
        "rollout.token_budget": config.rollout.token_budget,
        "inference.max_context": config.inference.max_context,
    }
    for key, limit in limits.items():
        if limit is not None and limit <= response:
            yield (
                f"{key}={limit} leaves no room for a prompt beside a response of inference.max_tokens={response}; "
                "raise the one or lower the other"
            )
    kept, limit = config.rollout.keep_images, config.rollout.max_images
    if kept is not None and (limit is None or kept > limit):
        yield (
            f"rollout.keep_images={kept} with rollout.max_images={limit}: so many screenshots cannot stay in a window "
            "of that size; expected at most max_images, which must be set"
        )
    turns = config.rollout.max_turns
    if not config.inference.multi_turn and turns is not None and turns > 1:
        yield (
            f"rollout.max_turns={turns} with inference.multi_turn=false: without several turns the first reply ends "
            "the episode; set multi_turn=true or max_turns=1"
        )


def _objective(config: ConfigTree) -> Iterator[str]:
    training, algorithm = config.training, config.algorithm
    if training.adv_estimator == "gae" and training.value_coef == 0:
        yield (
            "training.adv_estimator=gae with training.value_coef=0: the critic would never be trained, and GAE "
            "subtracts its guesses from the rewards; use a value_coef above 0, or an estimator without critic"
        )
    if algorithm.kl_target is not None and not training.use_kl_in_reward:
        yield (
            f"algorithm.kl_target={algorithm.kl_target} with training.use_kl_in_reward=false: the controller adapts "
            "training.kl_coef, which then weighs nothing; set use_kl_in_reward=true or kl_target=null"
        )
    if algorithm.kl_target is not None and training.kl_coef == 0:
        yield (
            f"algorithm.kl_target={algorithm.kl_target} with training.kl_coef=0: the controller multiplies the "
            "coefficient, so it could never leave 0; use a kl_coef above 0, 0.001 for instance"
        )
    if algorithm.kl_target is not None and training.batch_size >= 5 * algorithm.kl_horizon:
        yield (
            f"algorithm.kl_horizon={algorithm.kl_horizon} with training.batch_size={training.batch_size}: one update "
            f"could take the coefficient of the KL to 0; use a horizon of more than {training.batch_size // 5}"
        )
    if algorithm.kl_loss_coef > 0 and algorithm.kl_type == "k1":
        yield (
            f"algorithm.kl_type=k1 with algorithm.kl_loss_coef={algorithm.kl_loss_coef}: as a loss the log ratio has "
            "the expected gradient 0 and would train on noise; use k2 or k3"
        )
    if training.use_kl_in_reward and training.adv_estimator == "rejection_sampling":
        yield (
            "training.use_kl_in_reward=true with training.adv_estimator=rejection_sampling: the sign of the penalty "
            "would decide which episodes are above algorithm.reward_threshold; use algorithm.kl_loss_coef"
        )
    if algorithm.mismatch_range is not None and algorithm.mismatch_range[0] >= algorithm.mismatch_range[1]:
        yield (
            f"algorithm.mismatch_range={list(algorithm.mismatch_range)} is empty: every token would be left out of the "
            "loss; use [low, high] with low below high, as [0.5, 2.0]"
        )
    if algorithm.stale_range[0] >= algorithm.stale_range[1]:
        yield (
            f"algorithm.stale_range={list(algorithm.stale_range)} is empty: every stale token would be left out of the "
            "loss; use [low, high] with low below high, as [0.5, 2.0]"
        )
    if algorithm.loss_length is not None and algorithm.loss_aggregation != "seq-mean-token-sum-norm":
        yield (
            f"algorithm.loss_length={algorithm.loss_length} is read by loss_aggregation='seq-mean-token-sum-norm' "
            f"alone, got {algorithm.loss_aggregation!r}; change one of them"
        )


def _run(config: ConfigTree) -> Iterator[str]:
    training, warm = config.training, config.training.warm_start
    if config.ray.use_ray and config.actors.processes > 0:
        yield (
            f"ray.use_ray=true with actors.processes={config.actors.processes}: episodes are played in Ray's actors or "
            "in processes of this machine; set use_ray=false, or processes=0 and ray.num_actors"
        )
    if training.stop_at_success is not None and training.eval_every is None:
        yield (
            "training.stop_at_success with training.eval_every=null: the success rate is that of an evaluation, and "
            "there is none between the first and the last update; set eval_every"
        )
    if config.wants_warm_start and warm.stop_at_success is not None and warm.evaluate_every is None:
        yield (
            "training.warm_start.stop_at_success with training.warm_start.evaluate_every=null: there is no evaluation "
            "that could stop it; set evaluate_every, or stop_at_success=null"
        )
    evolve = config.evolve
    if evolve.episodes % evolve.group_size:
        yield (
            f"evolve.episodes={evolve.episodes} is no multiple of evolve.group_size={evolve.group_size}: one group "
            "would be cut; change one of them"
        )
    if evolve.prefixes == "judge" and config.verification.judge is None:
        yield (
            "evolve.prefixes=judge asks the judge's model, and verification.judge names none; name one, or set "
            "evolve.prefixes=fork"
        )
    if config.checkpoint.keep_best is not None and config.training.eval_every is None:
        yield (
            f"checkpoint.keep_best={config.checkpoint.keep_best} with training.eval_every=null: no evaluation between "
            "updates would say which is best; set eval_every, or keep_best=null"
        )
    if config.checkpoint.from_step is not None and not config.checkpoint.resume:
        yield (
            f"checkpoint.from_step={config.checkpoint.from_step} with checkpoint.resume=false: a new run has no "
            "checkpoint to go back to; set resume=true (--resume), or from_step=null"
        )


def _sleep(config: ConfigTree) -> Iterator[str]:
    sleep = config.inference.sleep
    if sleep in ("auto", "off"):
        return
    if config.actors.run_ahead:
        yield (
            f"inference.sleep={sleep} with actors.staleness={config.actors.staleness}: episodes are played while the "
            "learner learns, and an engine that sleeps answers none; use actors.staleness=0, or sleep=off"
        )
    if sleep == 2 and config.model.use_lora:
        yield (
            "inference.sleep=2 with model.use_lora=true: the weights under the adapters would be dropped, and an "
            "update brings adapters alone; use sleep=1, which keeps them in the memory of the host, or auto"
        )


def _model(config: ConfigTree) -> Iterator[str]:
    if config.inference.backend == "transformers" and config.model.tensor_parallel_size > 1:
        yield (
            f"model.tensor_parallel_size={config.model.tensor_parallel_size} with inference.backend=transformers: the "
            "embedded engine keeps the model on one device; use vllm or sglang, or 1"
        )
    yield from _quantized(config)
    kernel = config.model.attn_implementation
    if kernel not in (None, "sdpa", "eager") and config.inference.backend == "transformers":
        yield (
            f"model.attn_implementation={kernel} with inference.backend=transformers: the embedded engine samples "
            "sequences of different lengths together and says by masks what each sees, which only sdpa and eager "
            "take; use one of these, or vllm or sglang"
        )
    elif kernel is not None and "flash" in kernel and config.model.dtype == "float32":
        yield (
            f"model.attn_implementation={kernel} with model.dtype=float32: the kernel computes in 16 bits alone; use "
            "model.dtype=bfloat16, or sdpa"
        )
    tiny = config.model.tiny
    if config.model.model_name == GROUNDED and config.model.local_path is None and tiny != type(tiny)():
        changed = ", ".join(
            f"model.tiny.{name}"
            for name in type(tiny).model_fields
            if getattr(tiny, name) != getattr(type(tiny)(), name)
        )
        yield (
            f"{changed} with model.model_name={GROUNDED}: its weights come along, and its sizes and its tokenizer are "
            f"theirs; leave {changed} out, or take model.model_name={BUILT_IN_VLM}"
        )
    if config.model.model_name in BUILT_IN and tiny.hidden_size % (2 * tiny.num_heads):
        yield (
            f"model.tiny.hidden_size={tiny.hidden_size} with num_heads={tiny.num_heads}: every head needs an even, "
            f"whole width for rotary positions; use a multiple of {2 * tiny.num_heads}"
        )
    if config.model.model_name != BUILT_IN_VLM:
        return
    if tiny.vision_hidden_size % (4 * tiny.num_heads):
        yield (
            f"model.tiny.vision_hidden_size={tiny.vision_hidden_size} with num_heads={tiny.num_heads}: a vision head "
            f"has rotary positions along two axes; use a multiple of {4 * tiny.num_heads}"
        )
    cell = tiny.patch_size * tiny.merge_size
    if tiny.image_size % cell:
        yield (
            f"model.tiny.image_size={tiny.image_size} is no multiple of patch_size x merge_size = {cell}: pictures are "
            f"cut into cells of {cell} x {cell} pixels, one token each; use {max(cell, tiny.image_size // cell * cell)}"
        )


def _quantized(config: ConfigTree) -> Iterator[str]:
    model, actors = config.model, config.actors
    if model.quantization is None:
        return
    words = f"model.quantization={model.quantization}"
    if not model.use_lora:
        yield f"{words} with model.use_lora=false: weights of 4 bits are not trained themselves; set use_lora=true"
    if model.built_in:
        yield (
            f"{words} with model.model_name={model.model_name}: a built-in model is made in memory and needs no "
            "quantisation; set quantization=null, or name a checkpoint"
        )
    if config.inference.backend == "transformers" and (actors.run_ahead or actors.engines):
        key = f"actors.engines={actors.engines}" if actors.engines else f"actors.staleness={actors.staleness}"
        yield (
            f"{words} with {key}: an engine with weights of its own gets them merged with the adapters, in 16 bits; "
            "use vllm or sglang, which take the adapters, or staleness=0 without engines"
        )
