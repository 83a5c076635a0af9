"""The policy that learns: a HF model, its value head and its adapters; log-probs of what was sampled, and nothing else.

Dropout is off, also in training: engine and learner must compute one distribution. Only adapters may drop inputs
(`model.lora.lora_dropout`), and then only while gradients flow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from uirl.algorithms import compute_entropy, drop_unlikely, get_algorithm, score_tokens
from uirl.config import ConfigStore, ModelConfig
from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.base import InferenceEngine, Weights
from uirl.inference.models.features import vision_is_frozen
from uirl.inference.models.loading import LoadedModel, head_is_plain, hidden_states, load_model, project, raw_logits
from uirl.learner import lora
from uirl.learner.batch import Batch, token_states
from uirl.learner.lean_layers import keep_less

LOGITS_KEPT = 2**28
"""Bytes of logits that wait for the backward pass; those of further tokens are made again there."""
LOGITS_PER_CHUNK = 2**25
"""Logits made at once where they do not wait: 2**25 numbers are 128 MB of float32, whatever vocabulary and batch."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs, entropies and values of the response tokens of a batch: float32 [B, T], 0 at other tokens."""

    log_probs: Tensor | None
    """None: not asked for."""
    entropy: Tensor | None
    """Of the distribution each token was drawn from, in nats; None: not asked for."""
    values: Tensor | None
    """The value before the token is chosen; None: not asked for."""
    final_values: Tensor | None
    """[B], the value after the last token of the row; None: not asked for."""
    likely_entropy: Tensor | None = None
    """Of the choice among the likely tokens (`drop_unlikely`), in nats; None: not asked for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked for of the tokens of an update, beside their log-probs."""

    temperature: float
    entropy: bool
    entropy_gradient: bool
    min_p: float
    """Above 0: the entropy of the likely tokens too."""

    def names(self) -> tuple[str, ...]:
        """Return the names of what comes, in order."""
        likely = ("likely_entropy",) if self.entropy and self.min_p > 0 else ()
        return ("log_probs", *(("entropy",) if self.entropy else ()), *likely)


