"""How often the model is right about synthetic screens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from uirl.inference.grounding.lessons import HELD_OUT, lesson
from uirl.inference.grounding.packing import Block, Packer, last_hidden
from uirl.inference.grounding.questions import Question
from uirl.inference.grounding.screens import Screen
from uirl.inference.models.loading import LoadedModel, project


@torch.no_grad()
def answers(
    loaded: LoadedModel, screens: Sequence[Screen], asked: Sequence[Sequence[Question]], *, tokens: int = 24
) -> list[str]:
    """Return the greedy replies to all questions, in order; the screens have one size. Every question is answered as if
    it were the only one."""
    packer, pictures = Packer(loaded), [s.picture for s in screens]
    starts = [[packer.block(q.text)[0] for q in row] for row in asked]
    said: list[list[list[int]]] = [[[] for _ in row] for row in asked]
    unfinished = [(i, j) for i, row in enumerate(asked) for j in range(len(row))]
    for _ in range(tokens):
        blocks: list[list[Block]] = [[] for _ in screens]
        for i, j in unfinished:
            blocks[i].append((starts[i][j], said[i][j]))
        packed = packer(pictures, blocks)
        rows, places = (list(part) for part in zip(*packed.ends, strict=True))
        best = project(loaded, last_hidden(loaded, packed)[rows, places]).argmax(-1).tolist()
        chosen = list(zip(unfinished, best, strict=True))
        for (i, j), token in chosen:
            said[i][j].append(token)
        unfinished = [place for place, token in chosen if token not in loaded.end_ids]
        if not unfinished:
            break
    return [loaded.tokenizer.decode(ids, skip_special_tokens=True) for row in said for ids in row]


def accuracy(
    loaded: LoadedModel, seed: int, *, batches: int, size: int = 20, at_most: int = 8
) -> dict[str, tuple[int, int]]:
    """Return, by kind of what was asked for, how many questions about held-out screens were answered rightly, of how
    many. `batches` of `size` screens, with up to `at_most` questions each."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for number in range(batches):
        screens, asked = lesson(seed + HELD_OUT, number, size, at_most)
        replies = answers(loaded, screens, asked)
        for question, reply in zip([q for row in asked for q in row], replies, strict=True):
            counts[question.kind][0] += question.right(reply)
            counts[question.kind][1] += 1
    return {kind: (right, of) for kind, (right, of) in sorted(counts.items())}
