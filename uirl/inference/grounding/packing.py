"""Many questions about one picture in one forward: each sees the picture and itself, as if it were asked alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.vision import GridPatches

_ROUND = 32
"""Rows are padded to a multiple of it: kernels are kept for each shape, and thousands of shapes fill the memory."""
Block = tuple[Sequence[int], Sequence[int]]
"""Token ids of a question with the prompt for the reply, and of the reply."""


@dataclass(slots=True)
class Packed:
    """A batch of pictures of one size with their questions."""

    input_ids: Tensor
    """[B, T], right-padded."""
    position_ids: Tensor
    """[3, B, T]. Every question begins where the picture ends."""
    attention_mask: Tensor
    """[B, 1, T, T], True where a row sees a column."""
    learned: Tensor
    """[B, T], True at the tokens of replies."""
    about: Tensor
    """[B, T], number of the question that a token belongs to, counted over all rows; 0 outside of questions."""
    ends: list[tuple[int, int]]
    """Row and place of the last token of each block, in order."""
    cells: tuple[int, int]
    """First and last place, outside, of the tokens of a picture in its row."""
    vision: dict[str, Tensor]
    """Pictures as the model's forward takes them."""


class Packer:
    """Makes batches for one model."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert loaded.vision is not None
        patches = GridPatches.of(loaded.vision.processor)
        assert patches is not None
        self._patches, self._tokenizer, self._merge = patches, loaded.tokenizer, loaded.vision.merge
        token = loaded.tokenizer.convert_tokens_to_ids
        self._image, self._pad = loaded.vision.image_token_id, token("<|endoftext|>")
        self._user, self._before, self._after = (
            token(name) for name in ("<|user|>", "<|vision_start|>", "<|vision_end|>")
        )

    def block(self, question: str, reply: str = "") -> Block:
        """Return the ids of a question and of its reply; an empty reply: it is still to come."""
        asked = self._tokenizer.encode(question + "<|assistant|>")
        return asked, self._tokenizer.encode(reply + "<|im_end|>") if reply else []

    def vision(self, pictures: Sequence[Image]) -> dict[str, Tensor]:
        """Return pictures as the model's forward takes them."""
        return self._vision([self._patches(np.asarray(picture)) for picture in pictures])

    def __call__(self, pictures: Sequence[Image], blocks: Sequence[Sequence[Block]]) -> Packed:
        """Return a batch; `pictures` have one size, `blocks` are the questions about each."""
        encoded = [self._patches(np.asarray(picture)) for picture in pictures]
        _, high, wide = encoded[0][1]
        rows, columns = high // self._merge, wide // self._merge
        head = [self._user, self._before, *[self._image] * (rows * columns), self._after]
        longest = len(head) + max(sum(len(q) + len(r) for q, r in row) for row in blocks)
        longest = -(-longest // _ROUND) * _ROUND
        batch = len(pictures)
        ids = torch.full((batch, longest), self._pad)
        places = torch.zeros(3, batch, longest, dtype=torch.long)
        seen = torch.zeros(batch, longest, longest, dtype=torch.bool)
        learned = torch.zeros(batch, longest, dtype=torch.bool)
        n = len(head)
        about = torch.zeros(batch, longest, dtype=torch.long)
        ends: list[tuple[int, int]] = []
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        ids[:, :n] = torch.tensor(head)
        places[:, :, :n] = self._head_positions(rows, columns)[:, None]
        following = 3 + max(rows, columns)
        for i, row in enumerate(blocks):
            at = n
            for asked, reply in row:
                stop = at + len(asked) + len(reply)
                ids[i, at:stop] = torch.tensor([*asked, *reply])
                places[:, i, at:stop] = following + torch.arange(stop - at)
                seen[i, at:stop, at:stop] = causal[: stop - at, : stop - at]
                learned[i, at + len(asked) : stop] = True
                about[i, at:stop] = len(ends)
                ends.append((i, stop - 1))
                at = stop
        seen[:, :, :n] |= causal[:, :n]
        return Packed(ids, places, seen[:, None], learned, about, ends, (2, n - 1), self._vision(encoded))

    def _head_positions(self, rows: int, columns: int) -> Tensor:
        """Return [3, n]: user, vision start, the picture's block, vision end, as `VisionInputs.positions` counts."""
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        picture = torch.stack([torch.full_like(row, 2), row + 2, column + 2])
        start = torch.tensor([0, 1]).expand(3, 2)
        return torch.cat([start, picture, torch.full((3, 1), 2 + max(rows, columns))], dim=1)

    @staticmethod
    def _vision(encoded: Sequence[tuple[Tensor, Any]]) -> dict[str, Tensor]:
        return {
            "pixel_values": torch.cat([pixels for pixels, _ in encoded]),
            "image_grid_thw": torch.tensor([grid for _, grid in encoded]),
        }


def last_hidden(loaded: LoadedModel, packed: Packed) -> Tensor:
    """Return hidden states [B, T, H] of a batch."""
    output = loaded.model.model(  # type: ignore[operator]
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        attention_mask=packed.attention_mask,
        use_cache=False,
        **packed.vision,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden
