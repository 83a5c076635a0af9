"""Which task comes next, by how often each was solved."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from uirl import ConfigError
from uirl.integrations.verl.tasks.success_rate import SuccessRateSampler, create_curriculum

ALL = ["never", "seldom", "often", "always"]
RATES = {"never": 0, "seldom": 1, "often": 2, "always": 4}


def played(**options: object) -> SuccessRateSampler:
    """Four tasks, each tried four times, with 0, 1, 2 and 4 successes: one in every stratum."""
    made = SuccessRateSampler(min_attempts_per_task=4, **options)  # type: ignore[arg-type]
    made.register_tasks(ALL)
    for name, wins in RATES.items():
        for i in range(4):
            made.update_success_rate(name, success=i < wins, step=1)
    return made


def test_success_rates_make_strata() -> None:
    made = played()
    # 0/4 < 0.25; 1/4 is not < 0.25; 2/4 is not < 0.5; 4/4 has no bound above it
    assert [made.stratum(name) for name in ALL] == ["frontier", "exploration", "near_mastery", "exploitation"]


def test_tasks_that_were_hardly_tried_come_first_and_equally_often() -> None:
    made = SuccessRateSampler(min_attempts_per_task=2)
    made.register_tasks(["a", "b", "c"])
    assert Counter(made.sample_task() for _ in range(6)) == {"a": 2, "b": 2, "c": 2}


def test_a_task_that_never_can_be_judged_does_not_hold_up_the_others() -> None:
    made = played()
    made.register_tasks(["broken"])
    first = [made.sample_task() for _ in range(4)]
    assert first == ["broken"] * 4
    assert "broken" not in {made.sample_task() for _ in range(50)}


def test_strata_are_drawn_by_their_shares() -> None:
    made = played(initial_distribution={"frontier": 0.25, "exploitation": 0.75})
    drawn = Counter(made.sample_task() for _ in range(400))
    assert set(drawn) == {"never", "always"}
    assert 250 < drawn["always"] < 350  # 300 expected, deviation 8.7


def test_only_the_newest_episodes_count() -> None:
    made = played(window=4)
    for _ in range(4):
        made.update_success_rate("never", success=True, step=2)
    assert made.stratum("never") == "exploitation"


def test_a_named_stratum_is_asked() -> None:
    assert {played().sample_task("near_mastery") for _ in range(5)} == {"often"}


def test_it_continues_with_the_same_draws() -> None:
    one, other = played(seed=3), SuccessRateSampler(min_attempts_per_task=4, seed=3)
    other.register_tasks(ALL)
    for _ in range(7):
        one.sample_task()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [one.sample_task() for _ in range(40)] == [other.sample_task() for _ in range(40)]
    assert len({tuple(played(seed=seed).sample_task() for _ in range(20)) for seed in range(5)}) > 1


class Mine:
    def __init__(self, pace: int = 1) -> None:
        self.pace = pace


def test_a_section_makes_a_curriculum() -> None:
    assert create_curriculum({}) is None
    assert create_curriculum({"enabled": False, "anything": 1}) is None
    assert isinstance(create_curriculum({"enabled": True}), SuccessRateSampler)
    made = create_curriculum({"class": f"{__name__}:Mine", "pace": 3})
    assert isinstance(made, Mine)
    assert made.pace == 3


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"initial_distribution": {"frontier": -1}}, r"curriculum\.initial_distribution.*got -1"),
        ({"initial_distribution": {"frontiers": 1}}, "did you mean 'frontier'"),
        ({"initial_distribution": {"frontier": 0}}, "no task can be drawn"),
        ({"window": 0}, r"curriculum\.window: got 0, expected whole number >= 1"),
        ({"windows": 3}, "did you mean 'curriculum.window'"),
        ({"class": f"{__name__}:Mine", "colour": "red"}, "colour"),
        ({"class": "nowhere:Mine"}, "expected 'package.module:Class'"),
    ],
)
def test_what_cannot_be_meant_is_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_curriculum(section)


def test_without_tasks_it_says_so() -> None:
    with pytest.raises(ConfigError, match="no tasks are registered"):
        SuccessRateSampler().sample_task()
