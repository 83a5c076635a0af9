"""The rows of an update in as many mini-batches as the config says, however many rows its episodes became.

verl cuts an update into mini-batches of a fixed number of rows, `ppo_mini_batch_size` x `rollout.n`. Where a window
rewrites the history of episodes there are more rows, and so more steps of the optimiser; where episodes failed there
are fewer. Here the number of mini-batches is kept, and all rows of an episode are in the same one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Division:
    """How the rows of an update are divided."""

    blocks: list[list[int]]
    """Indices of the rows of each block, all blocks of one length. A mini-batch is one block or several that follow
    each other. Indices from `rows` on are rows of padding."""
    rows: int
    """Real ones."""

    @property
    def padded(self) -> int:
        """Return the number of rows, with padding."""
        return sum(map(len, self.blocks))

    def sizes(self, minibatches: int) -> dict[str, Any]:
        """Return verl's parameters of an update in so many mini-batches, a divisor of the number of blocks.

        `global_batch_size` divides the losses that are means of sequences. Padding counts in none of them, so it is
        the mean number of real rows.
        """
        return {
            "mini_batch_size": self.padded // minibatches,
            "global_batch_size": self.rows / minibatches,
        }


def divide(episodes: Sequence[Hashable], tokens: Sequence[int], *, blocks: int, multiple: int) -> Division:
    """Divide the rows into `blocks` blocks of equal length, a multiple of `multiple`, that differ as little as may be
    in real rows, then in tokens. `episodes[i]` is that of row i: its rows are in the same block."""
    rows_of: dict[Hashable, list[int]] = {}
    for i, episode in enumerate(episodes):
        rows_of.setdefault(episode, []).append(i)
    largest_first = sorted(rows_of.values(), key=lambda rows: (len(rows), sum(tokens[i] for i in rows)), reverse=True)
    out: list[list[int]] = [[] for _ in range(blocks)]
    weight = [0] * blocks
    for rows in largest_first:
        k = min(range(blocks), key=lambda k: (len(out[k]), weight[k]))
        out[k] += rows
        weight[k] += sum(tokens[i] for i in rows)
    length = multiple * math.ceil(max(map(len, out)) / multiple)
    padding = len(episodes)
    for block in out:
        missing = length - len(block)
        block += range(padding, padding + missing)
        padding += missing
    return Division(out, len(episodes))


def counts(wanted: Mapping[str, int], episodes: int) -> dict[str, int]:
    """Return the number of mini-batches of each network: what is wanted of it, but no more than can all have an
    episode. A mini-batch of padding alone has no loss."""
    out = {name: min(number, episodes) for name, number in wanted.items()}
    if math.lcm(*out.values()) > episodes:  # no common division: all as the one with fewest
        return dict.fromkeys(out, min(out.values()))
    return out


def wanted_minibatches(config: Any, *, critic: bool) -> dict[str, int]:
    """Return network -> mini-batches of an update, as verl's config says it in prompts."""
    prompts = config.data.train_batch_size
    out = {"actor": math.ceil(prompts / config.actor_rollout_ref.actor.ppo_mini_batch_size)}
    if critic:
        out["critic"] = math.ceil(prompts / config.critic.ppo_mini_batch_size)
    return out


def rows_at_once(config: Any, *, ranks: int, critic: bool, reference: bool) -> int:
    """Return the number that the rows of a block must be a multiple of: every rank has as many, and where a pass takes
    a fixed number of rows at once (no dynamic batch size) the rows of a rank are a multiple of that."""
    parts = config.actor_rollout_ref
    fixed = [
        (parts.actor.use_dynamic_bsz, parts.actor.ppo_micro_batch_size_per_gpu),
        (parts.rollout.log_prob_use_dynamic_bsz, parts.rollout.log_prob_micro_batch_size_per_gpu),
    ]
    if reference:
        fixed.append((parts.ref.log_prob_use_dynamic_bsz, parts.ref.log_prob_micro_batch_size_per_gpu))
    if critic:
        fixed.append((config.critic.use_dynamic_bsz, config.critic.ppo_micro_batch_size_per_gpu))
        fixed.append((config.critic.use_dynamic_bsz, config.critic.forward_micro_batch_size_per_gpu))
    return ranks * math.lcm(*(int(rows) for dynamic, rows in fixed if not dynamic and rows))


class Sized:
    """A worker group of verl's whose updates are divided as we say."""

    def __init__(self, group: Any, sizes: Mapping[str, Any]) -> None:
        self._group, self._sizes = group, sizes

    def update_actor(self, batch: Any) -> Any:
        """Call the group's own method with the sizes of this division."""
        batch.extra_info.update(self._sizes)
        return self._group.update_actor(batch)

    def train_mini_batch(self, batch: Any) -> Any:
        """Call the group's own method with the sizes of this division."""
        batch.extra_info.update(self._sizes)
        return self._group.train_mini_batch(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)
