"""Checkpoints: everything a learner is, so that a resumed run takes the same next step to the last digit.

    step-000120/
      manifest.json           every file with size and sha256
      config.yaml             the config of the run
      state.json              versions, phase, random states, what the caller wants back
      policy/                 the model as HF writes it, with tokenizer and image processor; or, with adapters,
      adapter/                the adapters alone, a folder of peft's: the base comes from where it came from
      value_head.safetensors, reference.safetensors, optimizer.safetensors    where there are such

No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from uirl.config import ConfigStore, ModelConfig
from uirl.config.stored import override_stored
from uirl.errors import CheckpointError
from uirl.inference.models.loading import BUILT_IN_MODELS, LoadedModel, load_model
from uirl.inference.models.quantized import is_quantized, plain_weight
from uirl.inference.models.unpacked import folder_of
from uirl.learner import lora
from uirl.learner.data_parallel import Restore
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy
from uirl.learner.update import Learner
from uirl.runtime.folders import (
    check_folder,
    damaged,
    finished_folders,
    number_of,
    read_json,
    read_tensors,
    require_own,
    tensor_text,
    text_tensor,
    whole_folder,
    write_json,
    write_tensors,
)

_STATE, _CONFIG, _POLICY = "state.json", "config.yaml", "policy"
_ADAPTER, _HEAD = "adapter", "value_head.safetensors"
_REFERENCE, _OPTIMIZER = "reference.safetensors", "optimizer.safetensors"


class CheckpointState(BaseModel):
    """The content of state.json."""

    model_config = ConfigDict(strict=True)

    version: int
    updates: int
    phase: str | None
    optimizer_steps: int
    reference_frozen: bool
    kl_coef: float
    entropy_coef: float | None = None
    """Where it was steered to (`training.target_entropy`); None: it is not steered."""
    critic: bool
    adapters: bool
    base_fingerprint: str | None
    """Of the frozen weights that the adapters belong to; None: there are no adapters."""
    random: dict[str, Any]
    extra: dict[str, Any]
    """What the caller of `save_checkpoint` wants back."""


def save_checkpoint(
    folder: str | Path,
    learner: Learner,
    extra: Mapping[str, Any],
    keep_last_n: int | None = None,
    *,
    save_optimizer: bool = True,
    kept: Collection[Path] = (),
) -> Path:
    """Write the checkpoint `folder`, whole on the disk; its name must end in a number, which orders checkpoints.

    Args:
        folder: Where it shall stand, for instance `runs/x/checkpoints/step-000120`. One that stands there already is
            replaced.
        learner: What to save. The random states of torch, numpy and Python are saved as they are now.
        extra: Plain JSON data that `load_checkpoint` gives back (positions of data and curriculum).
        keep_last_n: Older checkpoints beside it than the newest n are deleted, after this one stands; None: none.
        save_optimizer: False is smaller, and a resumed run is then not the one that never stopped.
        kept: Checkpoints beside it that are not deleted, however old, and are not among the newest n either.

    Raises CheckpointError where the disk is full or not writable; nothing half-written is visible then.
    """
    target = Path(folder)
    if number_of(target) is None:
        raise CheckpointError(f"the name of checkpoint {target} must end in a number, as in step-000120")
    with whole_folder(target) as work:
        _write_policy(work, learner.policy)
        (work / _CONFIG).write_text(learner.config.to_yaml(), encoding="utf-8")
        if learner.policy.reference_weights is not None:
            write_tensors(work / _REFERENCE, learner.policy.reference_weights)
        if learner.optimizer is not None and save_optimizer:
            write_tensors(work / _OPTIMIZER, learner.optimizer_state())
        write_json(work / _STATE, _state_of(learner, extra, save_optimizer).model_dump())
    if keep_last_n is not None:
        for old in [one for one in finished_folders(target.parent) if one not in kept or one == target][:-keep_last_n]:
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
    return target


def load_checkpoint(folder: str | Path, learner: Learner) -> Any:
    """Load a checkpoint and return its `extra`, after `learner` and the random states have become what they were.

    Every file is checked first, so a damaged checkpoint changes nothing. Raises CheckpointError that names the damaged
    or missing file and an older checkpoint to use, or says what of this policy the checkpoint does not fit.
    """
    source = Path(folder)
    check_folder(source)
    state = read_state(source)
    _check_fit(source, state, learner.policy)
    _read_policy(source, learner.policy, learner.config.model)
    reference = read_tensors(source / _REFERENCE) if (source / _REFERENCE).exists() else None
    learner.policy.load_reference(reference)
    learner.reference_frozen = state.reference_frozen
    learner.version, learner.updates = state.version, state.updates
    learner.kl.kl_coef = state.kl_coef
    if learner.entropy is not None and state.entropy_coef is not None:
        learner.entropy.value = state.entropy_coef
    _restore_optimizer(source, state, learner)
    try:
        _set_random(state.random)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(damaged(source, _STATE, f"has no valid 'random': {error}")) from error
    if learner.ranks is not None:
        learner.ranks.call(Restore(str(source.resolve())), lambda: None)
    return state.extra


def read_state(folder: Path) -> CheckpointState:
    """Return what state.json of a checkpoint says. Raises CheckpointError that names the key which is missing or of
    another type: an older or newer uirl wrote it, or something else did."""
    try:
        return CheckpointState.model_validate(read_json(folder / _STATE))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"])) or "object"
        what = f"has no valid {key!r}: {problem['msg']}, got {problem['input']!r:.40}"
        raise CheckpointError(damaged(folder, _STATE, what)) from error


def latest_checkpoint(directory: str | Path) -> Path | None:
    """Return the newest finished checkpoint in `directory`, by the number in its name; None where there is none.

    It is not checked: loading does that, and its error names older ones.
    """
    found = finished_folders(Path(directory))
    return found[-1] if found else None


def load_policy(
    folder: str | Path,
    *,
    model: ModelConfig | None = None,
    device: str | None = None,
    trust_remote_code: bool | None = None,
) -> Policy:
    """Return the policy of a checkpoint, for evaluation or serving: `Policy.loaded` has model, tokenizer and image
    processor.

    `model`: the section of a config that its user stands for; None: the checkpoint's own, see `stored_model`. `device`
    overrides the one in it. `trust_remote_code`: whether Python code that lies with the model may run; None: as that
    section says. Raises CheckpointError for a damaged checkpoint, ConfigError for one that reaches outside of its run.
    """
    source = Path(folder)
    check_folder(source)
    config = ConfigStore.from_yaml(source / _CONFIG)
    state = read_state(source)
    model = stored_model(source, trust_remote_code=trust_remote_code) if model is None else model
    changes = {"device": device, "trust_remote_code": trust_remote_code}
    changes = {key: value for key, value in changes.items() if value is not None}
    model = model.model_copy(update=changes | {"adapter_path": None})
    if not state.adapters:
        model = model.model_copy(update={"local_path": str(source / _POLICY)})
    policy = Policy.from_model_config(model, critic=state.critic, seed=config.training.seed)
    if state.adapters:
        _check_fit(source, state, policy)
        _read_adapters(source, policy)
    _read_head(source, policy)
    return policy


def stored_model(folder: Path, *, trust_remote_code: bool | None = None) -> ModelConfig:
    """Return the section `model` of a checkpoint's config. Raises ConfigError where it names files or code outside of
    it that its user neither asked for nor has begun a run with (`override_stored`)."""
    asked = ["model.adapter_path=null"]  # the checkpoint has what became of it
    if not (folder / _ADAPTER).is_dir():  # it has the weights
        asked += ["model.local_path=null"]
    if trust_remote_code is not None:
        asked += [f"model.trust_remote_code={json.dumps(trust_remote_code)}"]
    return override_stored(ConfigStore.from_yaml(folder / _CONFIG), asked, folder, section=("model.",)).model


def export_hf(folder: str | Path, learner: Learner | Policy, card: str | None = None) -> Path:
    """Return a folder that `from_pretrained` of HF and `load_model(local_path=...)` read: weights (adapters merged),
    config, tokenizer, chat template, image processor. The value head stays behind. Written whole or not at all; an
    earlier export is replaced. `card`: its README.md. Raises CheckpointError where something else stands there."""
    policy = learner.policy if isinstance(learner, Learner) else learner
    target = Path(folder)
    require_own(target)
    with whole_folder(target) as work:
        save_merged(policy, work)
        _write_card(work, card)
    return target


def export_peft(folder: str | Path, policy: Policy, card: str | None = None) -> Path:
    """Return a folder that `PeftModel.from_pretrained` reads: the adapters alone. A built-in base model exists nowhere
    else and goes along in `base/`, so that HF's auto classes find it. `card`: see `export_hf`. Raises CheckpointError
    for a policy without adapters."""
    if policy.lora_config is None:
        raise CheckpointError("this policy has no adapters (model.use_lora was false); export its weights: --to hf")
    target, name = Path(folder).resolve(), policy.loaded.name
    built_in = name in BUILT_IN_MODELS
    require_own(target)
    with whole_folder(target) as work:
        base = str(target / "base") if built_in else folder_of(name)
        lora.save_adapter(work, policy.model, policy.lora_config, base=base)
        if built_in:
            policy.loaded.save(work / "base", _without_adapters(policy))
        policy.loaded.tokenizer.save_pretrained(work)
        _write_card(work, card)
    return target


def _write_card(work: Path, card: str | None) -> None:
    if card is not None:
        (work / "README.md").write_text(card, encoding="utf-8")


def save_merged(policy: Policy, folder: Path) -> None:
    """Write the policy as HF does, adapters merged."""
    loaded = policy.loaded
    if policy.lora_config is None:
        loaded.save(folder)
        return
    loaded.save(folder, _without_adapters(policy) | dict(lora.merged_weights(policy.model)))


def _without_adapters(policy: Policy) -> dict[str, Tensor]:
    """Return the state dict of the base model, under the names it has without adapters."""
    whole = policy.model.state_dict()
    codes = {name for name, p in policy.model.named_parameters() if is_quantized(p)}
    scales = tuple(f"{name}." for name in codes)
    whole = {name: t for name, t in whole.items() if name not in codes and not name.startswith(scales)}
    whole |= {name: plain_weight(p) for name, p in policy.model.named_parameters() if name in codes}
    return {lora.without_adapters(name): t for name, t in whole.items() if ".lora_" not in name}


def _write_policy(work: Path, policy: Policy) -> None:
    if policy.lora_config is None:
        policy.loaded.save(work / _POLICY)
    else:
        lora.save_adapter(work / _ADAPTER, policy.model, policy.lora_config, base=policy.loaded.name)
    if policy.value_head is not None:
        write_tensors(work / _HEAD, dict(policy.value_head.state_dict()))


def _read_policy(source: Path, policy: Policy, model: ModelConfig) -> None:
    if policy.lora_config is None:
        stored = _stored_weights(source, policy, model)
        _copy_all(policy.model.named_parameters(), dict(stored.model.named_parameters()), source)
        _copy_all(policy.model.named_buffers(), dict(stored.model.named_buffers()), source)
    else:
        _read_adapters(source, policy)
    _read_head(source, policy)


def _stored_weights(source: Path, policy: Policy, model: ModelConfig) -> LoadedModel:
    """Return the model in the checkpoint, read by HF itself: it may have renamed weights when it wrote them."""
    dtype = str(policy.loaded.dtype).removeprefix("torch.")
    return load_model(model.model_copy(update={"local_path": str(source / _POLICY), "device": "cpu", "dtype": dtype}))


def _read_adapters(source: Path, policy: Policy) -> None:
    _copy_all(lora.peft_weights(policy.model), read_tensors(source / _ADAPTER / lora.ADAPTER_FILE), source)


def _read_head(source: Path, policy: Policy) -> None:
    if policy.value_head is not None:
        _copy_all(policy.value_head.named_parameters(), read_tensors(source / _HEAD), source)


@torch.no_grad()
def _copy_all(targets: Iterable[tuple[str, Tensor]], stored: Mapping[str, Tensor], source: Path) -> None:
    """Copy every stored tensor into its namesake. Raises CheckpointError before the first copy where names or shapes
    differ."""
    target_of = dict(targets)
    expected, found = ({name: tensor.shape for name, tensor in side.items()} for side in (target_of, stored))
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if odd:
        raise CheckpointError(
            f"checkpoint {source} is of another model: {odd[0]} is {tuple(found.get(odd[0], ())) or 'absent'} there; "
            "build the learner from the config.yaml beside it"
        )
    for name, tensor in target_of.items():
        tensor.copy_(stored[name])


def _state_of(learner: Learner, extra: Mapping[str, Any], save_optimizer: bool) -> CheckpointState:
    policy, optimizer = learner.policy, learner.optimizer
    saved = optimizer is not None and save_optimizer
    return CheckpointState(
        version=learner.version,
        updates=learner.updates,
        phase=learner.phase if saved else None,
        optimizer_steps=optimizer.steps if optimizer is not None and saved else 0,
        reference_frozen=learner.reference_frozen,
        kl_coef=learner.kl.value,
        entropy_coef=None if learner.entropy is None else learner.entropy.value,
        critic=policy.value_head is not None,
        adapters=policy.lora_config is not None,
        base_fingerprint=_fingerprint(policy) if policy.lora_config is not None else None,
        random=_random_states(),
        extra=dict(extra),
    )


def _check_fit(source: Path, state: CheckpointState, policy: Policy) -> None:
    for stored, expected, words in (
        (state.critic, policy.value_head is not None, "a value head (training.adv_estimator)"),
        (state.adapters, policy.lora_config is not None, "adapters (model.use_lora)"),
    ):
        if stored != expected:
            raise CheckpointError(
                f"checkpoint {source} was made {'with' if stored else 'without'} {words}, this policy is "
                f"{'with' if expected else 'without'}; build it from the config.yaml beside it"
            )
    if state.adapters and state.base_fingerprint != _fingerprint(policy):
        raise CheckpointError(
            f"the adapters in {source} belong to another base model; load the same model.model_name or local_path, and "
            "for a built-in model the same seed"
        )


def _fingerprint(policy: Policy) -> str:
    """Return a short name of the frozen weights: their names, shapes and first numbers."""
    digest = hashlib.sha256()
    for name, parameter in policy.model.named_parameters():
        if ".lora_" not in name:
            head = parameter.detach().flatten()[:32].float().cpu().tolist()
            digest.update(f"{name}{tuple(parameter.shape)}{head}".encode())
    return digest.hexdigest()[:32]


def _restore_optimizer(source: Path, state: CheckpointState, learner: Learner) -> None:
    if learner.optimizer is not None:
        learner.optimizer.detach()
    learner.optimizer, learner.phase = None, None
    if state.phase is not None:
        optimizer: Optimizer = learner.use_optimizer(state.phase)
        optimizer.load_state(read_tensors(source / _OPTIMIZER), state.optimizer_steps)


def _random_states() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, numbers, spare = random.getstate()
    return {
        "torch": tensor_text(torch.get_rng_state()),
        "cuda": [tensor_text(s) for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "numpy": [kind, [int(k) for k in keys], position, has_gauss, gauss],
        "python": [version, list(numbers), spare],
    }


def _set_random(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(text_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([text_tensor(s) for s in state["cuda"]])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    version, numbers, spare = state["python"]
    random.setstate((version, tuple(numbers), spare))
