"""The compact view of samples in which credit is computed.

One row per trajectory, response tokens only, all segments joined: a trajectory that was cut into several samples gets
the credit of the whole episode, and votes once in its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uirl.errors import AlignmentError
from uirl.learner.batch import describe
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class ResponseView:
    """The response tokens of whole trajectories, one trajectory per row [N, R], in float32 and on the CPU."""

    trajectory_ids: tuple[str, ...]
    group_ids: tuple[str, ...]
    rewards: Tensor
    """[N, R]"""
    mask: Tensor
    """Booleans [N, R]: the row has a token here. Rows have no holes."""
    turn_ids: Tensor
    """int64 [N, R], -1 beyond the row's end."""
    rollout_log_probs: Tensor
    """[N, R]"""
    policy_version: Tensor
    """int64 [N, R]: the version that sampled the token; -1 beyond the row's end."""
    ends_episode: Tensor
    """Booleans [N]: the last segment is there and ended the episode by itself."""
    sample_rows: tuple[int, ...]
    """The row of each sample."""
    last_samples: tuple[int, ...]
    """The sample that holds the last segment of each row."""
    token_counts: tuple[int, ...]
    """How many response tokens each sample has."""
    sample_versions: tuple[int, ...]
    """The oldest version of the policy that sampled a token of each sample."""
    _rows: Tensor
    _columns: Tensor

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    @property
    def tokens(self) -> int:
        """Response tokens of all samples together."""
        return len(self._rows)

    def spread(self, flat: Tensor) -> Tensor:
        """Return a number per response token, [tokens] in the order of the samples, as rows of trajectories [N, R]."""
        compact = torch.zeros(self.mask.shape, dtype=flat.dtype)
        compact[self._rows, self._columns] = flat
        return compact

    def flatten(self, compact: Tensor) -> Tensor:
        """Return the inverse of `spread`: [N, R] -> [tokens]."""
        return compact[self._rows, self._columns]

    def require_versions(self, newest: int) -> None:
        """Raise AlignmentError where a sample comes from a later version of the policy than `newest`."""
        for row, version in enumerate(self.policy_version.amax(1).tolist()):
            if version > newest:
                raise AlignmentError(
                    f"trajectory {self.name(row)} was sampled by version {version}, but the learner is at {newest}; "
                    "after a checkpoint is loaded, tell the engine the learner's version"
                )

    def describe(self, version: int) -> dict[str, float]:
        """Return counts of the data, and by how many versions of the policy it is older than `version` on average."""
        samples = len(self.sample_versions)
        return {
            "tokens": float(self.tokens),
            "sequences": float(samples),
            "trajectories": float(len(self)),
            "staleness": sum(version - sampled for sampled in self.sample_versions) / samples,
        }

    def name(self, row: int) -> str:
        """Return the trajectory of a row, for an error."""
        return self.trajectory_ids[row] or "without trajectory_id"

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return `flat` [tokens] cut into one tensor per sample."""
        return list(flat.split(list(self.token_counts)))


def response_view(samples: Sequence[Sample]) -> ResponseView:
    """Return the compact view of `samples`, which must hold every segment of each of their trajectories.

    Samples with an empty `trajectory_id` stand alone. Raises AlignmentError for a missing or doubled segment, segments
    of different groups, a reward that stands on no response token, turn ids that run backwards.
    """
    order = _rows_of(samples)
    pieces = [_Piece.of(sample) for sample in samples]
    counts = [len(piece.where) for piece in pieces]
    columns: list[np.ndarray] = [np.empty(0, np.int64)] * len(samples)
    rows_of_sample = [0] * len(samples)
    for row, members in enumerate(order):
        _check_trajectory([samples[i] for i in members])
        start = 0
        for i in members:
            rows_of_sample[i] = row
            columns[i] = np.arange(start, start + counts[i])
            start += counts[i]
    rows = np.repeat(np.array(rows_of_sample, np.int64), counts)
    column = np.concatenate(columns)
    shape = (len(order), int(column.max()) + 1)

    def compact(parts: Sequence[np.ndarray], fill: float, dtype: type) -> Tensor:
        out: np.ndarray = np.full(shape, fill, dtype)
        out[rows, column] = np.concatenate(parts)
        return torch.from_numpy(out)

    view = ResponseView(
        trajectory_ids=tuple(samples[members[0]].trajectory_id for members in order),
        group_ids=tuple(samples[members[0]].group_id for members in order),
        rewards=compact([p.rewards for p in pieces], 0.0, np.float32),
        mask=compact([np.ones(n, bool) for n in counts], False, np.bool_),
        turn_ids=compact([p.turn_ids for p in pieces], -1, np.int64),
        rollout_log_probs=compact([p.log_probs for p in pieces], 0.0, np.float32),
        policy_version=compact([p.versions for p in pieces], -1, np.int64),
        ends_episode=torch.tensor([samples[members[-1]].ends_episode for members in order]),
        sample_rows=tuple(rows_of_sample),
        last_samples=tuple(members[-1] for members in order),
        token_counts=tuple(counts),
        sample_versions=tuple(sample.policy_version for sample in samples),
        _rows=torch.from_numpy(rows),
        _columns=torch.from_numpy(column),
    )
    _check_turns(view)
    return view


@dataclass(frozen=True, slots=True)
class _Piece:
    """The response tokens of one sample."""

    where: np.ndarray
    rewards: np.ndarray
    turn_ids: np.ndarray
    log_probs: np.ndarray
    versions: np.ndarray

    @staticmethod
    def of(sample: Sample) -> _Piece:
        where = np.flatnonzero(sample.response_mask)
        rewards = np.asarray(sample.rewards, np.float32)
        if np.count_nonzero(rewards) != np.count_nonzero(rewards[where]):
            stray = next(i for i in np.flatnonzero(rewards) if not sample.response_mask[i])
            raise AlignmentError(
                f"{describe(sample)} has the reward {rewards[stray]:g} on token {stray}, which the policy did not "
                "sample; the reward of a turn stands on its last response token, or it would be lost"
            )
        return _Piece(
            where,
            rewards[where],
            np.asarray(sample.turn_ids, np.int64)[where],
            np.asarray(sample.rollout_log_probs, np.float32)[where],
            np.asarray(sample.versions, np.int64)[where]
            if sample.versions
            else np.full(len(where), sample.policy_version, np.int64),
        )


def _rows_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Return indices of the samples of each trajectory, by segment; trajectories in order of appearance."""
    if not samples:
        raise AlignmentError("no samples: got an empty list, expected at least one trajectory to learn from")
    rows: dict[tuple[str, int], list[int]] = {}
    for i, sample in enumerate(samples):
        alone = i if not sample.trajectory_id else -1
        rows.setdefault((sample.trajectory_id, alone), []).append(i)
    return [sorted(members, key=lambda i: samples[i].segment) for members in rows.values()]


def _check_trajectory(segments: Sequence[Sample]) -> None:
    first = segments[0]
    if not first.trajectory_id:
        return
    numbers = [s.segment for s in segments]
    if numbers != list(range(len(segments))):
        raise AlignmentError(
            f"trajectory {first.trajectory_id} has the segments {numbers}, expected {list(range(len(segments)))}; "
            "give all samples of a trajectory to the same update, each once"
        )
    groups = {s.group_id for s in segments}
    if len(groups) > 1:
        raise AlignmentError(f"trajectory {first.trajectory_id} is in several groups: {sorted(groups)}; expected one")


def _check_turns(view: ResponseView) -> None:
    turns, mask = view.turn_ids, view.mask
    backwards = (turns[:, 1:] < turns[:, :-1]) & mask[:, 1:] | ((turns < 0) & mask)[:, 1:]
    bad = backwards.any(1) | ((turns[:, 0] < 0) & mask[:, 0])
    if bad.any():
        row = int(bad.nonzero()[0])
        got = turns[row][mask[row]].unique_consecutive().tolist()
        raise AlignmentError(
            f"trajectory {view.trajectory_ids[row]} has the turn ids {got} on its response tokens; expected numbers "
            "from 0 that never fall, segment after segment"
        )
