"""Samples -> the padded batch a forward pass reads.

A `Batch` is [B, T], one row per sample. A number per response token travels between batches as one flat tensor
[tokens]: samples in order, tokens in order.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from uirl.errors import AlignmentError, OutOfMemory
from uirl.images import ImageStore, Screenshot
from uirl.inference.base import Counters
from uirl.inference.models.attention import rope_limit
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences
from uirl.inference.models.shared_prompts import (
    SharedPrompt,
    packed_masks,
    prompts_can_be_shared,
    runs_of_like_length,
    window_of,
)
from uirl.learner.data_parallel import Ranks
from uirl.runtime.memory import is_out_of_memory
from uirl.types import Sample

T = TypeVar("T")
SHORT = 192
"""Tokens of a row up to which the backward pass of attention in bfloat16 takes a CPU longer than in float32: twice to
four times as long at 32 to 160, as long at 192 to 400 (torch 2.13, Xeon with AMX)."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The tokens of a batch in one row, prompts that its samples share once each."""

    input_ids: Tensor
    """[1, n]."""
    position_ids: Tensor
    """[axes, 1, n]."""
    masks: Any
    """What the model takes as its attention mask."""
    places: Tensor
    """int64 [B, T]: where in the row each token of the batch stands; 0 for padding."""
    images: tuple[Screenshot, ...]
    """Those of the row, in reading order."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as tensors [B, T], right-padded, all aligned to `input_ids`."""

    input_ids: Tensor
    position_ids: Tensor
    """[axes, B, T]; one axis, or three for Qwen-VL."""
    attention_mask: Tensor
    """Booleans: the token is there, not padding."""
    response_mask: Tensor
    """Booleans: the policy sampled the token."""
    rollout_log_probs: Tensor
    """The engine's, float32; 0 where `response_mask` is False."""
    images: tuple[Screenshot, ...] = ()
    """The pictures of all rows, in reading order."""
    packed: PackedRow | None = None
    """What the model reads in place of the padded rows; None: the rows."""

    def flatten(self, aligned: Tensor) -> Tensor:
        """Return the response tokens of `aligned` [B, T] as one tensor [tokens]."""
        return aligned[self.response_mask]

    def scatter(self, flat: Tensor) -> Tensor:
        """Return `flat` [tokens] back at its places, [B, T], 0 elsewhere. Carries the gradient."""
        aligned = flat.new_zeros(self.response_mask.shape)
        aligned[self.response_mask] = flat
        return aligned


def collate(
    loaded: LoadedModel, samples: Sequence[Sample], images: ImageStore, families: Sequence[Family] = ()
) -> Batch:
    """Return the batch of `samples`, on the model's device; with `families`, which then hold all of them, to be read as
    a packed row.

    Raises AlignmentError that names the sample where tokens, masks or pictures do not line up: a sampled first token
    (nothing predicts it), a token the policy cannot sample, a picture that is missing or does not match its
    placeholders.
    """
    pictures = [[_picture(sample, hash, images) for hash in sample.images] for sample in samples]
    try:
        input_ids, position_ids = pad_sequences(loaded, [s.token_ids for s in samples], pictures)
    except AlignmentError:
        for sample, shown in zip(samples, pictures, strict=True):
            _check_pictures(loaded, sample, shown)
        raise
    shape = tuple(input_ids.shape)
    attention_mask, response_mask = np.zeros(shape, bool), np.zeros(shape, bool)
    log_probs = np.zeros(shape, np.float32)
    for row, sample in enumerate(samples):
        n = len(sample.token_ids)
        attention_mask[row, :n] = True
        response_mask[row, :n] = sample.response_mask
        log_probs[row, :n] = sample.rollout_log_probs
    log_probs[~response_mask] = 0.0
    device = loaded.device
    mask = torch.from_numpy(response_mask).to(device)
    _check_sampled(loaded, samples, input_ids, mask)
    return Batch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=torch.from_numpy(attention_mask).to(device),
        response_mask=mask,
        rollout_log_probs=torch.from_numpy(log_probs).to(device),
        images=tuple(itertools.chain.from_iterable(pictures)),
        packed=_pack(loaded, samples, families, input_ids, position_ids, pictures) if families else None,
    )


