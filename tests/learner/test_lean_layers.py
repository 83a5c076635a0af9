"""Layers that keep less: the same outputs to the last digit, the same gradients, and how much less."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.activations import ACT2FN

from tests.inference.models.picture_families import FAMILIES as PICTURE_FAMILIES
from tests.inference.models.picture_families import saved
from tests.inference.windowed import FAMILIES, windowed_model
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.proving import plain_words
from uirl.learner.lean_layers import keep_less

GATES_ALONE = {"gemma2", "gemma3_text", "gemma4_text", "vaultgemma"}
"""Their norms multiply by more than the weight."""


def states(loaded: LoadedModel) -> Tensor:
    ids = torch.tensor(plain_words(loaded, 20)).reshape(2, 10)
    return loaded.model(input_ids=ids, use_cache=False).logits.float()  # type: ignore[no-any-return]


def with_gradients(loaded: LoadedModel) -> tuple[Tensor, dict[str, Tensor]]:
    loaded.model.zero_grad()
    found = states(loaded)
    (found * torch.sin(torch.arange(found.numel()).view_as(found))).sum().backward()
    return found.detach(), {name: p.grad.clone() for name, p in loaded.model.named_parameters() if p.grad is not None}


def changed(loaded: LoadedModel) -> set[str]:
    """What `keep_less` changes, each part by the first word of its kind."""
    before = {name: type(module) for name, module in loaded.model.named_modules()}
    count = keep_less(loaded.model)
    found = [name for name, module in loaded.model.named_modules() if type(module) is not before[name]]
    assert len(found) == count
    return {"norm" if "norm" in before[name].__name__.lower() else "gate" for name in found}


def assert_alike(theirs: dict[str, Tensor], ours: dict[str, Tensor], allowed: float) -> None:
    assert theirs.keys() == ours.keys()
    size = torch.cat([gradient.flatten().float() for gradient in theirs.values()]).norm()
    for name, gradient in theirs.items():
        assert (gradient - ours[name]).float().norm() <= allowed * size, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_texts_computes_what_it_did(family: str) -> None:
    loaded = windowed_model(family)
    theirs, gradients = with_gradients(loaded)
    parts = changed(loaded)
    ours, own = with_gradients(loaded)
    assert torch.equal(ours, theirs)
    assert_alike(gradients, own, 1e-6)
    if family in GATES_ALONE:
        assert parts == {"gate"}


@pytest.mark.parametrize("family", PICTURE_FAMILIES)
def test_a_family_of_pictures_computes_what_it_did(family: str, tmp_path: Path) -> None:
    loaded = saved(family, tmp_path)
    kinds = {name: tensor.dtype for name, tensor in loaded.model.to(torch.bfloat16).state_dict().items()}
    changed(loaded)
    assert {name: tensor.dtype for name, tensor in loaded.model.state_dict().items()} == kinds
    loaded = saved(family, tmp_path / "again")
    theirs, gradients = with_gradients(loaded)
    changed(loaded)
    ours, own = with_gradients(loaded)
    assert torch.equal(ours, theirs)
    assert_alike(gradients, own, 1e-6)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "gemma3_text", "olmo3"])
def test_in_sixteen_bits_outputs_are_the_same_digits(family: str) -> None:
    loaded = windowed_model(family, dtype=torch.bfloat16)
    theirs, gradients = with_gradients(loaded)
    assert changed(loaded)
    ours, own = with_gradients(loaded)
    assert torch.equal(ours, theirs)
    assert_alike(gradients, own, 0.02)


def bytes_kept(loaded: LoadedModel) -> int:
    """Of what the backward pass needs, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in loaded.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = loaded.model.get_decoder()(input_ids=torch.zeros(8, 64, dtype=torch.long), use_cache=False)  # type: ignore[operator]
    assert found is not None
    return sum(size for pointer, size in kept.items() if pointer not in weights)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 0.85), (torch.bfloat16, 0.8)])
def test_less_is_kept(dtype: torch.dtype, most: float) -> None:
    loaded = windowed_model("qwen2", dtype=dtype)
    before = bytes_kept(loaded)
    assert changed(loaded) == {"norm", "gate"}
    assert bytes_kept(loaded) <= most * before


def test_adapters_learn_in_a_layer_that_keeps_less() -> None:
    loaded = windowed_model("qwen2")
    targets = ["gate_proj", "up_proj", "down_proj", "q_proj"]
    get_peft_model(loaded.model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False))  # type: ignore[arg-type]
    theirs, gradients = with_gradients(loaded)
    assert len(gradients) == 2 * 4 * 4  # of each adapter two matrices, and nothing else
    assert changed(loaded) == {"norm", "gate"}
    ours, own = with_gradients(loaded)
    assert torch.equal(ours, theirs)
    assert_alike(gradients, own, 1e-6)


def test_a_copy_and_what_is_saved_are_as_before() -> None:
    loaded = windowed_model("qwen2")
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    names = [type(module).__name__ for module in loaded.model.modules()]
    changed(loaded)
    assert [type(module).__name__ for module in loaded.model.modules()] == names
    copied = copy.deepcopy(loaded.model)
    norm = copied.get_decoder().norm  # type: ignore[operator]
    assert norm.weight is not loaded.model.get_decoder().norm.weight  # type: ignore[operator]
    assert copied.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in copied.state_dict().items())
    assert keep_less(copied) == 0  # they do already


class Norm(nn.Module):
    """Of the usual form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * x.to(kind)


class Wide(Norm):
    """Rounds after the product (T5)."""

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * x).to(kind)


class GatedNorm(Norm):
    """With an argument more (Mamba 2)."""

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x if gate is None else x * gate)


class MLP(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 8)
        self.act_fn = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Clamped(MLP):
    """What it does to small numbers is the usual (DeepSeek-V4)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=10)) * self.up_proj(x))  # type: ignore[no-any-return]


class Inherited(MLP):
    """Without a forward of its own."""


SILU = nn.SiLU()


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (Norm(), True),
        (Wide(), False),
        (GatedNorm(), False),
        (nn.RMSNorm(8), False),
        (MLP(SILU), True),
        (MLP(nn.GELU(approximate="tanh")), True),
        (MLP(ACT2FN["gelu_pytorch_tanh"]), True),
        (MLP(ACT2FN["xielu"]), False),  # has weights, whose gradients would be lost
        (MLP(nn.RReLU()), False),  # draws
        (MLP(nn.ReLU()), False),  # keeps its output and not its input
        (Inherited(SILU), True),
        (Clamped(SILU), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer_is_known_by_what_its_forward_says(layer: nn.Module, known: bool) -> None:
    kind, drawn = type(layer), torch.get_rng_state()
    x = torch.randn(2, 3, 8)
    torch.set_rng_state(drawn)
    expected = layer(x)
    torch.set_rng_state(drawn)
    assert keep_less(nn.Sequential(layer)) == known
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (type(layer) is not kind) == known
    assert torch.equal(layer(x), expected)


def test_a_pickle_keeps_less_too() -> None:
    layers = nn.Sequential(Norm(), MLP(SILU))
    keep_less(layers)
    again = pickle.loads(pickle.dumps(layers))
    assert [type(layer) for layer in again] == [type(layer) for layer in layers]
    assert torch.equal(again(torch.ones(8)), layers(torch.ones(8)))


@pytest.mark.parametrize("layer", [Norm(), MLP(SILU)], ids=["norm", "gate"])
def test_gradients_of_gradients_are_refused(layer: nn.Module) -> None:
    keep_less(nn.Sequential(layer))
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("of_layer", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_input", [torch.float64, torch.float32, torch.bfloat16])
def test_a_norm_takes_the_precisions_it_took(of_layer: torch.dtype, of_input: torch.dtype) -> None:
    found = []
    for lean in (False, True):
        layer = Norm().to(of_layer)
        assert keep_less(nn.Sequential(layer)) if lean else True
        x = torch.linspace(-1, 2, 24).view(3, 8).to(of_input).requires_grad_()
        output = layer(x)
        found.append((output, *torch.autograd.grad((output * torch.linspace(0, 1, 8)).sum(), [x, layer.weight])))
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - theirs).abs().max() <= (0.02 if of_input == torch.bfloat16 else 1e-6)
    assert torch.equal(found[0][0], found[1][0])
