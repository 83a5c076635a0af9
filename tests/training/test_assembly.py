"""A config becomes the parts of a run: every number arrives where it is used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import cold, settings
from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.rollout.collector import Collector
from uirl.training.assembly import Assembly, assemble, sampling_of


def parts_of(folder: Path, **changes: object) -> Assembly:
    config = settings(folder)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    return assemble(config, Countdown())


def test_sampling_is_that_of_the_config_and_the_temperature_can_be_another(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.inference.max_tokens, config.inference.temperature = 7, 0.75
    config.inference.top_p, config.inference.top_k = 0.5, 9
    sampling = sampling_of(config.inference)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.75, 0.5, 9)
    assert sampling_of(config.inference, 0.25).temperature == 0.25
    assert sampling_of(config.inference, 0.0).temperature == 0.0, "greedy is a temperature, not a missing one"


def test_the_collector_has_the_limits_of_the_config(tmp_path: Path) -> None:
    parts = parts_of(
        tmp_path,
        rollout__max_tokens=300,
        rollout__max_seconds=5.0,
        rollout__max_images=2,
        rollout__keep_images=1,
        rollout__token_budget=200,
        rollout__parallel=3,
        rollout__retries=4,
        environment__step_timeout=1.5,
        environment__reset_timeout=2.5,
        inference__system_prompt="Be brief.",
        inference__max_turns=6,
    )
    for collector in (parts.collector, parts.eval_collector, parts.collector.for_variant(Countdown())):
        limits, window = collector.options.limits, collector.options.window
        assert (limits.max_turns, limits.max_tokens, limits.max_seconds) == (6, 300, 5.0)
        assert (window.max_images, window.token_budget, window.keep_images) == (2, 200, 1)
        assert (collector.retries, collector.step_timeout, collector.reset_timeout) == (4, 1.5, 2.5)
        assert collector.options.system_prompt == "Be brief."
        assert collector.images is parts.images is parts.learner.images


def test_groups_that_shrink_are_not_repaired_and_no_time_limit_is_infinite(tmp_path: Path) -> None:
    collector = parts_of(
        tmp_path,
        rollout__retries=4,
        rollout__group_repair="shrink",
        environment__step_timeout=None,
        environment__reset_timeout=None,
    ).collector
    assert (collector.retries, collector.step_timeout, collector.reset_timeout) == (0, math.inf, math.inf)


def test_a_reward_function_judges_training_evaluation_and_controls(tmp_path: Path) -> None:
    parts = assemble(settings(tmp_path), Countdown(), lambda trajectory: 1.0)
    control = parts.eval_collector.for_variant(Countdown(length=9))
    judges = [collector.options.reward_fn for collector in (parts.collector, parts.eval_collector, control)]
    assert judges[0] is judges[1] is judges[2] is not None
    assert control.environment.length == 9  # type: ignore[attr-defined]
    config = settings(tmp_path)
    config.verification.enabled = True
    with pytest.raises(ConfigError, match=r"a reward_fn and verification\.enabled=true"):
        assemble(config, Countdown(), lambda trajectory: 1.0)


class Untaught(Countdown):
    """Nobody shows how it is done."""

    expert_action = BaseEnvironment.expert_action  # type: ignore[assignment]


def test_a_warm_start_needs_a_demonstrator(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.training.warm_start.enabled = None
    assert not assemble(config, Untaught(), for_training=True).warm_starts
    assert assemble(config, Countdown(), for_training=True).warm_starts
    config.training.warm_start.enabled = True
    with pytest.raises(ConfigError, match=r"warm_start\.enabled=true: got .*, which has no demonstrator"):
        assemble(config, Untaught(), for_training=True)
    assert not assemble(cold(tmp_path), Countdown(), for_training=True).warm_starts


def test_a_checkpoint_is_warm_started_only_where_that_is_written() -> None:
    config = ConfigStore()
    assert config.wants_warm_start
    config.model.model_name = "some/model"
    assert not config.wants_warm_start
    config.training.warm_start.enabled = True
    assert config.wants_warm_start


async def test_closing_frees_both_collectors_and_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(tmp_path)
    closed: list[Any] = []
    for kind in (Collector, type(parts.engine)):

        async def note(part: Any, close: Any = kind.close) -> None:
            await close(part)
            closed.append(part)

        monkeypatch.setattr(kind, "close", note)
    await parts.close()
    assert {id(part) for part in closed} == {id(parts.collector), id(parts.eval_collector), id(parts.engine)}
