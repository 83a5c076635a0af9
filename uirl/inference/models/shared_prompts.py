"""One prompt, read once, with many replies behind it: a packed row, its mask, and the proof that a model takes it.

A packed row is `[prompt | reply | reply | ... | prompt | reply | ...]`. Every token stands at the position it has in
its own sequence; a reply sees its prompt and itself. All layers but attention work on each token alone, so a prompt
costs what one prompt costs, whatever the number of its replies. With a prompt of no tokens the replies are whole
sequences, and the row is what they are without padding.

Paper: Prefix Grouper (2506.05433).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from uirl.errors import AlignmentError, ContractError
from uirl.images import Screenshot
from uirl.inference.models.attention import rope_limit
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences
from uirl.inference.models.proving import RAISED, SIZES, difference, evaluating, plain_words, probe, tolerance
from uirl.runtime.memory import is_out_of_memory

PADDING_SHARE = 0.1
"""Of the tokens of a run; with less, sequences of unlike lengths would be more runs."""
PADDING_TOKENS = 256
"""What a run more costs anyway, in tokens."""


def runs_of_like_length(lengths: Sequence[int], budget: float = float("inf")) -> list[list[int]]:
    """Return `lengths`, which fall, in runs that are padded to their first: a run has at most `budget` tokens, and at
    most `PADDING_SHARE` of them is padding, or `PADDING_TOKENS` where that is more. A longer sequence is alone."""
    runs: list[list[int]] = []
    padding = 0
    for length in lengths:
        size = (len(runs[-1]) + 1) * runs[-1][0] if runs else 0
        padding += runs[-1][0] - length if runs else 0
        if not runs or size > budget or padding > max(PADDING_TOKENS, PADDING_SHARE * size):
            runs.append([])
            padding = 0
        runs[-1].append(length)
    return runs


_LOG = logging.getLogger(__name__)
SMALL = 0.2
"""The part of a wrong mask's difference that rounding may make. In bfloat16 it made .004 of .1 in two layers, .03 of .3
in 28, and pictures that are read in one direction where the model reads them in both made .07 of .1."""
QUERIES = 1024
"""Tokens of a reply whose mask is made at once: with 8000 keys it takes 32 MB of float32."""
_Heads = tuple[Tensor, ...]
"""Queries, keys and values, [1, heads, n, d] each."""


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """A prompt and its replies in a packed row."""

    tokens: int
    """Of the prompt; 0: its replies are whole sequences."""
    replies: tuple[int, ...]
    """Tokens of each reply, one behind the other. The longest first."""

    @property
    def length(self) -> int:
        """Tokens of prompt and replies."""
        return self.tokens + sum(self.replies)


@dataclass(frozen=True, slots=True)
class _Block:
    """Replies of like length to one prompt, which attention reads side by side."""

    rows: int
    longest: int
    index: Tensor | None
    """int64 [rows * longest]: where each token stands in the block; behind the end of a reply, its first one again.
    None: all are of one length."""
    kept: Tensor | None
    """int64 [tokens]: which of `index` are no padding."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> _Block:
        """Return the block of replies of `lengths`, which fall."""
        rows, longest = len(lengths), lengths[0]
        if lengths[-1] == longest:
            return cls(rows, longest, None, None)
        sizes = torch.tensor(lengths)[:, None]
        begins, steps = sizes.cumsum(0) - sizes, torch.arange(longest)[None]
        there = steps < sizes
        index = torch.where(there, begins + steps, begins).flatten()
        return cls(rows, longest, index.to(device), there.flatten().nonzero()[:, 0].to(device))

    def side_by_side(self, tensor: Tensor) -> Tensor:
        """Return [1, heads, tokens, d] as [rows, heads, longest, d]."""
        flat = tensor[0] if self.index is None else tensor[0].index_select(1, self.index)
        return flat.unflatten(1, (self.rows, self.longest)).transpose(0, 1)

    def in_a_row(self, tensor: Tensor) -> Tensor:
        """Return [rows, heads, longest, d] as [1, heads, tokens, d]."""
        flat = tensor.transpose(0, 1).flatten(1, 2)
        return (flat if self.kept is None else flat.index_select(1, self.kept))[None]


