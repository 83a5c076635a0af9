"""Episodes that the run cuts, in an environment behind a server that tells its score at the end."""

from __future__ import annotations

import pytest

from tests.environments.remote.clicking import Clicking
from tests.environments.remote.test_faults import expect_failures, faulty_native, native, play
from uirl.inference import LoadedModel


def test_the_score_of_an_episode_that_the_run_cuts_comes_through_the_server(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Clicking` never ends: the run's limit does."""
    with faulty_native() as (url, _):
        assert [t.failure for t in play(lm, native(url))] == [None] * 3
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: (0.25, {"success": True}))
    with faulty_native() as (url, _):
        scored = play(lm, native(url))
    assert [(t.failure, t.turns[-1].reward, t.turns[-1].info["success"]) for t in scored] == [(None, 1.25, True)] * 3
    monkeypatch.setattr(Clicking, "score_now", lambda self: None)
    with faulty_native() as (url, _):
        expect_failures(play(lm, native(url)), "timeout", "its score was never known")


def test_a_server_without_the_question_for_a_score_is_played_as_before(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: (0.25, {}))
    with faulty_native() as (url, faulty):
        environment = native(url)
        environment._description[:] = [environment.description.model_copy(update={"scores_now": False})]
        expect_failures(play(lm, environment), "timeout", "its score was never known")
        assert faulty.count("/score") == 0


def test_a_score_that_is_none_is_a_failure_and_no_reward(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: ("much", {}))
    with faulty_native() as (url, _):
        expect_failures(play(lm, native(url)), "environment", "returned the reward")


def test_what_a_mistake_costs_is_known_at_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clicking, "mistake_reward", -1.5)
    with faulty_native() as (url, _):
        assert native(url).mistake_reward == -1.5
