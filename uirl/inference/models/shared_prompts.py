"""One prompt, read once, with many replies behind it: a packed row, its mask, and the proof that a model takes it.

A packed row is `[prompt | reply | reply | ... | prompt | reply | ...]`. Every token stands at the position it has in
its own sequence; a reply sees its prompt and itself. All layers but attention work on each token alone, so a prompt
costs what one prompt costs, whatever the number of its replies.

Paper: Prefix Grouper (2506.05433).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from uirl.errors import AlignmentError, ContractError
from uirl.images import Screenshot
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences
from uirl.inference.models.picture_proof import SIZES, TOLERANCE, probe
from uirl.inference.models.probing import evaluating, plain_ids

_LOG = logging.getLogger(__name__)
QUERIES = 1024
"""Tokens of a reply whose mask is made at once: with 8000 keys it takes 32 MB of float32."""
PADDING_SHARE, PADDING_TOKENS = 0.1, 256
"""Replies of unlike lengths are read side by side up to this much padding, in attention alone."""


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt and its replies in a packed row."""

    tokens: int
    """Of the prompt."""
    replies: tuple[int, ...]
    """Tokens of each reply, one behind the other. The longest first."""

    @property
    def length(self) -> int:
        """Tokens of prompt and replies."""
        return self.tokens + sum(self.replies)


@dataclass(frozen=True, slots=True)
class _Block:
    """Replies to one prompt that attention reads side by side."""

    prompt: slice
    index: Tensor
    """int64 [replies, longest]: where each token stands in the row; behind the end of a reply, its first one again."""
    kept: Tensor
    """int64 [tokens]: which of the flattened `index` are no padding."""


class SharedPromptMask(Tensor):
    """The mask [1, 1, n, n] of a packed row of n tokens. It has no numbers: `scaled_dot_product_attention` computes
    what it stands for. Whatever else reads it gets a ContractError."""

    spans: list[slice]
    """Of the prompts."""
    blocks: list[list[_Block]]
    """Of each prompt."""

    @classmethod
    def of(cls, shared: Sequence[SharedPrompt], device: torch.device) -> SharedPromptMask:
        """Return the mask of a row of `shared`, one behind the other."""
        n = sum(one.length for one in shared)
        mask = torch.zeros(1, dtype=torch.bool, device=device).expand(1, 1, n, n).as_subclass(cls)
        mask.spans, mask.blocks = [], []
        start = 0
        for one in shared:
            prompt = slice(start, start + one.tokens)
            mask.spans.append(prompt)
            mask.blocks.append([_block(prompt, *block, device) for block in _alike(prompt.stop, one.replies)])
            start += one.length
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is scaled_dot_product_attention:
                return _attend(*args, **kwargs)
            result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            name = getattr(func, "__name__", func)
            raise ContractError(f"{name} read the mask of a packed row; expected scaled_dot_product_attention alone")
        return result


def _alike(start: int, lengths: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return (where it starts, lengths) of runs of replies of like length; `lengths` fall."""
    runs: list[tuple[int, list[int]]] = []
    padding = 0
    for length in lengths:
        if runs:
            padding += runs[-1][1][0] - length
        if not runs or padding > max(PADDING_TOKENS, PADDING_SHARE * len(runs[-1][1]) * runs[-1][1][0]):
            runs.append((start, []))
            padding = 0
        runs[-1][1].append(length)
        start += length
    return runs


def _block(prompt: slice, start: int, lengths: Sequence[int], device: torch.device) -> _Block:
    sizes = torch.tensor(lengths)[:, None]
    begins = start + torch.cat([torch.zeros(1, dtype=torch.long), sizes[:-1, 0].cumsum(0)])[:, None]
    steps = torch.arange(lengths[0])[None]
    there = steps < sizes
    index = torch.where(there, begins + steps, begins)
    return _Block(prompt, index.to(device), there.flatten().nonzero()[:, 0].to(device))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: SharedPromptMask,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention [1, heads, n, d] of a packed row; keys and values may have fewer heads with `enable_gqa`."""
    if is_causal:
        raise ContractError("a packed row has a mask of its own; expected is_causal=False")
    attend = partial(scaled_dot_product_attention, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa)
    parts = []
    for prompt, blocks in zip(attn_mask.spans, attn_mask.blocks, strict=True):
        alone = [tensor[:, :, prompt] for tensor in (query, key, value)]
        parts.append(attend(*alone, is_causal=True))
        parts += [_replies(block, query, key, value, attend) for block in blocks]
    return torch.cat(parts, dim=2)


def _replies(block: _Block, query: Tensor, key: Tensor, value: Tensor, attend: Callable[..., Tensor]) -> Tensor:
    """Return attention [1, heads, tokens, d] of the replies of a block."""
    rows, longest = block.index.shape
    prompt = block.prompt.stop - block.prompt.start

    def own(tensor: Tensor) -> Tensor:
        picked = tensor[0].index_select(1, block.index.flatten())
        return picked.unflatten(1, (rows, longest)).transpose(0, 1)

    def with_prompt(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :, block.prompt].expand(rows, -1, -1, -1), own(tensor)], dim=2)

    queries, keys, values = own(query), with_prompt(key), with_prompt(value)
    outputs = []
    for start in range(0, longest, QUERIES):
        end = min(start + QUERIES, longest)
        # the token at `start` sees the prompt, what is before it, and itself
        seen = torch.ones(end - start, prompt + end, dtype=torch.bool, device=query.device).tril_(prompt + start)
        heads = [queries[:, :, start:end], keys[:, :, : prompt + end], values[:, :, : prompt + end]]
        outputs.append(attend(*heads, attn_mask=seen))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(0, 1).flatten(1, 2).index_select(1, block.kept)[None]


