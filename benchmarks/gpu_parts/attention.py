"""(d) Attention over sequences of different lengths: padded rows with SDPA, and packed ones with PyTorch's varlen."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_parts.setting import Row, Setting

NOTE = (
    "One causal layer, forward and backward, over 16 sequences, the shapes of Qwen3-8B (32 heads of 128, 8 of keys). "
    "Tokens are those of the sequences, padding not counted. `padded` is what the learner does: rows padded to the "
    "longest, no mask; `padded, mask` what the embedded engine does; `varlen` packs the rows end to end "
    "(`torch.nn.attention.varlen`). The largest difference is to `one by one`, each sequence alone."
)
CASES = {"alike": 0.8, "mixed": 0.25}
"""Length of the shortest sequence, as a share of the longest."""
REPEAT = 5
Variant = Callable[[Tensor, Tensor, Tensor, list[int]], Tensor]
"""(queries, keys, values: each [tokens, heads, width], lengths) -> [tokens, heads, width]."""


def measure(name: str, setting: Setting) -> list[Row]:
    """One row per way."""
    (count, longest), (heads, kv_heads, width) = setting.pick(((16, 4096), (32, 8, 128)), ((3, 16), (4, 2, 8)))
    torch.manual_seed(0)
    shortest = CASES[name] * longest
    lengths = [round(shortest + i * (longest - shortest) / (count - 1)) for i in range(count)]
    dtype = torch.bfloat16 if setting.on_gpu else torch.float32
    shapes = [(sum(lengths), n, width) for n in (heads, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, device=setting.device, dtype=dtype, requires_grad=True) for shape in shapes]
    expected = one_by_one(*inputs, lengths).detach()
    rows = []
    for way, variant in VARIANTS.items():
        row: Row = {"lengths": f"{name}, {lengths[0]} to {lengths[-1]}", "way": way}
        try:
            gap = float((variant(*inputs, lengths).detach() - expected).abs().max())
        except (ImportError, NotImplementedError, RuntimeError) as error:
            rows.append(row | {"note": f"not here: {type(error).__name__}: {str(error).splitlines()[0][:60]}"})
            continue
        setting.forget_peak()
        seconds = min(setting.seconds(lambda v=variant: _there_and_back(v, inputs, lengths)) for _ in range(REPEAT))
        tokens = {"ms": 1000 * seconds, "tokens/s": sum(lengths) / seconds, "peak GiB": setting.peak}
        rows.append(row | tokens | {"largest difference": gap})
    return rows


def _there_and_back(variant: Variant, inputs: list[Tensor], lengths: list[int]) -> None:
    variant(*inputs, lengths).sum().backward()
    for tensor in inputs:
        tensor.grad = None


def one_by_one(queries: Tensor, keys: Tensor, values: Tensor, lengths: list[int]) -> Tensor:
    parts = [_sdpa(*(t[None] for t in triple), causal=True)[0] for triple in _cut(queries, keys, values, lengths)]
    return torch.cat(parts)


def padded(queries: Tensor, keys: Tensor, values: Tensor, lengths: list[int]) -> Tensor:
    rows = [_pad(tensor, lengths) for tensor in (queries, keys, values)]
    return _unpad(_sdpa(*rows, causal=True), lengths)


def padded_with_mask(queries: Tensor, keys: Tensor, values: Tensor, lengths: list[int]) -> Tensor:
    rows = [_pad(tensor, lengths) for tensor in (queries, keys, values)]
    places = torch.arange(max(lengths), device=queries.device)
    seen = (places[None] <= places[:, None]) & (places < torch.tensor(lengths, device=places.device)[:, None])[:, None]
    # with a mask HuggingFace repeats the keys for every head, since kernels with a mask know no groups
    groups = queries.shape[1] // keys.shape[1]
    rows[1:] = [tensor.repeat_interleave(groups, dim=2) for tensor in rows[1:]]
    # a row of padding sees itself, since softmax over nothing is no number
    seen = seen | torch.eye(len(places), dtype=torch.bool, device=places.device)
    return _unpad(_sdpa(*rows, mask=seen[:, None]), lengths)


def varlen(queries: Tensor, keys: Tensor, values: Tensor, lengths: list[int]) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=queries.device)
    longest = max(lengths)
    out = varlen_attn(queries, keys, values, starts, starts, longest, longest, window_size=(-1, 0), enable_gqa=True)
    assert isinstance(out, Tensor)
    return out


VARIANTS: dict[str, Variant] = {
    "one by one": one_by_one,
    "padded": padded,
    "padded, mask": padded_with_mask,
    "varlen": varlen,
}


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    """Each [rows, tokens, heads, width]."""
    turned = [tensor.transpose(1, 2) for tensor in (queries, keys, values)]
    return scaled_dot_product_attention(*turned, attn_mask=mask, is_causal=causal, enable_gqa=True).transpose(1, 2)


def _cut(queries: Tensor, keys: Tensor, values: Tensor, lengths: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(zip(queries.split(lengths), keys.split(lengths), values.split(lengths), strict=True))


def _pad(tensor: Tensor, lengths: list[int]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensor.split(lengths)), batch_first=True)


def _unpad(rows: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
