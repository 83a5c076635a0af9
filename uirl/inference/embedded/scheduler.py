"""Which requests run, and in which rows of the KV cache. Knows no model and imports no torch.

The words are those of vLLM's scheduler: a request is waiting, then running, then finished. Running sequences hold the
rows [0, running) of the cache. Behind them stand kept rows: what a finished turn left there for the next turn of its
episode. Nothing that runs is ever preempted: a request is admitted once its whole reply has room. Where rows or tokens
run out, kept rows are evicted, the oldest first, and then requests wait.

What prompts have in common is fed once while a row holds it: a prefix cache whose entries are the rows of episodes
under way, of these weights alone. Requests with one prompt (a group's first turn, the branches of a fork) that are
admitted together share what the first of them feeds. Where prompts only begin alike (system prompt, tools, examples),
the first is fed and the others are admitted a step later, with a copy of what its row begins with.

A scheduler of our own serves any HuggingFace model and keeps an episode's cache between its turns;
`benchmarks/engines.py` compares it with `generate` and with vLLM.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from uirl.images import Screenshot
from uirl.inference.base import GenerationRequest

ImageSpans = Callable[[Sequence[int], Sequence[Screenshot]], Sequence[tuple[int, int]]]
"""(prompt ids, images) -> the places [start, end) of each image's placeholders."""


Key = tuple[int, ...]
"""Token ids, each picture's first placeholder replaced by a number of what the picture shows."""


@dataclass(slots=True)
class FilledRow:
    """What a turn left in its row, or has there so far."""

    row: int
    key: Key
    """Of what was fed."""
    said: Key
    """The same, and what the turn sampled after it."""
    pictures: int
    shares: bool
    """All of it was computed by the weights that sample now: others may copy it."""
    next_position: int
    """Rotary position of the token that follows."""


def common(one: Key, other: Key) -> int:
    """Return how many leading tokens are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def rows_for_admission(running: int, kept: Sequence[int | None], others: Set[int]) -> tuple[list[int], dict[int, int]]:
    """Return (row of each admitted sequence, moves) so that the admitted take rows [running, running + len(kept)).

    `kept`: the row that each admitted sequence kept, None where it has none; `others`: rows that waiting episodes
    keep, which make way. Moves are {from: to}, all at once.
    """
    region = range(running, running + len(kept))
    rows = [row if row is not None and row in region else -1 for row in kept]
    free = [row for row in region if row not in rows]
    moves: dict[int, int] = {}
    vacated: list[int] = []
    for i, row in enumerate(kept):
        if rows[i] < 0:
            rows[i] = free.pop(0)
            if row is not None:
                moves[row] = rows[i]
                vacated.append(row)
    spare = (row for row in range(region.stop, region.stop + len(others) + len(kept) + 1) if row not in others)
    taken = {row for row in vacated if row >= region.stop}
    for row in sorted(r for r in others if r in region):
        moves[row] = vacated.pop() if vacated else next(r for r in spare if r not in taken)
    return rows, moves


def rows_for_retirement(remaining: Sequence[int], finished: Sequence[int]) -> dict[int, int]:
    """Return the moves {from: to} that close the running rows: sequences beyond the new end exchange rows with
    finished ones before it."""
    end = len(remaining)
    beyond = [row for row in remaining if row >= end]
    before = [row for row in finished if row < end]
    return dict(zip(beyond, before, strict=True)) | dict(zip(before, beyond, strict=True))


def rows_side_by_side(rows: Sequence[int], first: int) -> list[int]:
    """Return where `rows` go so that they take [first, first + len(rows)); those that are there stay."""
    end = first + len(rows)
    free = (row for row in range(first, end) if row not in rows)
    return [row if row < end else next(free) for row in rows]


WORTH_SHARING = 64
"""Tokens that a prompt must have in common with a row for a copy of them, and with one that is about to be fed, beyond
what rows have, to wait a step for it. What is all of a prompt is always copied."""
AHEAD = 1024
"""Tokens of a reply that the cache has room for from the start; it grows with one that is longer, so that what a reply
may take costs nothing before it takes it."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds a batch."""

    max_running: int
    """Sequences that run at once, and rows of the cache."""
    max_context: int
    """Tokens of prompt and reply together."""
    max_prefill_tokens: int = 16384
    """Tokens that are fed together, padding included: sequences x the longest of what they feed. One may have more."""
    max_cached_tokens: int = 2**62
    """Tokens that the cache holds: rows x the longest sequence that may stand in one."""


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request on its way: what was sampled so far, and the row that holds its keys and values."""

    request: GenerationRequest
    spans: Sequence[tuple[int, int]] = ()
    """The places [start, end) of its pictures."""
    policy_version: int = -1
    """Of the weights that sample its first token; -1: it still waits."""
    row: int = -1
    cached: int = 0
    """Leading tokens whose keys and values are in the row."""
    reused: int = 0
    """Of these, the tokens that an earlier turn left there, or that were copied from another row."""
    twin: SequenceState | None = None
    """Admitted with it and fed the same prompt: its row and its logits are copied."""
    next_position: int = 0
    """Rotary position of the next token; pictures make it differ from the number of tokens."""
    continues: FilledRow | None = None
    """The whole row that it goes on from: position and pictures of what is cached are known. None: they are not."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    uniforms: random.Random = field(init=False)
    """Draws the tokens, one number each, from the seed of the request."""
    aborted: bool = False
    stale: bool = False
    """The weights changed while it ran: its row serves no other turn."""
    shares: bool = True
    """All of its row was computed by the weights that sample now: others may copy it."""
    key: Key = field(init=False)
    """Of its prompt."""

    def __post_init__(self) -> None:
        self.uniforms = random.Random(self.request.sampling.seed)
        self.key = self.request.prompt_ids
        if self.spans:
            marked = list(self.key)
            for image, (start, _) in zip(self.request.images, self.spans, strict=True):
                marked[start] = -1 - int(image.hash, 16)
            self.key = tuple(marked)

    def reusable(self, row: FilledRow) -> int:
        """Return how many leading tokens of a row serve: at most all but the last of the prompt, never a part of a
        picture. Of a row that older weights filled, in part or whole, none unless it goes on from all of it, in one
        sample with it: they would count as sampled by the weights of now."""
        goes_on = not self.request.starts_segment and self.key[: len(row.said)] == row.said
        if not (row.shares or goes_on):
            return 0
        served = min(common(row.key, self.key), len(self.key) - 1)
        return next((start for start, end in self.spans if start < served < end), served)

    @property
    def uncached(self) -> int:
        """Prompt tokens that prefill has to feed."""
        return len(self.request.prompt_ids) - self.cached

    def longest(self, max_context: int) -> int:
        """Return the tokens that prompt and reply may take."""
        return min(len(self.request.prompt_ids) + self.request.sampling.max_tokens, max_context)

    def room(self, max_context: int) -> int:
        """Return the tokens that its row should have room for now."""
        ahead = min(self.request.sampling.max_tokens, max(AHEAD, len(self.tokens) + 1))
        return min(len(self.request.prompt_ids) + ahead, max_context)


