"""How many bytes a model takes at work: weights and their optimiser, activations, logits, caches. Arithmetic alone.

One set of formulas for the learner of this package and for verl's. The numbers of a model come from its modules on
the meta device, which have shapes and no memory.

Sources. A layer keeps for its backward pass what its linear layers return and, once, what a group of them reads
(queries, keys and values read one tensor), which a test counts in PyTorch; with gradient checkpointing it keeps its
input (Korthikanti et al. 2022, 2205.05198). States: Rajbhandari et al. 2019 (ZeRO, 1910.02054).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30
BF16, FP32 = 2, 4
FREE = 0.1
"""Share of a GPU and of a host that stays free, for fragments, communication buffers and what is not counted."""
WORK = 4
"""Tensors as large as the largest of a layer that its backward pass has at once: gradients, and what it computes
again."""
PICTURE = (1280, 720)
"""Width and height of a screenshot where nobody says otherwise."""


# what lies where, and when


@dataclass(frozen=True, slots=True)
class Moment:
    """What lies on a GPU or a host at one moment, in bytes."""

    where: str
    """'GPU' or 'host'."""
    name: str
    parts: Mapping[str, float]
    limit: float | None
    """Bytes that may be used; None: unknown."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def excess(self) -> float:
        """Bytes above the limit; 0: it fits."""
        return 0.0 if self.limit is None else max(0.0, self.total - self.limit)

    @property
    def problem(self) -> str:
        """By how much it does not fit, in words."""
        return f"{self.name}: {gib(self.total)} GiB of a {self.where}, and {gib(self.limit or 0)} may be used"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" of {gib(self.limit)}"
        lines = [f"{self.where}, {self.name}: {gib(self.total)}{limit} GiB"]
        return "\n".join(lines + [f"  {gib(size):>8}  {name}" for name, size in self.parts.items() if size])


def gib(size: float) -> str:
    """Return bytes as GiB, in digits that tell small ones from nothing."""
    amount = size / GIB
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.1f}" if amount >= 1 else f"{amount:.3f}"


# the numbers of a model


@dataclass(frozen=True, slots=True)
class Tower:
    """Layers one behind the other, all of them like the largest."""

    layers: int
    width: int
    parameters: int
    """Of one layer."""
    kept: int
    """Numbers per token that the backward pass of one layer needs, in the precision of the model."""
    wide: int
    """Numbers per token that it needs in float32 beside: of norms that are not `uirl.learner.lean_layers`."""
    widest: int
    """Numbers per token in the largest tensor of a layer."""
    adapted: int
    """Numbers per token that all linear layers of a layer read and return: parameters of adapters of rank 1."""


@dataclass(frozen=True, slots=True)
class Vision:
    """The part that sees."""

    tower: Tower
    around: int
    """Numbers per token that linear layers between the tower and the text keep."""
    patch: int
    """Side of a patch in pixels."""
    merge: int
    """`merge` x `merge` patches become one token."""
    frames: int
    """How often a still picture stands in its patches (Qwen-VL: 2)."""

    @property
    def patch_numbers(self) -> int:
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model its memory depends on."""

    parameters: int
    """All of them, the vision part included."""
    text: Tower
    heads: int
    """Of queries, in a layer."""
    kv_heads: int
    """Of keys, and as many of values."""
    head: int
    """Numbers of one head."""
    vocabulary: int
    tied: bool
    """Whether embedding and output layer are one matrix."""
    vision: Vision | None = None

    @property
    def head_parameters(self) -> int:
        """Return the number of parameters of the output layer."""
        return self.vocabulary * self.text.width


def attention_heads(config: Any) -> tuple[int, int]:
    """Return the number of heads (of queries, of keys and values) in a layer of the text part that a HuggingFace config
    describes."""
    text = config.get_text_config()
    return text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def shape_of_config(config: Any) -> Shape:
    """Return the shape of the model that a HuggingFace config describes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind: Any = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        return shape_of(kind.from_config(config))


def shape_of(model: Any) -> Shape:
    """Return the shape of a HuggingFace model, on the meta device or any other, without adapters."""
    text, seen = model.config.get_text_config(), getattr(model.config, "vision_config", None)
    heads, kv_heads = attention_heads(model.config)
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    decoder, out = model.get_decoder(), model.get_output_embeddings()
    inside, eyes = _layers_of(model, decoder)
    vision = None
    if seen is not None and eyes is not None:
        tower = _tower(eyes, (0, 0), 1)
        layers = {id(part) for part in (*decoder.modules(), *eyes.modules(), out)}
        others = [sizes for _, part, sizes in _linears(model) if id(part) not in layers]
        patch = getattr(seen, "patch_size", 14)
        vision = Vision(
            tower,
            around=sum(map(sum, others)),
            patch=patch if isinstance(patch, int) else patch[0],
            merge=getattr(seen, "spatial_merge_size", 1),
            frames=getattr(seen, "temporal_patch_size", 1),
        )
    chosen = getattr(text, "num_experts_per_tok", None) or getattr(text, "moe_topk", None) or 1
    return Shape(
        parameters=_numbers(model),
        text=_tower(inside, (heads * head, kv_heads * head), chosen),
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        vocabulary=out.weight.shape[0],
        tied=out.weight is model.get_input_embeddings().weight,
        vision=vision,
    )


