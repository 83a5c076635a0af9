"""An engine that sleeps during an update leaves its share of the GPU to the learner, and the plan counts with that."""

from __future__ import annotations

import pytest

from uirl.config import ConfigStore
from uirl.training.plan.moment import GIB, Moment
from uirl.training.plan.plan import ASLEEP, plan_of
from uirl.training.plan.remedy import remedies

VLLM = ["inference.backend=vllm", "model.model_name=uirl/tiny-lm", "model.tiny.num_layers=1"]
VLLM += ["training.batch_size=2", "inference.max_turns=2"]
GPU = 80 * GIB
SHARE = 0.45 * GPU


def moments(*changes: str, gpu: bool = True) -> tuple[Moment, ...]:
    return plan_of(ConfigStore().override([*VLLM, *changes]), limit=GPU, gpu=gpu, tokens=64).moments


@pytest.mark.parametrize("changes", [[], ["inference.sleep=1"], ["model.use_lora=true", "training.batch_size=8"]])
def test_during_an_update_it_holds_next_to_nothing(changes: list[str]) -> None:
    update, playing = moments(*changes)
    assert update.parts["engine, asleep"] == ASLEEP
    assert "engine" not in update.parts
    assert playing.parts["engine"] == SHARE
    assert "engine, asleep" not in playing.parts


@pytest.mark.parametrize("changes", [["inference.sleep=off"], ["actors.staleness=1"]])
def test_an_engine_that_stays_awake_is_there_at_both_moments(changes: list[str]) -> None:
    assert [moment.parts["engine"] for moment in moments(*changes)] == [SHARE, SHARE]
    assert all("engine, asleep" not in moment.parts for moment in moments(*changes))


def test_on_a_cpu_and_behind_a_server_nothing_sleeps() -> None:
    assert all("engine, asleep" not in moment.parts for moment in moments(gpu=False))
    assert all("engine, asleep" not in m.parts for m in moments("inference.server_url=http://there:8000"))


@pytest.mark.slow
def test_sleep_is_the_first_remedy() -> None:
    """Of 3.6 GiB that may be used of 4, the update and the process take 2.0: the 1.0 of an engine that sleeps fits
    beside, and the 1.8 of one that does not is too much."""
    many = ["training.batch_size=64", "training.micro_batch_tokens=131072"]
    config = ConfigStore().override([*VLLM, *many, "inference.sleep=off"])
    limit = 4 * GIB

    def planned(changed: ConfigStore) -> object:
        return plan_of(changed, limit=limit, tokens=4096)

    plan = planned(config)
    assert plan.problems  # type: ignore[attr-defined]
    changes, fits = remedies(config, plan, planned)  # type: ignore[arg-type]
    assert changes == ["inference.sleep=auto"]
    assert not fits.problems
