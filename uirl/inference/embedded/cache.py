"""The KV cache of many sequences of different lengths: one row each, running rows in front.

A decoding step reads `[:running]` of every tensor as a view; only admitting and retiring sequences moves rows. Rows
behind the running ones belong to episodes that wait for their environment, so that a next turn prefills new tokens
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

FEW = 8
"""So many rows are moved one by one: on a CPU in a third of the time of an index, which on a GPU is one launch."""


class SlotCache(Cache):
    """What a HF model writes keys and values to: rows of a pool that grows with need, up to `max_tokens` (rows x
    length), and is made anew where another shape of it is needed within them.

    Before a forward the runner says which rows it feeds and where (`aim`); `update` then stores the new keys and values
    there and returns everything those rows hold. A pool is a tensor [rows, heads, length, head] of each layer.
    """

    def __init__(self, device: torch.device, max_tokens: int = 2**62) -> None:
        super().__init__(layers=[])
        self._max_tokens = max_tokens
        self._device = device
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = 0
        self._length = 0
        self._written = 0
        """Leading tokens of the rows that anything was written to: beyond them there is nothing to move."""
        self._read: slice | Tensor = slice(0, 0)
        self._write_rows = torch.empty(0, dtype=torch.long)
        self._write_columns = torch.empty(0, dtype=torch.long)
        self._valid: Tensor | None = None
        self._span = 0

    @property
    def length(self) -> int:
        """Tokens of one sequence that the pools hold."""
        return self._length

    @property
    def bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pools in (self._keys, self._values) for pool in pools)

    def reserve(self, rows: int, length: int, moves: Mapping[int, int] | None = None) -> None:
        """Make room for `rows` sequences of `length` tokens, and copy rows as `moves` say (from -> to), all at once;
        what is there in these rows, up to this length, stays.

        The pool grows in steps, rows by an eighth at least, so that it grows seldom: all of it is copied then. Where
        that would be more than `max_tokens`, it gets the least that is needed.
        """
        more = max(self._rows, _round_up(rows, 16))
        lengths = [_round_up(max(length, self._length * 9 // 8), 64), _round_up(length, 64)]
        for grown in lengths if length > self._length else [self._length]:
            if more * grown <= self._max_tokens:
                self._reshape(more, grown, {})
                self.move(moves or {})
                return
        self._reshape(rows, length, moves or {})

    def aim(self, read: slice | Tensor, rows: Tensor, columns: Tensor, valid: Tensor | None, span: int) -> None:
        """Say where the next forward writes: token j of the valid tokens goes to (rows[j], columns[j]), both [tokens].

        `read` selects the batch's rows (a slice: read without a copy), `span` the columns it sees, `valid` [B, n] the
        tokens that are not padding (None: all).
        """
        self._read, self._write_rows, self._write_columns = read, rows, columns
        self._valid, self._span = valid, span
        self._written = max(self._written, span)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, heads, n, head] where `aim` said; return all that the rows hold of a layer, [B,
        heads, span, head] each. HF models call it in every layer."""
        if layer_idx == len(self._keys):
            self._keys.append(self._fresh(key_states))
            self._values.append(self._fresh(value_states))
        return (self._store(self._keys[layer_idx], key_states), self._store(self._values[layer_idx], value_states))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._span

    def move(self, moves: Mapping[int, int]) -> None:
        """Copy rows (from -> to), all at once: an exchange needs no spare row."""
        pools = [pool[:, :, : self._written] for pool in (*self._keys, *self._values)]
        if len(moves) <= FEW:
            for pool in pools:
                rows = [pool[source].clone() for source in moves]
                for target, row in zip(moves.values(), rows, strict=True):
                    pool[target] = row
            return
        sources = torch.tensor(list(moves), device=self._device)
        targets = torch.tensor(list(moves.values()), device=self._device)
        for pool in pools:
            pool[targets] = pool[sources]

    def copy(self, copies: Mapping[int, tuple[int, int]]) -> None:
        """Let rows begin as others do, {to: (from, tokens)}; no row is both."""
        if not copies:
            return
        target = torch.tensor(list(copies), device=self._device)
        source = torch.tensor([row for row, _ in copies.values()], device=self._device)
        longest = max(tokens for _, tokens in copies.values())
        for tensors in (self._keys, self._values):
            for tensor in tensors:
                tensor[target, :, :longest] = tensor[source, :, :longest]

    def _store(self, pool: Tensor, states: Tensor) -> Tensor:
        by_token = states.transpose(1, 2)
        new = by_token[self._valid] if self._valid is not None else by_token[:, 0]
        pool[self._write_rows, :, self._write_columns] = new
        return pool[:, :, : self._span][self._read]

    def _fresh(self, states: Tensor) -> Tensor:
        shape = (self._rows, states.shape[1], self._length, states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def _reshape(self, rows: int, length: int, moves: Mapping[int, int]) -> None:
        """Give the pool another shape, its rows moved."""
        same = (rows, length) == (self._rows, self._length)
        before, self._rows, self._length = self._rows, rows, length
        if same:
            self.move(moves)
            return
        comes_from = {row: row for row in range(min(rows, before))} | {to: row for row, to in moves.items()}
        for tensors in (self._keys, self._values):
            for i, old in enumerate(tensors):
                new = old.new_zeros((rows, old.shape[1], length, old.shape[3]))
                n = min(length, old.shape[2])
                for to, row in comes_from.items():
                    new[to, :, :n] = old[row, :, :n]
                tensors[i] = new


def _round_up(n: int, step: int) -> int:
    return (n + step - 1) // step * step