class Policy:
    """A `LoadedModel` with what learning needs: value head, adapters, a reference.

    `critic`: adds a linear value head (float32, from 0) on the last hidden states. `lora`: adapters are put into the
    model and everything else is frozen. `freeze_vision`: without adapters, the vision tower stays as it is. Raises
    ContractError for float16, whose small gradients vanish.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        critic: bool = False,
        lora_config: Any | None = None,
        gradient_checkpointing: bool = False,
        freeze_vision: bool = False,
        seed: int = 0,
    ) -> None:
        if loaded.dtype == torch.float16:
            raise ContractError("a policy in float16 cannot learn without loss scaling; use model.dtype=bfloat16")
        self.loaded = loaded
        self.lora_config = lora_config
        self.gradient_checkpointing = gradient_checkpointing
        self.value_head: nn.Linear | None = None
        if critic:
            self.add_critic()
        self._reference: dict[str, Tensor] | None = None
        if lora_config is not None:
            lora.add_adapters(loaded.model, lora_config, seed=seed)
        elif freeze_vision:
            lora.freeze_vision(loaded.model, loaded.name)
        if gradient_checkpointing:
            loaded.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        keep_less(loaded.model)
        loaded.features.kept = loaded.vision is not None and vision_is_frozen(loaded.model)
        loaded.features.clear()
        _drop_nothing(loaded.model)
        # not `self.train(False)`, which trusts the flag of the model: adapters come in training mode
        loaded.model.eval()

    @classmethod
    def from_config(cls, config: ConfigStore, *, critic: bool | None = None) -> Policy:
        """Return the policy of a run, with a value head where the estimator needs one; `critic` overrides that."""
        needed = get_algorithm(config.training.adv_estimator).needs_critic if critic is None else critic
        return cls.from_model_config(config.model, critic=needed, seed=config.training.seed)

    @classmethod
    def from_model_config(cls, config: ModelConfig, *, critic: bool = False, seed: int = 0) -> Policy:
        """Return the policy that the `model` section alone describes."""
        policy = cls(
            load_model(config, seed=seed),
            critic=critic,
            lora_config=config.lora if config.use_lora else None,
            gradient_checkpointing=bool(config.gradient_checkpointing),
            freeze_vision=config.freeze_vision,
            seed=seed,
        )
        if config.use_lora and config.adapter_path is not None:
            lora.load_adapter(config.adapter_path, policy.model, config.lora, base=policy.loaded.name)
        return policy

    @property
    def model(self) -> nn.Module:
        return self.loaded.model

    def add_critic(self) -> None:
        """Give the policy a value head (float32, from 0), unless it has one."""
        if self.value_head is None:
            self.value_head = _value_head(self.loaded)

    def named_trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Return (name, parameter) of what is trained in the model: all of it, all but a frozen vision tower, or the
        adapters. Without the value head."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad or ".lora_" in name]

    def train(self, mode: bool = True) -> None:
        """Switch to training mode, where something needs it (gradient checkpointing, adapter dropout); else evaluation
        mode."""
        dropping = self.lora_config is not None and self.lora_config.lora_dropout > 0
        wanted = mode and (self.gradient_checkpointing or dropping)
        if self.model.training == wanted:
            return
        self.model.train(wanted)
        if wanted:
            for name, module in self.model.named_modules():
                if isinstance(module, nn.Dropout) and ".lora_" not in name:
                    module.eval()

    def recompute_activations(self) -> bool:
        """Compute activations again in the backward pass from now on; False: they are already, or the model cannot."""
        model: Any = self.model
        if self.gradient_checkpointing or not getattr(model, "supports_gradient_checkpointing", False):
            return False
        model.gradient_checkpointing_enable({"use_reentrant": False})
        self.gradient_checkpointing = True
        self.train(torch.is_grad_enabled())
        return True

    def log_probs_and_values(
        self,
        batch: Batch,
        temperature: float = 1.0,
        *,
        log_probs: bool = True,
        entropy: bool = False,
        values: bool = False,
        entropy_gradient: bool = True,
        entropy_min_p: float = 0.0,
    ) -> TokenScores:
        """Return log-probs, entropies and values of the response tokens of `batch`.

        They carry the gradient, that of the entropy only with `entropy_gradient`. With `entropy_min_p` above 0 the
        entropy of the likely tokens comes too, and it alone carries a gradient.

        `log_probs[b, t] = log softmax(logits[b, t - 1] / temperature)[input_ids[b, t]]`, banned tokens excluded; a
        temperature of 0 counts as 1, as in the engines. Logits are made at the positions that predict a response
        token only, in chunks, so a long prompt costs no vocabulary-sized memory.
        """
        if values and self.value_head is None:
            raise ContractError("this policy has no value head; make it with critic=True")
        before, last = token_states(self.loaded, batch)
        spread = batch.scatter
        scores: dict[str, Tensor] = {}
        if log_probs or entropy:
            asked = _Asked(temperature or 1.0, entropy, entropy_gradient, entropy_min_p)
            scores = self._score(before, batch.flatten(batch.input_ids), asked)
        columns = {name: spread(column) for name, column in scores.items()}
        token_values = final_values = None
        if values:
            token_values = spread(self._values(before))
            final_values = self._values(last)
        return TokenScores(
            log_probs=columns.get("log_probs") if log_probs else None,
            entropy=columns.get("entropy"),
            likely_entropy=columns.get("likely_entropy"),
            values=token_values,
            final_values=final_values,
        )

    # -- the reference -----------------------------------------------------------------------------------------

    @property
    def reference_weights(self) -> dict[str, Tensor] | None:
        """The weights that `freeze_reference` kept; None: none were kept, or the reference is the adapters' base."""
        return self._reference

    def freeze_reference(self) -> None:
        """Make the policy as it is now the reference of every KL.

        Keeps a copy of the trainable weights: of adapters this is little, and nothing where they are untouched (the
        reference is then the model with its adapters off).
        """
        if self.lora_config is not None and lora.untouched(self.model):
            self._reference = None
            return
        self._reference = {name: p.detach().clone() for name, p in self.named_trainable()}

    def load_reference(self, weights: dict[str, Tensor] | None) -> None:
        """Take the reference of a checkpoint."""
        trainable = dict(self.named_trainable())
        if weights is not None and {n: t.shape for n, t in weights.items()} != {
            n: p.shape for n, p in trainable.items()
        }:
            raise ContractError("the reference weights are those of another model or other adapters")
        self._reference = None if weights is None else {n: t.to(trainable[n]) for n, t in weights.items()}

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Return a context, without gradients, in which this policy is its reference.

        Raises ContractError for a policy without adapters whose reference was never frozen.
        """
        if self._reference is None and self.lora_config is None:
            raise ContractError("no reference policy: call Policy.freeze_reference() before training starts")
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if self._reference is None:
                stack.enter_context(lora.adapters_off(self.model))
            else:
                stack.enter_context(_exchanged(dict(self.named_trainable()), self._reference))
            yield

    # -- weights for others ------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Return (HF name, tensor) of the whole model with adapters merged in, for an engine with a model of its
        own."""
        return lora.merged_weights(self.model)

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Return (HF name, tensor) of the adapters alone; nothing without adapters."""
        return lora.adapter_weights(self.model)

    def update_for(self, engine: InferenceEngine) -> tuple[Weights | None, dict[str, Any] | None]:
        """Return (weights, adapter) that `engine.update_weights` wants: nothing where it samples from this very module,
        the adapters alone where it can swap them, else the whole model with adapters merged in."""
        if engine.shares_weights:
            return None, None
        if engine.takes_adapters and self.lora_config is not None:
            return lora.peft_weights(self.model), lora.peft_config(self.model, self.lora_config)
        return self.weights(), None

    # -- the head ----------------------------------------------------------------------------------------------

    def _score(self, hidden: Tensor, targets: Tensor, asked: _Asked) -> dict[str, Tensor]:
        """Return 'log_probs' [n] of `targets` [n] from `hidden` [n, H], and what else is asked for."""

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            return _scores(raw_logits(self.loaded, hidden), targets, asked)

        first, *others = self._chunks(len(targets))
        parts = [score(hidden[first], targets[first])]
        for chunk in others:
            if torch.is_grad_enabled():
                parts.append(checkpoint(score, hidden[chunk], targets[chunk], use_reentrant=False))
            else:
                parts.append(score(hidden[chunk], targets[chunk]))
        columns = (torch.cat(column) for column in zip(*parts, strict=True))
        return dict(zip(asked.names(), columns, strict=True))

    def _chunks(self, tokens: int) -> list[slice]:
        """Return which of `tokens` share a projection. The logits of the first chunk wait for the backward pass; the
        others make theirs again, one chunk at a time."""
        kept, at_once = tokens_projected(self.loaded, self.loaded.dtype.itemsize)
        first = kept if torch.is_grad_enabled() else at_once
        return [slice(0, first), *(slice(start, start + at_once) for start in range(first, tokens, at_once))]

    def _values(self, hidden: Tensor) -> Tensor:
        assert self.value_head is not None
        return self.value_head(hidden.float())[..., 0]


def tokens_projected(loaded: LoadedModel, itemsize: int) -> tuple[int, int]:
    """Return (tokens whose logits wait for the backward pass, tokens of a chunk whose logits do not), in a precision of
    `itemsize` bytes."""
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    at_once = max(1, LOGITS_PER_CHUNK // vocabulary)
    kept = max(1, LOGITS_KEPT // (vocabulary * itemsize))
    # a head that scales or caps its logits makes several tensors of them
    return (kept if head_is_plain(loaded) else at_once), at_once


class PolicyValueModel(nn.Module):
    """Policy and value network on one trunk.

    `PolicyValueModel("uirl/tiny-vlm")`, or a `ModelConfig`, a `ConfigStore` or a ready `Policy` (with a value head).
    """

    def __init__(self, model: str | ModelConfig | ConfigStore | Policy, *, seed: int = 0, **options: Any) -> None:
        """`options` are keys of the `model` section, for a model given by name."""
        super().__init__()
        if isinstance(model, str):
            model = ModelConfig(model_name=model, **options)
        elif options:
            raise ContractError(f"options {sorted(options)} go with a model name, got a {type(model).__name__}")
        if isinstance(model, ConfigStore):
            model = Policy.from_config(model, critic=True)
        elif isinstance(model, ModelConfig):
            model = Policy.from_model_config(model, critic=True, seed=seed)
        if model.value_head is None:
            raise ContractError("PolicyValueModel needs a policy with a value head; make it with critic=True")
        self.policy = model
        self.model = model.model
        self.value_head = model.value_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        images: Sequence[Screenshot] = (),
    ) -> tuple[Tensor, Tensor]:
        """Return (logits [B, T, V], values [B, T]) at every position of `input_ids` [B, T].

        `attention_mask` may mark padding on either side; without `position_ids` positions count the tokens that are
        there, which is right for text only: with pictures give those of `LoadedModel.positions`.
        """
        loaded = self.policy.loaded
        if position_ids is None:
            if images:
                raise ContractError("pictures need position_ids; use uirl.learner.collate and log_probs_and_values")
            position_ids = _counted(input_ids, attention_mask).expand(loaded.axes, *input_ids.shape)
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        hidden = hidden_states(loaded, input_ids, position_ids, images, **mask)
        return project(loaded, hidden), self.policy._values(hidden)

    def log_probs_and_values(self, batch: Batch, temperature: float = 1.0, *, entropy: bool = False) -> TokenScores:
        """Return log-probs and values of the response tokens, for training."""
        return self.policy.log_probs_and_values(batch, temperature, entropy=entropy, values=True)


def _scores(logits: Tensor, targets: Tensor, asked: _Asked) -> tuple[Tensor, ...]:
    """Return what is asked for of `logits` [n, V], which it consumes, and their targets [n]: at most one entropy
    carries a gradient."""
    likely = []
    if "likely_entropy" in asked.names():  # first: on the way back the logits are written over
        seen = (logits if asked.entropy_gradient else logits.detach()).float() / asked.temperature
        likely = [compute_entropy(drop_unlikely(seen, asked.min_p))]
    carried = asked.entropy_gradient and not likely
    log_probs, entropies = score_tokens(
        logits, targets, asked.temperature, entropy=asked.entropy, entropy_gradient=carried
    )
    return (log_probs, *([] if entropies is None else [entropies]), *likely)


@contextlib.contextmanager
def _exchanged(parameters: dict[str, nn.Parameter], others: dict[str, Tensor]) -> Iterator[None]:
    kept = {name: p.data for name, p in parameters.items()}
    try:
        for name, p in parameters.items():
            p.data = others[name]
        yield
    finally:
        for name, p in parameters.items():
            p.data = kept[name]


def _value_head(loaded: LoadedModel) -> nn.Linear:
    config = getattr(loaded.config, "text_config", loaded.config)
    head = nn.Linear(config.hidden_size, 1, device="meta").to_empty(device=loaded.device)
    # from 0: no random numbers, and the first values say nothing
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _drop_nothing(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _counted(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)