class SharedPromptMask(Tensor):
    """The mask [1, 1, n, n] of a packed row of n tokens. It has no numbers: `scaled_dot_product_attention` computes
    what it stands for. Whatever else reads it gets a ContractError."""

    sizes: list[int]
    """Tokens of each piece of the row: prompt, block, block, ..., prompt, ..."""
    blocks: list[list[_Block]]
    """Of each prompt."""
    repeats: int
    """How often each head of keys and values is there at least, one behind the other: HF repeats them for a mask."""

    @classmethod
    def of(cls, shared: Sequence[SharedPrompt], device: torch.device, repeats: int = 1) -> SharedPromptMask:
        """Return the mask of a row of `shared`, one behind the other."""
        n = sum(one.length for one in shared)
        mask = torch.zeros(1, dtype=torch.bool, device=device).expand(1, 1, n, n).as_subclass(cls)
        mask.sizes, mask.blocks, mask.repeats = [], [], repeats
        for one in shared:
            alike = runs_of_like_length(one.replies)  # side by side in attention alone
            mask.sizes += [one.tokens, *map(sum, alike)]
            mask.blocks.append([_Block.of(lengths, device) for lengths in alike])
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
    if attn_mask.repeats > 1 and key.shape[1] == query.shape[1]:
        # once each, and of memory of their own: what is kept for the backward pass is that much less
        key, value = (tensor[:, :: attn_mask.repeats].contiguous() for tensor in (key, value))
        enable_gqa = True
    attend = partial(scaled_dot_product_attention, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa)
    # cut once: the gradient of a part that is taken out of the row is as large as the row
    pieces = iter(zip(*(tensor.split(attn_mask.sizes, dim=2) for tensor in (query, key, value)), strict=True))
    parts = []
    for blocks in attn_mask.blocks:
        prompt = next(pieces)
        if prompt[0].shape[2]:
            parts.append(attend(*prompt, is_causal=True))
        parts += [_replies(block, prompt, next(pieces), attend) for block in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _replies(block: _Block, prompt: _Heads, replies: _Heads, attend: Callable[..., Tensor]) -> Tensor:
    """Return attention [1, heads, tokens, d] of the replies of a block to a prompt."""
    queries, *own = (block.side_by_side(tensor) for tensor in replies)
    before = prompt[1].shape[2]
    if not before:
        return block.in_a_row(attend(queries, *own, is_causal=True))
    shown = (tensor.expand(block.rows, -1, -1, -1) for tensor in prompt[1:])
    keys, values = (torch.cat(pair, dim=2) for pair in zip(shown, own, strict=True))
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and keys.is_cuda:  # under a mask there is no kernel with fewer heads, but one that keeps all scores
        keys, values = (tensor.repeat_interleave(groups, dim=1) for tensor in (keys, values))
    outputs = []
    for start in range(0, block.longest, QUERIES):
        end = min(start + QUERIES, block.longest)
        # the token at `start` sees the prompt, what is before it, and itself
        seen = torch.ones(end - start, before + end, dtype=torch.bool, device=keys.device).tril_(before + start)
        heads = [queries[:, :, start:end], keys[:, :, : before + end], values[:, :, : before + end]]
        outputs.append(attend(*heads, attn_mask=seen))
    return block.in_a_row(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2))


# -- the proof ---------------------------------------------------------------------------------------------------------


def prompts_can_be_shared(loaded: LoadedModel) -> bool:
    """Return whether `loaded` reads packed rows as it reads their sequences one by one, where these are not longer than
    `window_of` it. Tried once per model; why not is logged once. Raises what says that memory ran out."""
    if loaded.shares_prompts is None:
        reason = _reason_against(loaded)
        loaded.shares_prompts = reason is None
        if reason is not None:
            _LOG.warning("updates of %s read padded rows, and a prompt once for each reply: %s", loaded.name, reason)
    return loaded.shares_prompts