def _pack(
    loaded: LoadedModel,
    samples: Sequence[Sample],
    families: Sequence[Family],
    input_ids: Tensor,
    position_ids: Tensor,
    pictures: Sequence[Sequence[Screenshot]],
) -> PackedRow:
    """Return the packed row of padded rows: each family's prompt from its first member, then what follows it in all."""
    places = np.zeros(tuple(input_ids.shape), np.int64)
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    shown: list[Screenshot] = []
    shared: list[SharedPrompt] = []
    n = 0

    def append(row: int, start: int, end: int) -> None:
        nonlocal n
        rows.append(np.full(end - start, row))
        columns.append(np.arange(start, end))
        places[row, start:end] = np.arange(n, n + end - start)
        n += end - start

    for family in families:
        first, prompt = family.members[0], family.prompt
        append(first, 0, prompt)
        before = pictures_before(loaded, samples[first], pictures[first], prompt)
        shown += pictures[first][:before]
        for row in family.members:
            places[row, :prompt] = places[first, :prompt]
            append(row, prompt, len(samples[row].token_ids))
            shown += pictures[row][before:]
        replies = tuple(len(samples[row].token_ids) - prompt for row in family.members)
        shared.append(SharedPrompt(prompt, replies))
    at = tuple(torch.from_numpy(np.concatenate(part)).to(loaded.device) for part in (rows, columns))
    return PackedRow(
        input_ids[at][None],
        position_ids[:, at[0], at[1]][:, None],
        packed_masks(loaded, shared),
        torch.from_numpy(places).to(loaded.device),
        tuple(shown),
    )


def pictures_before(loaded: LoadedModel, sample: Sample, shown: Sequence[Screenshot], end: int) -> int:
    """Return how many of the pictures of a sample stand before its token `end`."""
    if not shown:
        return 0
    return sum(stop <= end for _, stop in loaded.vision_for(shown).spans(sample.token_ids, shown))


def token_states(loaded: LoadedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [tokens, H] from which each response token of `batch` is drawn, and those [B, H] of
    the last token of each row."""
    rows = torch.arange(len(batch.input_ids), device=batch.input_ids.device)
    ends = batch.attention_mask.sum(1) - 1
    # the one shift of the package: the state before token t is at t - 1
    drawn = batch.response_mask[:, 1:]
    packed = batch.packed
    with _attention(loaded, batch.input_ids.shape[1]):
        if packed is None:
            hidden = hidden_states(loaded, batch.input_ids, batch.position_ids, batch.images)
            return hidden[:, :-1][drawn], hidden[rows, ends]
        ids, positions = packed.input_ids, packed.position_ids
        row = hidden_states(loaded, ids, positions, packed.images, attention_mask=packed.masks)[0]
    return row[packed.places[:, :-1][drawn]], row[packed.places[rows, ends]]


def _attention(loaded: LoadedModel, longest: int) -> contextlib.AbstractContextManager[Any]:
    """Have attention in bfloat16 over rows of at most `SHORT` tokens computed in float32 on a CPU."""
    needed = torch.is_grad_enabled() and loaded.dtype == torch.bfloat16 and loaded.device.type == "cpu"
    if not needed or longest > SHORT:
        return contextlib.nullcontext()
    # what is computed again in the backward pass is computed outside of this; the first is its name since 5.24
    again = any(getattr(loaded.model, f"is_{what}_checkpointing", False) for what in ("activation", "gradient"))
    return contextlib.nullcontext() if again else _WideAttention()


class _WideAttention(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        return func(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()}).to(torch.bfloat16)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


@dataclass(frozen=True, slots=True)
class SampleBatches:
    """Samples that are collated one micro-batch at a time, anew in every pass."""

    loaded: LoadedModel
    samples: Sequence[Sample]
    images: ImageStore
    room: MicroBatchRoom
    share_prompts: bool = True
    """A prompt of several samples is read once, where the model takes that and it saves enough."""
    padding_free: bool = True
    """Samples of unlike lengths are read in one row without padding, where the model takes that."""
    ranks: Ranks | None = None
    """The processes that learn together, each of which gets its part of the samples; None: this one is alone."""

    def __len__(self) -> int:
        return len(self.samples)

    def of(self, chosen: Sequence[int], *, scores: bool = True) -> Iterator[tuple[Batch, list[int]]]:
        """Yield (batch, indices of its samples) for every micro-batch of the samples `chosen`; of several processes,
        for those of this one's part. `scores`: logits are made of their replies."""
        if self.ranks is not None:
            chosen = chosen[self.ranks.share([len(self.samples[i].token_ids) for i in chosen])]
        subset = [self.samples[i] for i in chosen]
        for group in self._micro_batches(subset):
            members = [chosen[i] for i in group.members]
            self.room.rows, self.room.size = len(members), group.size
            self.room.width = max(len(subset[i].token_ids) for i in group.members)
            pixels = self.loaded.pixels_read
            yield collate(self.loaded, [subset[i] for i in group.members], self.images, group.in_order), members
            self._count(group, subset, self.loaded.pixels_read - pixels, scores=scores)

    def _count(self, group: MicroBatch, samples: Sequence[Sample], pixels: int, *, scores: bool) -> None:
        """Count what a pass over a micro-batch read."""
        lengths = [len(sample.token_ids) for sample in samples]
        families = group.families or [Family((index,), 0) for index in group.members]
        kind, read = "learned" if torch.is_grad_enabled() else "scored", self.room.read
        read.add(f"{kind}_tokens", sum(_tokens(family, lengths) for family in families))
        read.add(f"{kind}_pairs", sum(_pairs(family, lengths) for family in families))
        read.add(f"{kind}_replies", scores * sum(sum(samples[index].response_mask) for index in group.members))
        read.add(f"{kind}_pixels", pixels)

    def results(self, attempt: Callable[[], T], kind: Any) -> list[T]:
        """Return what `attempt`, which makes passes over `of`, returned within the memory of each process, of the
        annotation `kind`. Where it failed in one, it fails in all."""
        if self.ranks is None:
            return [self.room.within_memory(attempt)]
        return self.ranks.together(lambda: self.room.within_memory(attempt), kind)

    def joined(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors [...] of which each is 0 in all processes but one, as they are there, on the CPU."""
        if self.ranks is None or not parts:
            return list(parts)
        flat = self.ranks.summed(torch.cat([part.detach().float().flatten().cpu() for part in parts]))
        split = flat.split([part.numel() for part in parts])
        return [one.view(part.shape) for one, part in zip(split, parts, strict=True)]

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        prompts: list[Hashable] = list(range(len(samples)))
        if self.share_prompts:
            prompts = [self._prompt(index, sample) for index, sample in enumerate(samples)]
        share = len(set(prompts)) < len(prompts)
        unpad = self.padding_free and len({len(sample.token_ids) for sample in samples}) > 1
        turned = rope_limit(self.loaded.text_config)
        limit = None if turned is None else turned[0]
        if (share or unpad) and prompts_can_be_shared(self.loaded):
            limit = window_of(self.loaded)
        else:
            share = unpad = False
        fits = [limit is None or len(sample.token_ids) <= limit for sample in samples]
        allowed = [prompt if fit else None for prompt, fit in zip(prompts, fits, strict=True)]
        return packed(samples, allowed, self.room.tokens, share=share, unpad=unpad)

    def _prompt(self, index: int, sample: Sample) -> Hashable:
        """Return what a sample begins with, up to its first sampled token: tokens and pictures. Its own number where
        that cannot be said."""
        end = sample.response_mask.index(True)
        shown = [_picture(sample, hash, self.images) for hash in sample.images]
        try:
            before = pictures_before(self.loaded, sample, shown, end)
        except AlignmentError:
            return index  # `collate` says what is wrong
        return sample.token_ids[:end], sample.images[:before]


def describe(sample: Sample) -> str:
    """Return the name of a sample for an error."""
    name = sample.trajectory_id or "without trajectory_id"
    return f"the sample of trajectory {name}, segment {sample.segment}, {len(sample.token_ids)} tokens,"


def _picture(sample: Sample, hash: str, images: ImageStore) -> Screenshot:
    try:
        return images.get(hash)
    except KeyError as error:
        raise AlignmentError(
            f"{describe(sample)} shows image {hash}, which is gone from the store ({len(images)} kept); collect and "
            "learn within ImageStore.holding()"
        ) from error


def _check_pictures(loaded: LoadedModel, sample: Sample, images: Sequence[Screenshot]) -> None:
    try:
        loaded.positions(sample.token_ids, images)
    except AlignmentError as error:
        raise AlignmentError(f"{describe(sample)} does not fit its pictures: {error}") from error


def _check_sampled(loaded: LoadedModel, samples: Sequence[Sample], input_ids: Tensor, mask: Tensor) -> None:
    if mask[:, 0].any():
        sample = samples[int(mask[:, 0].nonzero()[0])]
        raise AlignmentError(f"{describe(sample)} begins with a sampled token; expected a prompt before the response")
    banned = torch.tensor(loaded.banned_ids, device=mask.device)
    impossible = mask & torch.isin(input_ids, banned)
    if impossible.any():
        row, column = impossible.nonzero()[0].tolist()
        raise AlignmentError(
            f"{describe(samples[row])} has the response token {int(input_ids[row, column])} at {column}, which "
            f"{loaded.name} never samples; was it made by another model or tokenizer?"
        )


WORTH_IT = 0.8
"""Samples with one prompt are packed where they then have at most this share of their tokens."""
KEY_SHARE = 8
"""In a packed row each reply has keys and values of the prompt of its own: a token that stands for these alone counts
as an eighth of one."""
SPREAD = 8
"""Samples x longest of a packed row, in budgets: so large are the tensors [B, T] of what is said of each token."""
SPARED = 0.05
"""Of padded tokens: with less padding, and no more passes, samples of unlike lengths stay padded rows."""


@dataclass(frozen=True, slots=True)
class Family:
    """Samples that begin with one prompt."""

    members: tuple[int, ...]
    """The longest first."""
    prompt: int
    """Tokens that they share; 0: they stand in the row one behind the other, without padding."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward and backward pass."""

    members: list[int]
    size: int
    """What it takes, in tokens."""
    families: tuple[Family, ...] = ()
    """All members, where they are a packed row; empty: padded rows."""

    @property
    def in_order(self) -> list[Family]:
        """The families, their members by their places in `members`."""
        place = {index: number for number, index in enumerate(self.members)}
        return [replace(family, members=tuple(place[i] for i in family.members)) for family in self.families]


def micro_batches(samples: Sequence[Sample], token_budget: int) -> list[list[int]]:
    """Return indices of `samples` in groups whose padded size (rows x longest row) is at most `token_budget`.

    Samples of like length share a group, longest first; equal lengths keep their order, so the result depends on the
    lengths alone. Little of a group is padding (`runs_of_like_length`). A sample longer than the budget gets a group of
    its own.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget} (training.micro_batch_tokens)")
    longest_first = sorted(range(len(samples)), key=lambda i: -len(samples[i].token_ids))
    runs = runs_of_like_length([len(samples[i].token_ids) for i in longest_first], token_budget)
    indices = iter(longest_first)
    return [list(itertools.islice(indices, len(run))) for run in runs]


def packed(
    samples: Sequence[Sample], prompts: Sequence[Hashable | None], token_budget: int, *, share: bool, unpad: bool
) -> list[MicroBatch]:
    """Return the micro-batches of `samples`, of at most `token_budget` tokens each, packed rows first.

    `prompts`: what each sample begins with, up to its first sampled token; None: it must not be read together with one
    that has a prompt. `share`: equal prompts are read once; `unpad`: those of unlike lengths become packed rows, where
    it saves enough. The result depends on lengths and on which prompts are equal. A sample longer than the budget is
    alone.
    """
    lengths = [len(sample.token_ids) for sample in samples]
    families: list[Family] = []
    for family in _families(samples, prompts) if share else []:
        families += [part for part in _cut(family, lengths, token_budget) if _is_worth_it(part, lengths)]
    inside = {index for family in families for index in family.members}
    others = [index for index in range(len(samples)) if index not in inside]
    loose = [index for index in others if prompts[index] is not None]
    alone = [index for index in others if prompts[index] is None]
    apart = padded([samples[i] for i in loose], loose, token_budget)
    if unpad:
        whole = _in_turn(sorted(loose, key=lambda index: -lengths[index]), lengths, token_budget)
        tokens, filled = sum(lengths[index] for index in loose), sum(one.size for one in apart)
        if len(whole) < len(apart) or tokens < (1 - SPARED) * filled:
            families, apart = families + whole, []
    return _rows(families, lengths, token_budget) + apart + padded([samples[i] for i in alone], alone, token_budget)


def padded(samples: Sequence[Sample], indices: Sequence[int], token_budget: int) -> list[MicroBatch]:
    """Return the micro-batches of padded rows of `samples`, which are known by `indices`."""
    groups = micro_batches(samples, token_budget)
    return [MicroBatch([indices[i] for i in group], len(group) * len(samples[group[0]].token_ids)) for group in groups]


def _rows(families: Sequence[Family], lengths: Sequence[int], budget: int) -> list[MicroBatch]:
    """Return packed rows of families, in their order, each of as many as fit into the budget."""
    rows: list[list[Family]] = []
    count = longest = filled = 0
    for family in families:
        size = _size(family, lengths)
        count, filled = count + len(family.members), filled + size
        longest = max(longest, lengths[family.members[0]])
        if not rows or filled > budget or count * longest > SPREAD * budget:
            rows.append([])
            count, longest, filled = len(family.members), lengths[family.members[0]], size
        rows[-1].append(family)
    sizes = [sum(_size(family, lengths) for family in row) for row in rows]
    return [MicroBatch([i for f in row for i in f.members], n, tuple(row)) for row, n in zip(rows, sizes, strict=True)]


def _families(samples: Sequence[Sample], prompts: Sequence[Hashable | None]) -> list[Family]:
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        if prompt is not None:
            alike[prompt].append(index)
    families = []
    for members in alike.values():
        if len(members) > 1:
            members.sort(key=lambda i: -len(samples[i].token_ids))
            families.append(Family(tuple(members), samples[members[0]].response_mask.index(True)))
    return families


def _cut(family: Family, lengths: Sequence[int], budget: int) -> list[Family]:
    """Return a family in parts that fit into the budget, of about as many members each."""
    largest = len(family.members)
    while largest > 1 and _size(Family(family.members[:largest], family.prompt), lengths) > budget:
        largest -= 1
    parts = -(-len(family.members) // largest)
    each = -(-len(family.members) // parts)
    starts = range(0, len(family.members), each)
    return [Family(family.members[start : start + each], family.prompt) for start in starts]


def _in_turn(members: Sequence[int], lengths: Sequence[int], budget: int) -> list[Family]:
    """Return families without a prompt that hold `members`, each as many as fit into the budget."""
    found: list[list[int]] = []
    room = 0
    for index in members:
        if not found or lengths[index] > room or (len(found[-1]) + 1) * lengths[found[-1][0]] > SPREAD * budget:
            found.append([])
            room = budget
        found[-1].append(index)
        room -= lengths[index]
    return [Family(tuple(one), 0) for one in found]


def _size(family: Family, lengths: Sequence[int]) -> int:
    keys = len(family.members) * max(lengths[i] for i in family.members) if family.prompt else 0
    return _tokens(family, lengths) + keys // KEY_SHARE


def _tokens(family: Family, lengths: Sequence[int]) -> int:
    return family.prompt + sum(lengths[i] - family.prompt for i in family.members)


def _pairs(family: Family, lengths: Sequence[int]) -> int:
    """Return how many pairs of a token and one that it sees a pass over a family has."""
    before = family.prompt * (family.prompt + 1) // 2
    return before + sum((n * (n + 1)) // 2 - before for n in (lengths[i] for i in family.members))


def _is_worth_it(family: Family, lengths: Sequence[int]) -> bool:
    return _tokens(family, lengths) <= WORTH_IT * sum(lengths[i] for i in family.members)


_LOG = logging.getLogger(__name__)
REMEDY = (
    "set model.gradient_checkpointing=true, show smaller or fewer pictures (rollout.max_images), shorten the context "
    "(inference.max_context, rollout.token_budget), train adapters alone (model.use_lora=true), or take a smaller model"
)


@dataclass(slots=True)
class MicroBatchRoom:
    """Padded tokens of one forward and backward pass. One object serves all updates of a learner, so that what did not
    fit once is not tried again."""

    tokens: int
    """Rows x longest row, at most; a longer sample is alone."""
    rows: int = 0
    """Samples of the newest micro-batch."""
    width: int = 0
    """Tokens of its longest sample."""
    size: int = 0
    """What it takes, in tokens: rows x width, or less where prompts are shared."""
    recompute: Callable[[], bool] | None = None
    """Lets activations be computed again in the backward pass; False: they are already, or cannot be."""
    read: Counters = field(default_factory=Counters)
    """What passes with a gradient ('learned_...') and without one ('scored_...') read: tokens, pairs of a token and one
    that it sees, replies (their tokens), pixels (numbers of pictures that no earlier pass made features of)."""

    def within_memory(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns. Where memory runs out in it, halve the micro-batch and call it again, from its
        beginning: it must forget what an earlier call left half done. Of one sample activations are computed again.
        Raises OutOfMemory where that does not fit."""
        while True:
            try:
                return attempt()
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0]
            # behind the handler, whose traceback holds the tensors of the failed pass
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.rows > 1 or not self._recomputes(reason):
                self._halve(reason)

    def _recomputes(self, reason: str) -> bool:
        # without gradients no activations are kept
        if self.recompute is None or not torch.is_grad_enabled() or not self.recompute():
            return False
        _LOG.warning(
            "memory ran out in the learner on one sequence of %d tokens; from now on its activations are computed "
            "again in the backward pass. The gradient stays the same; model.gradient_checkpointing=true avoids the "
            "failed attempt (%s)",
            self.width,
            reason,
        )
        return True

    def _halve(self, reason: str) -> None:
        if self.rows <= 1:
            raise OutOfMemory(
                f"memory ran out in the learner on one sequence of {self.width} tokens, the smallest micro-batch: "
                f"{reason}. Expected room for it; {REMEDY}. `uirl plan` computes what fits"
            )
        self.tokens = self.size // 2
        _LOG.warning(
            "memory ran out in the learner on a micro-batch of %d sequences, %d tokens; from now on one has at most "
            "%d. The gradient stays the same; training.micro_batch_tokens=%d avoids the failed attempt (%s)",
            self.rows,
            self.size,
            self.tokens,
            self.tokens,
            reason,
        )
