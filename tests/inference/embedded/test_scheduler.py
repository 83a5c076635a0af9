"""Who runs, in which row, and what a finished turn leaves to the next: without a model, and without torch."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.patience import PATIENCE
from uirl.inference.base import GenerationRequest, SamplingParams
from uirl.inference.embedded.scheduler import AHEAD, Admission, Scheduler, SchedulerLimits, SequenceState

END = 1


def scheduler(running: int = 4, context: int = 100, prefill: int = 1000, **options: Any) -> Scheduler:
    return Scheduler(SchedulerLimits(running, context, prefill), end_ids=(END,), **options)


def request(*ids: int, session: str | None = None, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(ids, (), SamplingParams(**sampling), session)


def admitted(scheduler: Scheduler, version: int = 0) -> Admission:
    """What a step admits."""
    admission = scheduler.admit(version)
    assert admission is not None
    return admission


def prefilled(scheduler: Scheduler) -> list[SequenceState]:
    """The sequences that a step admits, their prompts in the cache; the runner does this."""
    admission = admitted(scheduler)
    for sequence in admission.sequences:
        sequence.cached = len(sequence.request.prompt_ids)
    return admission.sequences


def sample(scheduler: Scheduler, sequences: list[SequenceState], *tokens: int) -> dict[SequenceState, str]:
    """Why sequences ended that got one token each."""
    return dict(scheduler.append(sequences, tokens, [-0.5] * len(tokens)).sequences)


def play(scheduler: Scheduler, request: GenerationRequest, *reply: int) -> SequenceState:
    """A turn that runs alone: `reply` is what is sampled."""
    sequence = scheduler.add(request)
    prefilled(scheduler)
    for number, token in enumerate(reply):
        sequence.cached += number > 0
        sample(scheduler, [sequence], token)
    assert not scheduler.has_work
    return sequence


def test_the_scheduler_loads_no_torch() -> None:
    # the package itself names engines that load it; its scheduler alone must do without
    code = """
import sys, types, pathlib, uirl
package = types.ModuleType("uirl.inference")
package.__path__ = [str(pathlib.Path(uirl.__file__).parent / "inference")]
sys.modules["uirl.inference"] = package
import uirl.inference.embedded.scheduler
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_requests_are_admitted_in_order_while_rows_last() -> None:
    waiting = scheduler(running=2)
    first, second, third = (waiting.add(request(10 + i)) for i in range(3))
    assert prefilled(waiting) == [first, second]
    assert (waiting.running, list(waiting.waiting)) == ([first, second], [third])
    assert waiting.admit(0) is None
    assert sample(waiting, [first, second], END, 20) == {first: "stop"}
    assert prefilled(waiting) == [third]
    assert [s.row for s in (second, third)] == [0, 1]


@pytest.mark.parametrize(
    ("sampling", "token", "reason"),
    [
        ({}, END, "stop"),
        ({"stop_token_ids": (7,)}, 7, "stop"),
        ({}, 7, None),
        ({"max_tokens": 1}, 7, "length"),
        ({"max_tokens": 1}, END, "stop"),
    ],
)
def test_a_reply_ends_with_an_end_token_or_its_limit(sampling: dict, token: int, reason: str | None) -> None:
    one = scheduler()
    sequence = one.add(request(10, 11, **sampling))
    prefilled(one)
    assert sample(one, [sequence], token).get(sequence) == reason
    assert one.has_work == (reason is None)


def test_what_is_fed_together_is_bounded_with_its_padding_but_one_prompt_always_is() -> None:
    one = scheduler(running=8, prefill=12)
    short = [one.add(request(10 + i, 11)) for i in range(3)]
    others = [one.add(request(*range(10 + i, 10 + i + n))) for i, n in enumerate((7, 13, 2))]
    assert prefilled(one) == short, "4 x 7 tokens are more than 12"
    assert [prefilled(one) for _ in others] == [[each] for each in others]


def test_what_a_session_has_in_its_row_is_not_fed_again_and_does_not_count() -> None:
    one = scheduler(running=4, prefill=4)
    for number in range(2):
        play(one, request(*range(10 + number, 20 + number), session=f"s{number}"), END)
    following = [one.add(request(*range(10 + i, 20 + i), 1, session=f"s{i}")) for i in range(2)]
    assert set(prefilled(one)) == set(following), "each feeds 1 of 11 tokens"
    one = scheduler(running=4, prefill=4)
    for number in range(2):
        play(one, request(*range(10 + number, 20 + number), session=f"s{number}"), END)
    rewritten = [one.add(request(9, *range(30 + i, 33 + i), session=f"s{i}")) for i in range(2)]
    assert prefilled(one) == rewritten[:1], "each feeds 4"