@dataclass(frozen=True, slots=True)
class Admission:
    """Sequences that begin to run, and what the cache has to do before."""

    sequences: list[SequenceState]
    """In the order of their rows, which follow those that run already."""
    moves: dict[int, int]
    """Rows that change places, {from: to}, all at once."""
    copies: dict[int, tuple[int, int]]
    """Rows that begin as another one does, once the moves are done: {to: (from, tokens)}."""
    rows: int
    """Rows that are in use afterwards."""
    length: int
    """Tokens that each row should have room for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Sequences that ended with a step, and what the cache has to do then."""

    sequences: list[tuple[SequenceState, str]]
    """With the reason: 'stop', 'length' or 'abort'."""
    moves: dict[int, int]
    """Rows that change places, {from: to}, all at once."""


class Prefixes:
    """Rows in the order of their keys: beside the place of a prompt stands one that begins most like it."""

    def __init__(self, rows: Iterable[FilledRow]) -> None:
        self._rows = sorted((row for row in rows if row.shares), key=lambda row: row.key)
        self._keys = [row.key for row in self._rows]

    def begin(self, sequence: SequenceState) -> tuple[FilledRow | None, int]:
        """Return a row to copy, and how many leading tokens of the prompt it has; None and 0: none is worth it."""
        at = bisect(self._keys, sequence.key)
        beside = self._rows[max(at - 1, 0) : at + 1]
        row, tokens = max(
            ((row, sequence.reusable(row)) for row in beside), key=lambda found: found[1], default=(None, 0)
        )
        worth = tokens >= WORTH_SHARING or 0 < tokens == len(sequence.key) - 1
        return (row, tokens) if worth else (None, 0)


def _begins_as(key: Key, others: Iterable[Key], tokens: int) -> bool:
    """Return whether so many leading tokens of a prompt, which has more, are those of another."""
    begin = key[:tokens]
    return len(key) > tokens and any(other[:tokens] == begin for other in others)


def _filled(sequence: SequenceState) -> FilledRow:
    """Return what a sequence has in its row so far."""
    said = sequence.key + tuple(sequence.tokens)
    pictures = len(sequence.request.images)
    return FilledRow(sequence.row, said[: sequence.cached], said, pictures, sequence.shares, sequence.next_position)