def window_of(loaded: LoadedModel) -> int | None:
    """Return up to how many tokens a sequence may stand in a row with others: what the layer sees that sees least, and
    what is read with the same rotary angles as shorter ones. None: any number."""
    turned = rope_limit(loaded.text_config)
    sizes = (*loaded.attention_spans().sizes.values(), None if turned is None else turned[0])
    return min((size for size in sizes if size is not None), default=None)


def packed_masks(loaded: LoadedModel, shared: Sequence[SharedPrompt]) -> Any:
    """Return what a model takes as the attention mask of a packed row: one, or one by kind of layer."""
    mask = SharedPromptMask.of(shared, loaded.device, _repeats(loaded.text_config))
    kinds = list(loaded.attention_spans().sizes)
    return mask if len(kinds) == 1 else dict.fromkeys(kinds, mask)


def _repeats(config: Any) -> int:
    """Return how often HF repeats every head of keys and values at least, in whichever layer."""
    heads = getattr(config, "num_attention_heads", None)
    kept = [n for name, n in config.to_dict().items() if name.endswith("key_value_heads") and n is not None]
    if not heads or not kept or not all(isinstance(n, int) and n > 0 and heads % n == 0 for n in kept):
        return 1
    return math.gcd(*(heads // n for n in kept))


def _reason_against(loaded: LoadedModel) -> str | None:
    """Return why a model does not read packed rows; None: it does."""
    implementation = getattr(loaded.text_config, "_attn_implementation", None)
    if implementation != "sdpa":
        return f"attn_implementation is {implementation!r}; expected 'sdpa' (model.attn_implementation)"
    if getattr(loaded.text_config, "attn_temperature_tuning", False):
        return "its layers scale queries by the place in the row (attn_temperature_tuning)"
    try:
        gap, wrong = _gaps(loaded)
    except (ContractError, AlignmentError, *RAISED) as error:
        if is_out_of_memory(error):
            raise
        return f"{type(error).__name__}: {str(error).partition(';')[0]}"
    if not gap <= min(tolerance(loaded.dtype), SMALL * wrong):
        return (
            f"hidden states would differ by {gap:.2g} of their size, where tokens that see all before them make "
            f"{wrong:.2g}: its tokens see each other in another way"
        )
    return None


@torch.no_grad()
def _gaps(loaded: LoadedModel) -> tuple[float, float]:
    """Return the difference of the hidden states of a packed row from those of its sequences, in parts of their size,
    and that of the same row where every token sees all before it."""
    words = plain_words(loaded, 12)
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
    n, ends = len(prompt), [len(sequence) for sequence in sequences]
    window = window_of(loaded)
    if window is not None and window < ends[0]:
        raise ContractError(f"a layer sees {window} tokens, fewer than the {ends[0]} that are tried")
    masks = packed_masks(loaded, [SharedPrompt(n, tuple(end - n for end in ends))])
    with evaluating(loaded.model):
        ids, positions = pad_sequences(loaded, sequences, pictures)
        read = hidden_states(loaded, ids, positions, [shot for row in pictures for shot in row])

        def packed(tensor: Tensor) -> Tensor:
            """[..., rows, T] -> [..., 1, n]."""
            parts = [tensor[..., 0, :n], *(tensor[..., i, n:end] for i, end in enumerate(ends))]
            return torch.cat(parts, dim=-1).unsqueeze(-2)

        theirs = torch.cat([read[0, :n], *(read[i, n:end] for i, end in enumerate(ends))])
        row = packed(ids), packed(positions), pictures[0]
        all_before = torch.ones(len(theirs), len(theirs), dtype=torch.bool, device=loaded.device).tril()[None, None]
        wrong: Any = all_before if isinstance(masks, Tensor) else dict.fromkeys(masks, all_before)
        made = [hidden_states(loaded, *row, attention_mask=mask)[0] for mask in (masks, wrong)]
    ours, others = made
    return difference(ours, theirs), difference(others, theirs)