def pool(tokens: int, running: int = 8) -> Scheduler:
    return Scheduler(SchedulerLimits(running, 100, max_cached_tokens=tokens), end_ids=(END,))


def test_requests_wait_until_the_cache_has_room_for_their_whole_reply() -> None:
    one = pool(50)
    first, second, third = (one.add(request(10 + i, 11, max_tokens=18)) for i in range(3))
    assert prefilled(one) == [first, second], "2 rows of 20"
    sample(one, [first, second], 7, END)
    assert prefilled(one) == [third]
    long = one.add(request(*range(10, 40), max_tokens=5))
    assert one.admit(0) is None, "3 rows of 35"
    sample(one, [first, third], END, END)
    assert prefilled(one) == [long]


def test_kept_rows_make_way_for_what_runs_the_oldest_first() -> None:
    one = pool(40)
    for number in range(3):
        play(one, request(10 + number, 11, session=f"s{number}", max_tokens=6), END)
    assert list(one._kept) == ["s0", "s1", "s2"]
    one.add(request(20, 21, max_tokens=11))
    admission = admitted(one)
    assert list(one._kept) == ["s1", "s2"], "3 rows of 13"
    assert admission.rows * admission.length <= 40


def test_a_reply_ends_where_the_context_does() -> None:
    one = scheduler(context=4)
    sequence = one.add(request(10, 11))
    prefilled(one)
    assert sample(one, [sequence], 20) == {}
    sequence.cached += 1
    assert sample(one, [sequence], 21) == {sequence: "length"}
    assert sequence.tokens == [20, 21]


def test_an_aborted_sequence_leaves_the_queue_or_its_row() -> None:
    one = scheduler(running=1)
    running, waiting = one.add(request(10, session="s")), one.add(request(11))
    prefilled(one)
    one.abort(waiting)
    assert not one.waiting
    one.abort(running)
    assert sample(one, [running], 20) == {running: "abort"}
    assert not one.has_work
    assert not one._kept


def test_the_next_turn_takes_over_what_is_equal_and_feeds_at_least_one_token() -> None:
    for following, reused in (
        ((10, 11, 20, 1, 30), 3),  # the last sampled token was never fed
        ((10, 11, 20), 2),
        ((10, 99, 20, 1, 30), 1),
        ((99,), 0),
    ):
        one = scheduler()
        play(one, request(10, 11, session="s"), 20, END)
        again = one.add(request(*following, session="s"))
        one.admit(0)
        assert (again.cached, again.reused, again.uncached) == (reused, reused, len(following) - reused)


def test_a_row_is_kept_only_for_a_session_that_goes_on() -> None:
    for options, session in (({"keep_rows": False}, "s"), ({}, None)):
        one = scheduler(**options)
        play(one, request(10, session=session), END)
        assert not one._kept
    released = scheduler()
    play(released, request(10, session="s"), END)
    assert list(released._kept) == ["s"]
    released.release("s")
    released.release("another")
    assert not released._kept


def test_rows_that_older_weights_filled_are_forgotten() -> None:
    one = scheduler()
    play(one, request(10, session="before"), END)
    running = one.add(request(11, session="during"))
    prefilled(one)
    one.forget_rows()
    assert sample(one, [running], END) == {running: "stop"}
    assert not one._kept


def test_where_rows_run_out_the_oldest_kept_one_goes() -> None:
    one = scheduler(running=3)
    for number in range(3):
        play(one, request(10 + number, session=f"s{number}"), END)
    one.add(request(20))
    one.admit(0)
    assert list(one._kept) == ["s1", "s2"]


def spans(ids: Any, images: Any) -> list[tuple[int, int]]:
    """Every picture takes 3 placeholders, which are 9."""
    starts = [i for i, token in enumerate(ids) if token == 9][::3]
    return [(start, start + 3) for start in starts[: len(images)]]


@pytest.mark.parametrize(
    ("following", "pictures", "reused"),
    [
        ((10, 9, 9, 9, 11, 1, 30), [1], 5),
        ((10, 9, 9, 9, 11, 1, 9, 9, 9), [1, 2], 5),
        ((10, 9, 9, 9, 11, 1, 30), [2], 1),  # another picture
        ((10, 9, 9), [], 1),
        ((10, 9, 9, 9), [1], 1),  # the last token is fed, and with it its whole picture
    ],
)
def test_pictures_are_taken_over_whole_and_unchanged(following: tuple, pictures: list[int], reused: int) -> None:
    one = scheduler(image_spans=spans)
    play(one, replace(request(10, 9, 9, 9, 11, session="s"), images=(picture(1),)), END)
    images = tuple(picture(number) for number in pictures)
    again = one.add(replace(request(*following, session="s"), images=images))
    one.admit(0)
    assert again.cached == reused


