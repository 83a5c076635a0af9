"""Where the tokens of a sequence with pictures stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uirl.inference.models.processors import Expansion, joined


class Positions:
    """Where the tokens of a sequence with pictures stand, as the model's own `get_rope_index` says.

    Text advances by one on every axis. Where the model agrees (it is asked once), a picture occupies a block: time
    stands still, rows and columns count from the block's start, and the text after it goes on at start + max(rows,
    columns) (Qwen2-VL, section 2.1); else the model is asked for every sequence.
    """

    def __init__(self, rope_index: Callable[..., Any] | None, image_token_id: int, merge: int) -> None:
        self._rope_index, self._token, self._merge = rope_index, image_token_id, merge
        self.axes = 1
        self._blocks = False
        if rope_index is not None:
            self._takes = set(inspect.signature(rope_index).parameters)
            self.axes = len(self._asked([image_token_id + 1] * 2, {})[0])
            self._blocks = self.axes == 3 and self._agrees()

    def __call__(
        self,
        ids: Sequence[int],
        spans: Sequence[tuple[int, int]],
        images: Sequence[tuple[Expansion, Mapping[str, Tensor]]],
    ) -> tuple[np.ndarray, int]:
        """Return positions [axes, len(ids)] and that of the next token. `images`: what stands for each, and its
        tensors; `spans`: the places of each."""
        if self.in_blocks([expansion for expansion, _ in images]):
            return self._in_blocks(len(ids), spans, [tensors["image_grid_thw"][0].tolist() for _, tensors in images])
        names = [name for name in images[0][1] if name in self._takes]
        return self._asked(ids, {name: joined([tensors[name] for _, tensors in images]) for name in names})

    def in_blocks(self, expansions: Sequence[Expansion]) -> bool:
        """Return whether pictures with these `expansions` are blocks, whose positions count from where they begin."""
        return self._blocks and all(len(one.places) == len(one.ids) for one in expansions)

    def _in_blocks(
        self, length: int, spans: Sequence[tuple[int, int]], grids: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, int]:
        out = np.empty((3, length), np.int64)
        at = position = 0
        for (_, height, width), (start, end) in zip(grids, spans, strict=True):
            out[:, at:start] = np.arange(position, position + start - at)
            position += start - at
            rows, columns = height // self._merge, width // self._merge
            out[0, start:end] = position
            out[1, start:end] = position + np.repeat(np.arange(rows), columns)
            out[2, start:end] = position + np.tile(np.arange(columns), rows)
            position += max(rows, columns)
            at = end
        out[:, at:] = np.arange(position, position + length - at)
        return out, position + length - at

    @torch.inference_mode(False)
    def _asked(self, ids: Sequence[int], tensors: Mapping[str, Tensor]) -> tuple[np.ndarray, int]:
        assert self._rope_index is not None
        with torch.device("cpu"):
            tokens = torch.tensor([list(ids)])
            kinds = (tokens == self._token).int()
            known = {"input_ids": tokens, "mm_token_type_ids": kinds, "attention_mask": torch.ones_like(tokens)}
            asked = {name: value for name, value in (known | dict(tensors)).items() if name in self._takes}
            places, _ = self._rope_index(**asked)
        return places[:, 0].numpy(), int(places.max()) + 1

    def _agrees(self) -> bool:
        """Return whether the model's own positions are those in blocks."""
        m, text = self._merge, self._token + 1
        grids = [(1, 2 * m, 3 * m), (1, 4 * m, m)]
        ids = [text] * 2 + [self._token] * 6 + [text] * 3 + [self._token] * 4 + [text] * 2
        theirs, following = self._asked(ids, {"image_grid_thw": torch.tensor(grids)})
        ours, next_one = self._in_blocks(len(ids), [(2, 8), (11, 15)], grids)
        return np.array_equal(ours, theirs) and following == next_one