# -- the proof ---------------------------------------------------------------------------------------------------------


def prompts_can_be_shared(loaded: LoadedModel, longest: int) -> bool:
    """Return whether `loaded` reads packed rows of sequences of at most `longest` tokens as it reads them one by one.
    Tried once per model; why not is logged once."""
    if loaded.shares_prompts is None:
        reason = _reason_against(loaded)
        loaded.shares_prompts = reason is None
        if reason is not None:
            _LOG.warning("updates of %s read a prompt once for each of its replies: %s", loaded.name, reason)
    return loaded.shares_prompts and _fits_windows(loaded, longest)


def packed_masks(loaded: LoadedModel, shared: Sequence[SharedPrompt]) -> Any:
    """Return what a model takes as the attention mask of a packed row: one, or one by kind of layer."""
    mask = SharedPromptMask.of(shared, loaded.device)
    kinds = list(loaded.attention_spans().sizes)
    return mask if len(kinds) == 1 else dict.fromkeys(kinds, mask)


def _fits_windows(loaded: LoadedModel, longest: int) -> bool:
    """Return whether every layer sees the whole of `longest` tokens."""
    return all(size is None or size >= longest for size in loaded.attention_spans().sizes.values())


def _reason_against(loaded: LoadedModel) -> str | None:
    """Return why a model does not read packed rows; None: it does."""
    try:
        spans = loaded.attention_spans()
        if spans.additive is not None:
            return "attn_implementation is 'eager', and it takes 'sdpa'"
        gap = _gap(loaded)
    except (ContractError, AlignmentError, RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    if not gap <= TOLERANCE.get(loaded.dtype, 1e-3):
        return f"hidden states would differ by {gap:.2g} of their size, from tokens that see each other in another way"
    return None


@torch.no_grad()
def _gap(loaded: LoadedModel) -> float:
    """Return the difference of the hidden states of a packed row from those of its sequences, in parts of their
    size."""
    words = list(itertools.islice(itertools.cycle(plain_ids(loaded)), 12))
    prompt, first, second, third = words[:4], words[4:8], words[6:9], words[9:10]
    pictures: list[list[Screenshot]] = [[], [], []]
    if loaded.vision is not None:
        shots = [probe(size) for size in SIZES]
        shown, later = (image.expansion.ids.tolist() for image in loaded.vision.encode(shots))
        prompt = [*prompt[:2], *shown, *prompt[2:]]
        first = [*first[:2], *later, *first[2:]]
        pictures = [shots, shots[:1], shots[:1]]
    replies = sorted((first, second, third), key=len, reverse=True)
    sequences = [prompt + reply for reply in replies]
    if not _fits_windows(loaded, len(sequences[0])):
        raise ContractError(f"a layer sees fewer than the {len(sequences[0])} tokens that are tried")
    with evaluating(loaded.model):
        ids, positions = pad_sequences(loaded, sequences, pictures)
        theirs = hidden_states(loaded, ids, positions, [shot for row in pictures for shot in row])
        n = len(prompt)
        ends = [len(sequence) for sequence in sequences]

        def packed(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[..., 0, :n], *(tensor[..., i, n:end] for i, end in enumerate(ends))], dim=-1)

        masks = packed_masks(loaded, [SharedPrompt(n, tuple(end - n for end in ends))])
        row = packed(ids)[None], packed(positions)[:, None]
        ours = hidden_states(loaded, *row, pictures[0], attention_mask=masks)[0]
    theirs = torch.cat([theirs[0, :n], *(theirs[i, n:end] for i, end in enumerate(ends))])
    return float(((ours - theirs).float().norm(dim=-1) / theirs.float().norm(dim=-1).clamp(min=1e-30)).mean())
