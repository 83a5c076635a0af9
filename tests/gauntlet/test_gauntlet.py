"""`uirl check` names each planted fault, and blames nothing where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.gauntlet.faults import FAULTS, REFUSED
from uirl.cli.begin import path_of
from uirl.config import load_config
from uirl.errors import AlignmentError
from uirl.rollout.samples import samples_of
from uirl.training.checks import agreement
from uirl.training.checks.preflight import preflight
from uirl.types import Failure, Observation, Trajectory, Turn


def findings(*changes: str) -> dict[str, bool]:
    return {finding.what: finding.ok for finding in preflight(load_config(path_of("screen"), list(changes)))}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    said: Any = findings(*fault.changes)
    assert any(said.get(what) is False for what in fault.named_by), said


def test_nothing_is_blamed_without_a_fault() -> None:
    said = findings()
    assert all(said.values()), said
    assert {"what is learned from", "pictures"} <= said.keys()


def test_two_tokens_for_the_beginning_are_named() -> None:
    loaded = SimpleNamespace(tokenizer=SimpleNamespace(bos_token_id=1))
    parts: Any = SimpleNamespace(learner=SimpleNamespace(policy=SimpleNamespace(loaded=loaded)))
    once, twice = (Trajectory(turns=[Turn(Observation("x"), context_ids=ids)]) for ids in ((1, 5), (1, 1, 5)))
    assert not agreement._beginning(parts, [once])
    assert "two tokens for their beginning" in agreement._beginning(parts, [once, twice])


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_line_up_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    REFUSED[name](monkeypatch)
    with pytest.raises((AlignmentError, ValueError), match=r"must align|picture|placeholder"):
        findings()


def test_a_failed_episode_is_refused_as_a_reward_of_zero() -> None:
    """NeMo-RL#3470."""
    failed = Trajectory(
        turns=[Turn(Observation("x"), context_ids=(1,), response_ids=(2,))],
        failure=Failure("environment", "crashed", 1),
    )
    with pytest.raises(AlignmentError, match="is not evidence"):
        samples_of(failed)