class Scheduler:
    """Admits waiting requests, follows the running ones, and keeps the rows of episodes between their turns.

    `end_ids`: tokens that end every reply. `keep_rows`: a finished turn leaves its row to the next turn of its
    session, and a row may be copied to others with the same prompt. `image_spans`: where the pictures of a prompt
    stand; None for a text model.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        end_ids: Iterable[int],
        keep_rows: bool = True,
        image_spans: ImageSpans | None = None,
    ) -> None:
        self.limits = limits
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        """In the order of their rows, [0, running)."""
        self.held = False
        """True: waiting requests are not admitted."""
        self._end_ids = frozenset(end_ids)
        self._keep_rows, self._image_spans = keep_rows, image_spans
        self._kept: OrderedDict[str, FilledRow] = OrderedDict()
        """Session -> its row, the oldest first."""

    @property
    def has_work(self) -> bool:
        """Whether any request runs, or waits and may be admitted."""
        return bool(self.running or (self.waiting and not self.held))

    @property
    def is_empty(self) -> bool:
        """Whether no request runs or waits and no row is kept: nothing in the cache will be read again."""
        return not (self.running or self.waiting or self._kept)

    def add(self, request: GenerationRequest) -> SequenceState:
        """Put a request behind those that wait. Raises what `image_spans` raises for a prompt without its pictures."""
        spans = self._image_spans(request.prompt_ids, request.images) if self._image_spans and request.images else ()
        sequence = SequenceState(request, spans)
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: SequenceState) -> None:
        """Give a sequence up: it leaves the queue now, or its row after the next token."""
        sequence.aborted = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def release(self, session_id: str) -> None:
        """Forget the row of a session. Unknown ids are fine."""
        self._kept.pop(session_id, None)

    def forget_rows(self) -> None:
        """Forget what older weights computed: kept rows now, the rows of running sequences when these end."""
        self._kept.clear()
        for sequence in self.running:
            sequence.stale = True

    def stop_sharing(self) -> None:
        """Let no row that is there now be copied: other weights sample from here on."""
        for sequence in self.running:
            sequence.shares = False
        for row in self._kept.values():
            row.shares = False

    def clear(self) -> list[SequenceState]:
        """Empty everything; return what was waiting or running."""
        sequences = [*self.waiting, *self.running]
        self.waiting.clear()
        self.running.clear()
        self._kept.clear()
        return sequences

    # -- admit -------------------------------------------------------------------------------------------------

    def admit(self, policy_version: int) -> Admission | None:
        """Move waiting requests to the running as far as rows and the prefill budget allow; None where none can.

        `policy_version`: of the weights that sample from now on. Each request gets a row right behind the
        running ones, its own kept row where it has one.
        """
        admitted = [] if self.held else self._within_budget()
        if not admitted:
            return None
        first = len(self.running)
        if self._keep_rows:
            self._pair(admitted)
        # twins behind the others: what is fed stands side by side
        admitted.sort(key=lambda s: s.twin is not None)
        kept = [self._kept.pop(s.request.session_id or "", None) for s in admitted]
        while self._kept and not self._fits(admitted):
            self._kept.popitem(last=False)
        others = {each.row: each for each in self._kept.values()}
        rows, moves = rows_for_admission(first, [each.row if each else None for each in kept], set(others))
        for sequence, row, left in zip(admitted, rows, kept, strict=True):
            sequence.row, sequence.policy_version = row, policy_version
            if left is not None:
                self._take_over(sequence, left)
        for row, other in others.items():
            other.row = moves.get(row, row)
        if others and not self._holds(1 + max(other.row for other in others.values()), self._longest(admitted)):
            dense = rows_side_by_side([other.row for other in others.values()], first + len(admitted))
            for (row, other), place in zip(others.items(), dense, strict=True):
                moves[row] = other.row = place
        copies = self._copies(admitted) if self._keep_rows else {}
        admitted.sort(key=lambda s: s.row)
        self.running += admitted
        rooms = [sequence.room(self.limits.max_context) for sequence in self.running]
        longest = max((*rooms, *(len(each.key) for each in self._kept.values())))
        used = max(len(self.running), 1 + max((each.row for each in self._kept.values()), default=0))
        return Admission(admitted, moves, copies, used, longest)

    def _within_budget(self) -> list[SequenceState]:
        """Take requests from the queue, in order, as far as what they feed and what they may hold has room. A prompt
        that several of them have is fed once; one that begins as another of them does waits for it."""
        taken: list[SequenceState] = []
        prompts: set[Key] = set()
        widest = 0
        longest = max((s.longest(self.limits.max_context) for s in self.running), default=0) if self.waiting else 0
        there: Prefixes | None = None
        while self.waiting and len(self.running) + len(taken) < self.limits.max_running:
            following = self.waiting[0]
            fed, several = widest, following.key in prompts
            if not (self._keep_rows and several):
                served = self._served(following)
                if self._keep_rows and not served:
                    there = there or Prefixes(map(_filled, self.running))  # these stay; kept ones may make way
                    _, served = there.begin(following)
                    if _begins_as(following.key, prompts, served + WORTH_SHARING):
                        break
                fed = max(widest, len(following.key) - served)
            held = max(longest, following.longest(self.limits.max_context))
            rows = len(prompts) + (not several) if self._keep_rows else len(taken) + 1
            if taken and rows * fed > self.limits.max_prefill_tokens:
                break
            if not self._holds(len(self.running) + len(taken) + 1, held):
                break
            prompts.add(following.key)
            taken.append(self.waiting.popleft())
            widest, longest = fed, held
        return taken

    def _served(self, sequence: SequenceState) -> int:
        """Return how many leading tokens of a waiting request its session's row has."""
        row = self._kept.get(sequence.request.session_id or "")
        return 0 if row is None else sequence.reusable(row)

    def _holds(self, rows: int, longest: int) -> bool:
        """Return whether the cache has room for so many rows of so many tokens; for one it always has."""
        return rows <= 1 or rows * longest <= self.limits.max_cached_tokens

    def _fits(self, admitted: Sequence[SequenceState]) -> bool:
        """Return whether all kept rows have a place behind those that run and those that begin to."""
        rows = len(self.running) + len(admitted) + len(self._kept)
        return rows <= self.limits.max_running and self._holds(rows, self._longest(admitted))

    def _longest(self, admitted: Sequence[SequenceState]) -> int:
        """Return the tokens that any row may come to hold."""
        runs = (sequence.longest(self.limits.max_context) for sequence in (*self.running, *admitted))
        return max((*runs, *(len(each.key) for each in self._kept.values())))

    def _pair(self, admitted: Sequence[SequenceState]) -> None:
        """Give each sequence without a row of its own the first one that was admitted with the same prompt."""
        first: dict[Key, SequenceState] = {}
        for sequence in admitted:
            if sequence.request.session_id in self._kept:
                continue
            other = first.setdefault(sequence.key, sequence)
            if other is not sequence:
                sequence.twin = other
                sequence.cached = sequence.reused = len(sequence.request.prompt_ids)

    def _take_over(self, sequence: SequenceState, left: FilledRow) -> None:
        """Let a sequence begin with what an earlier turn left in its row."""
        sequence.cached = sequence.reused = sequence.reusable(left)
        sequence.continues = left if sequence.cached == len(left.key) else None
        if sequence.cached:
            sequence.shares = left.shares

    def _copies(self, admitted: Sequence[SequenceState]) -> dict[int, tuple[int, int]]:
        """Let sequences that have nothing yet begin with a copy of what a row has of their prompt; return {to: (from,
        tokens)}."""
        fresh = [sequence for sequence in admitted if not sequence.cached]
        there = Prefixes(self._rows() if fresh else ())
        copies = {}
        for sequence in fresh:
            row, served = there.begin(sequence)
            if row is not None:
                sequence.cached = sequence.reused = served
                copies[sequence.row] = (row.row, served)
        return copies

    def _rows(self) -> list[FilledRow]:
        """Return what the rows of running and kept sequences hold."""
        return [*map(_filled, self.running), *self._kept.values()]

    # -- finish ------------------------------------------------------------------------------------------------

    def append(self, sequences: Sequence[SequenceState], tokens: Sequence[int], log_probs: Sequence[float]) -> Finished:
        """Add one sampled token to each of `sequences`, and take those that end with it out of the running."""
        finished: list[tuple[SequenceState, str]] = []
        for sequence, token, log_prob in zip(sequences, tokens, log_probs, strict=True):
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            reason = self._finish_reason(sequence)
            if reason is not None:
                finished.append((sequence, reason))
        return Finished(finished, self._retire(finished) if finished else {})

    def _finish_reason(self, sequence: SequenceState) -> str | None:
        params, last = sequence.request.sampling, sequence.tokens[-1]
        if last in self._end_ids or last in params.stop_token_ids:
            return "stop"
        if len(sequence.tokens) >= params.max_tokens or sequence.cached + 1 >= self.limits.max_context:
            return "length"
        return "abort" if sequence.aborted else None

    def _retire(self, finished: list[tuple[SequenceState, str]]) -> dict[int, int]:
        """Return the moves that close the running rows; rows of sessions are kept behind them."""
        gone = {sequence for sequence, _ in finished}
        remaining = [s for s in self.running if s not in gone]
        moves = rows_for_retirement([s.row for s in remaining], [s.row for s, _ in finished])
        for sequence in self.running:
            sequence.row = moves.get(sequence.row, sequence.row)
        self.running = sorted(remaining, key=lambda s: s.row)
        for sequence, reason in finished:
            request = sequence.request
            if self._keep_rows and request.session_id and reason != "abort" and not sequence.stale:
                self._kept[request.session_id] = _filled(sequence)
        return moves