def test_what_the_cache_must_hold_is_said_with_the_admission() -> None:
    one = scheduler(context=10**6)
    one.add(request(*range(10, 15), max_tokens=7))
    one.add(request(*range(10, 13), max_tokens=10**9))
    admission = admitted(one)
    assert (admission.rows, admission.length) == (2, 3 + AHEAD)


def test_a_seed_draws_the_same_numbers_wherever_it_runs() -> None:
    one, other = (SequenceState(request(10, seed=5)) for _ in range(2))
    assert [one.uniforms.random() for _ in range(3)] == [other.uniforms.random() for _ in range(3)]
    unseeded = [SequenceState(request(10)).uniforms.random() for _ in range(2)]
    assert unseeded[0] != unseeded[1]


class FakeCache:
    """Rows that hold token ids in place of keys and values."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}

    def move(self, moves: dict[int, int]) -> None:
        self.rows |= {to: self.rows.get(source, []) for source, to in moves.items()}

    def copy(self, copies: dict[int, tuple[int, int]]) -> None:
        self.rows |= {to: self.rows[source][:tokens] for to, (source, tokens) in copies.items()}

    def feed(self, sequence: SequenceState, tokens: list[int]) -> None:
        self.rows[sequence.row] = self.rows.get(sequence.row, [])[: sequence.cached] + tokens
        sequence.cached += len(tokens)


@pytest.mark.parametrize("tokens", [2**62, 120])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_always_finds_its_own_tokens_in_its_row(
    seed: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uirl.inference.embedded.scheduler.WORTH_SHARING", 2 + 62 * (seed % 2))
    rng = random.Random(seed)
    limits = SchedulerLimits(rng.randint(4, 12), 100, 60, tokens)
    one, cache = Scheduler(limits, end_ids=(END,)), FakeCache()
    # three to a group: the same prompt at first, and again whenever an episode begins anew; all begin alike
    histories: dict[str, list[int]] = {f"s{i}": [10, 11, 12] + [10 + i // 3] * 2 for i in range(9)}
    idle, reused, copied, twins = list(histories), 0, 0, 0

    def feed(sequences: list[SequenceState]) -> None:
        for sequence in sequences:
            ids = [*sequence.request.prompt_ids, *sequence.tokens]
            assert cache.rows.get(sequence.row, [])[: sequence.cached] == ids[: sequence.cached]
            cache.feed(sequence, ids[sequence.cached :])

    def draw(sequences: list[SequenceState]) -> None:
        drawn = [END if rng.random() < 0.1 else rng.randint(2, 9) for _ in sequences]
        finished = one.append(sequences, drawn, [0.0] * len(drawn))
        cache.move(finished.moves)
        assert [s.row for s in one.running] == list(range(len(one.running)))
        assert len(one.running) + len(one._kept) <= one.limits.max_running
        for sequence, _ in finished.sequences:
            histories[str(sequence.request.session_id)] = [*sequence.request.prompt_ids, *sequence.tokens]
            idle.append(str(sequence.request.session_id))

    for _ in range(300):
        while idle and rng.random() < 0.5:
            session = idle.pop(rng.randrange(len(idle)))
            history = histories[session]
            if len(history) > 25:  # another episode
                one.release(session)
                ids = tuple(history[:5])
            elif rng.random() < 0.1:  # it is rewritten
                ids = (*history[:2], 99, rng.randint(40, 60))
            else:
                ids = (*history, rng.randint(40, 60)) if len(history) > 5 else tuple(history)
            one.add(GenerationRequest(ids, (), SamplingParams(max_tokens=rng.randint(1, 9)), session))
        if (admission := one.admit(0)) is not None:
            assert admission.rows * max(s.longest(100) for s in one.running) <= tokens
            cache.move(admission.moves)
            cache.copy(admission.copies)
            fed = [sequence for sequence in admission.sequences if sequence.twin is None]
            copied += len(admission.copies)
            twins += len(admission.sequences) - len(fed)
            reused += sum(sequence.reused for sequence in fed)
            feed(fed)
            cache.copy({s.row: (s.twin.row, s.cached) for s in admission.sequences if s.twin is not None})
            feed([sequence for sequence in admission.sequences if sequence.twin is not None])
            draw(admission.sequences)
        feed(one.running)
        draw(one.running)
    assert min(reused, copied + twins) > 0


def test_what_prompts_begin_with_is_fed_once_and_the_others_wait_a_step_for_it() -> None:
    begin = tuple(range(100, 180))
    one = scheduler(running=8, context=1000)
    short = one.add(request(10, 11))
    first, other, member, last = (one.add(request(*begin, *own)) for own in ((1, 2), (3,), (3,), (1, 4, 5)))
    assert prefilled(one) == [short, first]
    admission = admitted(one)
    assert admission.sequences == [other, last, member]
    assert admission.copies == {other.row: (first.row, 80), last.row: (first.row, 81)}
    assert (other.cached, member.twin, last.uncached) == (80, other, 2)
    late = one.add(request(*begin[:70], 7, 7))
    nothing = one.add(request(*begin[:63], 8, 8))
    admission = admitted(one)
    assert admission.sequences == [late, nothing], "63 tokens are not worth it"
    assert (late.cached, nothing.cached) == (70, 0)


def test_what_is_copied_is_not_counted_as_fed() -> None:
    begin = tuple(range(100, 180))
    one = scheduler(running=8, context=1000, prefill=90)
    first, *others = (one.add(request(*begin, 10 + i)) for i in range(5))
    assert prefilled(one) == [first]
    assert prefilled(one) == others


def test_one_prompt_is_fed_once_for_all_that_are_admitted_with_it() -> None:
    one = scheduler(running=8, prefill=5)
    members = [one.add(request(10, 11, 12, 13, session=f"s{i}")) for i in range(3)]
    other = one.add(request(10, 11, 12, 14))
    assert [s.twin for s in prefilled(one)] == [None, members[0], members[0]], "one prompt counts once in the budget"
    assert [s.reused for s in members] == [0, 4, 4]
    assert prefilled(one) == [other]
    assert other.twin is None


def test_who_comes_later_copies_the_row_of_one_with_its_prompt() -> None:
    one = scheduler(running=8)
    first = one.add(request(10, 11, 12, session="first"))
    prefilled(one)
    second = one.add(request(10, 11, 12, session="second"))
    admission = admitted(one)
    assert (admission.copies, second.cached, second.uncached) == ({second.row: (first.row, 2)}, 2, 1)


def test_a_row_is_copied_from_one_that_runs_or_is_kept_at_a_later_turn() -> None:
    one = scheduler(running=8)
    play(one, request(10, 11, 12, session="first"), 20, END)
    play(one, request(10, 11, 12, 20, 1, 30, session="first"), 21, END)
    late = one.add(request(10, 11, 12, session="late"))
    admission = admitted(one)
    ((to, (source, tokens)),) = admission.copies.items()
    assert (to, tokens, late.cached) == (late.row, 2, 2)
    assert source != to
    assert list(one._kept) == ["first"]


def test_no_row_of_other_weights_is_copied() -> None:
    for drop in (True, False):
        one = scheduler(running=8)
        play(one, request(10, 11, 12, session="kept"), 20, END)
        running = one.add(request(10, 11, 12, 13))
        prefilled(one)
        one.stop_sharing()
        if drop:
            one.forget_rows()
        late = [one.add(request(10, 11, 12)), one.add(request(10, 11, 12, 13))]
        admission = admitted(one, 1)
        assert (admission.copies, [s.cached for s in late]) == ({}, [0, 0])
        # a turn that goes on from an old row may not be copied either
        if not drop:
            again = one.add(request(10, 11, 12, 20, 1, 30, session="kept"))
            prefilled(one)
            assert (again.cached > 0, again.shares) == (True, False)
        assert not running.shares


def test_another_picture_is_another_prompt() -> None:
    one = scheduler(running=8, image_spans=spans)
    shown = [replace(request(10, 9, 9, 9, 11, session=f"s{n}"), images=(picture(n),)) for n in (1, 2, 1)]
    first, other, same = (one.add(each) for each in shown)
    prefilled(one)
    assert [s.twin for s in (first, other, same)] == [None, None, first]
    late = one.add(replace(shown[1], session_id="late"))
    admission = admitted(one)
    assert admission.copies == {late.row: (other.row, 4)}


def test_nothing_is_shared_where_no_rows_are_kept() -> None:
    one = scheduler(running=8, keep_rows=False)
    members = [one.add(request(10, 11, 12)) for _ in range(2)]
    prefilled(one)
    members.append(one.add(request(10, 11, 12)))
    admission = admitted(one)
    assert [s.twin for s in members] == [None] * 3
    assert (admission.copies, members[2].cached) == ({}, 0)
