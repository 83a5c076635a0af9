"""The ledger: one account for every episode."""

from __future__ import annotations

import pytest

from uirl.errors import LedgerError
from uirl.training.record.ledger import Ledger


def test_every_episode_ends_in_one_account():
    ledger = Ledger()
    ledger.order(["a", "b", "c", "d", "e"])
    ledger.train(["a", "b"])
    ledger.drop(["c"], "stale")
    ledger.fail("d", "environment")
    ledger.require_balance({"e"})
    assert ledger.words() == ("5 ordered: 2 trained, 1 dropped (stale 1), 1 failed (environment 1), 1 in flight")
    assert ledger.report() == {
        **{"ordered": 5, "trained": 2, "dropped": {"stale": 1}, "failed": {"environment": 1}},
        **{"in_flight": 1, "balanced": True},
    }
    accounts = {"ordered": 5, "trained": 2, "dropped": 1, "failed": 1, "in_flight": 1}
    why = {"dropped/stale": 1, "failed/environment": 1}
    assert ledger.row() == {f"ledger/{name}": count for name, count in (accounts | why).items()}
    assert Ledger.from_dict(ledger.to_dict()) == ledger


@pytest.mark.parametrize(
    ("book", "words"),
    [
        (lambda ledger: ledger.train(["a"]), "cannot be booked as trained"),
        (lambda ledger: ledger.drop(["never"], "stale"), "dropped .stale.: it is not in flight"),
        (lambda ledger: ledger.fail("a", "engine"), "failed .engine."),
        (lambda ledger: ledger.order(["b"]), "ordered twice"),
    ],
)
def test_nothing_is_booked_twice_or_from_nowhere(book, words):
    ledger = Ledger()
    ledger.order(["a", "b"])
    ledger.train(["a"])
    with pytest.raises(LedgerError, match=words):
        book(ledger)


@pytest.mark.parametrize(
    ("held", "words"),
    [(set(), "1 in flight are held by nobody, such as b"), ({"b", "x"}, "1 are held and not in flight, such as x")],
)
def test_what_is_in_flight_must_be_held_by_somebody(held, words):
    ledger = Ledger()
    ledger.order(["a", "b"])
    ledger.train(["a"])
    with pytest.raises(LedgerError, match=words):
        ledger.require_balance(held)


def test_a_sum_that_is_wrong_stops_the_run_with_the_difference():
    ledger = Ledger()
    ledger.order(["a", "b"])
    ledger.ordered += 3
    with pytest.raises(LedgerError, match=r"\+3 episodes are in no account"):
        ledger.require_balance({"a", "b"})
    assert not ledger.report()["balanced"]
