"""Real verl on real Ray when a process of it dies in the middle of a step: it ends, says what died, and continues."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import NotInstalled, Reaper
from uirl.errors import ConfigError, ProcessLost
from uirl.metrics import read_metrics

TEXT = "model.model_name=uirl/tiny-lm"


@pytest.fixture
def no_hanging() -> Iterator[None]:
    """Ends the session where a run waits for a dead process for ever, in a call of Ray's that no exception reaches."""
    faulthandler.dump_traceback_later(1800, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("one_ray", "no_hanging")]


@pytest.mark.parametrize(("whom", "said"), [("worker", "agent-loop worker 0 died"), ("learner", "learner rank 0 died")])
def test_a_process_that_dies_ends_the_run_which_continues(whom: str, said: str, tmp_path: Path) -> None:
    store = config(tmp_path, TEXT, "training.num_iters_per_epoch=1", "training.num_epochs=2")
    world = Reaper(whom=whom, mark=tmp_path / "done")
    with pytest.raises(ProcessLost, match=said) as caught:
        trainer(store, world).fit()
    assert "checkpoint.resume=true" in str(caught.value)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]
    last = trainer(store.override(["checkpoint.resume=true"]), world).fit()
    assert last["step"] == 2
    assert last["episodes_total"] == 32


def test_the_other_servers_take_the_requests_of_a_dead_one(tmp_path: Path) -> None:
    """No episode of the step is lost; weights cannot be brought to a dead server, so the run ends after it."""
    world = Reaper(whom="server 0", mark=tmp_path / "done")
    with pytest.raises(ProcessLost, match="rollout server 0 died in step 2, which was finished and saved"):
        trainer(config(tmp_path, TEXT), world, verl={"trainer.n_gpus_per_node": 2}).fit()
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert (rows[1]["count/failed_episodes"], rows[1]["count/learned_episodes"]) == (0, 16)
    assert (tmp_path / "run" / "checkpoints" / "global_step_2" / "uirl.json").is_file()


def test_an_error_for_the_person_ends_the_run_and_nothing_is_learned_from_the_rest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install abacus"):
        trainer(config(tmp_path, TEXT), NotInstalled(pictures=False)).fit()
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []
