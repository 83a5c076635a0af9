"""Samples -> the padded batch a forward pass reads.

A `Batch` is [B, T], one row per sample. A number per response token travels between batches as one flat tensor
[tokens]: samples in order, tokens in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uirl.errors import AlignmentError
from uirl.images import ImageStore, Screenshot
from uirl.inference.models.loading import LoadedModel, pad_sequences
from uirl.learner.room import MicroBatchRoom
from uirl.types import Sample

PADDING_SHARE = 0.1
"""Of the tokens of a micro-batch; with less, samples of unlike lengths would be more micro-batches."""
PADDING_TOKENS = 256
"""What a micro-batch more costs anyway, in tokens."""


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

    def flatten(self, aligned: Tensor) -> Tensor:
        """Return the response tokens of `aligned` [B, T] as one tensor [tokens]."""
        return aligned[self.response_mask]

    def scatter(self, flat: Tensor) -> Tensor:
        """Return `flat` [tokens] back at its places, [B, T], 0 elsewhere. Carries the gradient."""
        aligned = flat.new_zeros(self.response_mask.shape)
        aligned[self.response_mask] = flat
        return aligned


def collate(loaded: LoadedModel, samples: Sequence[Sample], images: ImageStore) -> Batch:
    """Return the batch of `samples`, on the model's device.

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
    )


def micro_batches(samples: Sequence[Sample], token_budget: int) -> list[list[int]]:
    """Return indices of `samples` in groups whose padded size (rows x longest row) is at most `token_budget`.

    Samples of like length share a group, longest first; equal lengths keep their order, so the result depends on the
    lengths alone. At most `PADDING_SHARE` of a group is padding, or `PADDING_TOKENS` where that is more. A sample
    longer than the budget gets a group of its own.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget} (training.micro_batch_tokens)")
    groups: list[list[int]] = []
    widest, padding = 0, 0
    for index in sorted(range(len(samples)), key=lambda i: -len(samples[i].token_ids)):
        length = len(samples[index].token_ids)
        size = (len(groups[-1]) + 1) * widest if groups else 0
        padding += widest - length
        if not groups or size > token_budget or padding > max(PADDING_TOKENS, PADDING_SHARE * size):
            groups.append([])
            widest, padding = length, 0
        groups[-1].append(index)
    return groups


@dataclass(frozen=True, slots=True)
class SampleBatches:
    """Samples that are collated one micro-batch at a time, as often as somebody passes over them."""

    loaded: LoadedModel
    samples: Sequence[Sample]
    images: ImageStore
    room: MicroBatchRoom

    def __len__(self) -> int:
        return len(self.samples)

    def of(self, chosen: Sequence[int]) -> Iterator[tuple[Batch, list[int]]]:
        """Yield (batch, indices of its samples) for every micro-batch of the samples `chosen`."""
        subset = [self.samples[i] for i in chosen]
        for group in micro_batches(subset, self.room.tokens):
            members = [chosen[i] for i in group]
            self.room.rows, self.room.width = len(group), len(subset[group[0]].token_ids)
            yield collate(self.loaded, [self.samples[i] for i in members], self.images), members


def describe(sample: Sample) -> str:
    """Return words that name a sample in an error."""
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
