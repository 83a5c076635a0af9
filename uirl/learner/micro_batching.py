"""Which samples share a forward and backward pass, and which of them one prompt.

Members of a group begin with one prompt. Where reading it once saves enough, they become a packed row
(`uirl.inference.models.shared_prompts`). Samples of unlike lengths become one too, each with all of its own tokens.
What a packed row cannot hold are rows of like length, padded.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from uirl.inference.models.shared_prompts import runs_of_like_length
from uirl.types import Sample

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
    _require_budget(token_budget)
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
    _require_budget(token_budget)
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


def _is_worth_it(family: Family, lengths: Sequence[int]) -> bool:
    return _tokens(family, lengths) <= WORTH_IT * sum(lengths[i] for i in family.members)


def _require_budget(token_budget: int) -> None:
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget} (training.micro_batch_tokens)")