def _layers_of(model: Any, decoder: Any) -> tuple[Any, Any | None]:
    """Return the layers of the text part and of the tower that sees; None: there is none."""
    from torch.nn import ModuleList

    inside = {id(module) for module in decoder.modules()}
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, ModuleList)]
    text = [found for found in lists if id(found[1]) in inside]
    others = [module for _, module in lists if id(module) not in inside]
    outermost = min(text, key=lambda found: (found[0].count("."), -len(found[1])))
    return outermost[1], max(others, key=len, default=None)


def _linears(module: Any) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """Yield (path, linear layer, (numbers it reads, numbers it returns))."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    for path, part in module.named_modules():
        if isinstance(part, Linear):
            yield path, part, (part.in_features, part.out_features)
        elif isinstance(part, Conv1D):
            yield path, part, (part.weight.shape[0], part.nf)


def _tower(layers: Any, attention: tuple[int, int], chosen: int) -> Tower:
    """Return the numbers of the largest of `layers`. `attention`: numbers in (queries, keys). `chosen`: experts that a
    token goes through."""
    from uirl.learner.lean_layers import FORMS

    lean = tuple(FORMS.values())
    layer, parameters = max(((each, _numbers(each)) for each in layers), key=lambda found: found[1])
    groups: dict[str, list[tuple[int, int]]] = {}
    for path, _, sizes in _linears(layer):
        groups.setdefault(path.rpartition(".")[0], []).append(sizes)
    kept, width = 0, next(iter(groups.values()))[0][0]
    for parent, pairs in groups.items():
        first, (read, _) = pairs[:-1], pairs[-1]
        kept += sum({reads for reads, _ in first}) + read + sum(returned for _, returned in pairs)
        module = layer.get_submodule(parent)
        opens = any(hasattr(module, name) for name in ("act_fn", "activation_fn", "act"))
        if opens and not isinstance(module, lean) and sum(returned for _, returned in first) == 2 * read:
            kept += read  # act(gate), which the product with `up` keeps
        elif not opens and len(pairs) == 2 and first[0][1] > read:
            kept += (first[0][1] + read) // 2  # queries and keys that were rotated; values hold all three as they came
    experts = [chosen * size for p in layer.parameters() if p.ndim == 3 for size in p.shape[1:]]
    every = [size for pairs in groups.values() for pair in pairs for size in pair]
    wide, outer = 0, 0
    for path, part in layer.named_modules():
        if "norm" not in type(part).__name__.lower() or getattr(part, "weight", None) is None:
            continue
        numbers, leaf = part.weight.numel(), path.rpartition(".")[2]
        if leaf.startswith(("q_", "k_")):
            numbers = attention[leaf.startswith("k_")] or width
            kept += numbers
        else:
            outer += numbers == width
        wide += numbers if "RMS" in type(part).__name__ and not isinstance(part, lean) else 0
    # two of them read what the two halves of a layer have added up
    kept += sum(experts) + max(0, outer - 2) * width
    return Tower(len(layers), width, parameters, kept, wide, max(every + experts), sum(every))


def _numbers(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# what they take


def activations(tower: Tower, tokens: float, *, itemsize: int, recompute: bool) -> tuple[float, float]:
    """Return the bytes (kept over the whole forward pass, of the layer that is gone through backward) of so many tokens
    in a precision of `itemsize` bytes. With gradient checkpointing (`recompute`) the input of every layer is kept, and
    one layer at a time is computed again."""
    layer = tokens * (itemsize * tower.kept + FP32 * tower.wide)
    at_work = tokens * itemsize * WORK * tower.widest
    if not recompute:
        return tower.layers * layer, at_work
    return tokens * tower.layers * itemsize * tower.width, layer + at_work


def kv_cache(shape: Shape, tokens: float, split: int = 1, itemsize: int = BF16) -> float:
    """Return the bytes of keys and values of `tokens` tokens, on each of `split` GPUs. Where there are more GPUs than
    heads, each has a copy of one."""
    return tokens * 2 * shape.text.layers * max(shape.kv_heads / split, 1) * shape.head * itemsize


def patches_of(vision: Vision, width: int, height: int, max_pixels: float = math.inf) -> int:
    """Return the number of patches of a picture, resized to whole cells of `patch x merge` pixels and at most
    `max_pixels`, as Qwen-VL's processor does (`smart_resize`)."""
    cell = vision.patch * vision.merge
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    if rows * columns * cell**2 > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        rows = max(1, math.floor(height / shrink / cell))
        columns = max(1, math.floor(width / shrink / cell))
    return rows * columns * vision.merge**2


def rows_of_episode(turns: int, max_images: int | None, keep_images: int | None = None) -> list[int]:
    """Return the number of pictures in each training sequence of an episode that sees one new picture per turn. Of more
    than `max_images` the newest `keep_images` stay (None: `max_images`), and every drop begins a sequence."""
    rows: list[int] = []
    kept = 0
    for _ in range(turns):
        kept += 1
        if max_images is not None and kept > max_images:
            kept = keep_images or max_images
            rows.append(kept)
        elif rows:
            rows[-1] += 1
        else:
            rows.append(1)
    return rows
