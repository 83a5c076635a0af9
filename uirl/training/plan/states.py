"""What a run keeps in memory for good, from its shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from uirl.algorithms import get_algorithm
from uirl.config import ConfigStore
from uirl.inference.models.loading import load_model
from uirl.inference.models.quantized import bytes_of_quantized, language_linears
from uirl.learner import Policy
from uirl.learner.adamw_8bit import bytes_of_moments

FLOAT32 = 4


def policy_of_shapes(config: ConfigStore) -> Policy:
    """Return the policy of a run on the meta device. Raises CheckpointError where config and tokenizer of the model
    cannot be read."""
    loaded = load_model(config.model, seed=config.training.seed, weights=False)
    return Policy(
        loaded,
        critic=get_algorithm(config.training.adv_estimator).needs_critic,
        lora_config=config.model.lora if config.model.use_lora else None,
        gradient_checkpointing=bool(config.model.gradient_checkpointing),
        freeze_vision=config.model.freeze_vision,
    )


def weights_of(policy: Policy, config: ConfigStore) -> dict[str, float]:
    """Return the bytes of weights and adapters, and of weights of 4 bits the layer that is computed with, as it is
    then."""
    adapters = sum(p.nbytes for name, p in policy.model.named_parameters() if ".lora_" in name)
    everything = sum(t.nbytes for t in (*policy.model.parameters(), *policy.model.buffers()))
    sizes = {"weights": float(everything - adapters), "adapters": float(adapters)}
    if config.model.quantization is None:
        return sizes
    narrow = [layer.weight for layer in language_linears(policy.model).values()]
    sizes["weights"] += sum(bytes_of_quantized(weight.numel()) - weight.nbytes for weight in narrow)
    return sizes | {"a layer in full": float(max(weight.nbytes for weight in narrow))}


def states_of(policy: Policy, config: ConfigStore) -> dict[str, float]:
    """Return the bytes of weights, gradients, optimiser and reference: two moments of what is trained, and float32
    masters of what is narrower."""
    trained = [parameter for _, parameter in policy.named_trainable()]
    if policy.value_head is not None:
        trained += policy.value_head.parameters()
    numbers = sum(parameter.numel() for parameter in trained)
    masters = sum(parameter.numel() for parameter in trained if parameter.element_size() < FLOAT32)
    reference = config.needs_reference and policy.lora_config is None
    head = 0 if policy.value_head is None else sum(p.nbytes for p in policy.value_head.parameters())
    return {
        **weights_of(policy, config),
        "value head": float(head),
        "reference": float(sum(p.nbytes for _, p in policy.named_trainable())) if reference else 0.0,
        "optimizer": float(_moments(trained, config) + FLOAT32 * masters),
        "gradients": float(FLOAT32 * numbers),
        "weights before the update": FLOAT32 * numbers if config.algorithm.max_update_kl is not None else 0.0,
    }


def _moments(trained: Sequence[Tensor], config: ConfigStore) -> int:
    """Return the bytes of both moments of the weights in `trained` [...]."""
    if config.training.optimizer == "adamw_8bit":
        return sum(bytes_of_moments(parameter.numel()) for parameter in trained)
    return 2 * FLOAT32 * sum(parameter.numel() for parameter in trained)


def copies_beside(policy: Policy, config: ConfigStore) -> dict[str, float]:
    """Return the bytes of the copy of the weights that an engine samples from while the learner changes its own."""
    apart = config.inference.backend == "transformers" and config.actors.run_ahead and not config.actors.engines
    return {"the engine's copy of the weights": weights_of(policy, config)["weights"] if apart else 0.0}
