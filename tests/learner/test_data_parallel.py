"""Two processes that learn together make of an update what one makes of it, and end together."""

import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.learner.together import UPDATES, start
from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import make_config
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.learner import load_checkpoint, save_checkpoint
from uirl.learner.data_parallel import LAUNCHED, Learn, Ranks, Restore, _Told, join, require_sliceable
from uirl.learner.slices import Slices
from uirl.workers.codec import ToldError

CLOSE = 1e-5
"""What figures of one process and of two may differ by, in parts of the larger, and in all below 1."""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[dict[str, Any], list[str]]:
    """(what the first process saw, by name; what each of the two printed)"""
    folder: Path = tmp_path_factory.mktemp("together")
    started = start("tests.learner.together", str(folder))
    try:
        printed = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert started[0].returncode == 0, "\n".join(printed)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}, printed


def assert_alike(one: dict[str, Any], two: dict[str, Any], limit: float = CLOSE) -> None:
    assert one.keys() == two.keys()
    for expected, got in zip(one["rows"], two["rows"], strict=True):
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            assert math.isclose(value, got[name], rel_tol=limit, abs_tol=limit), (name, value, got[name])
    for name in ("tokens", "weights"):
        pairs = list(zip(one.get(name, ()), two.get(name, ()), strict=True))
        assert all(math.isclose(*pair, rel_tol=limit, abs_tol=limit) for pair in pairs), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in UPDATES if name not in ("bfloat16", "not finite")])
def test_updates_are_those_of_one_process(name, found):
    seen = found[0][name]
    assert len(seen["one"]["rows"]) == 2
    assert all(row["skipped"] == 0 and row["optimizer_steps"] > 0 for row in seen["one"]["rows"])
    assert_alike(seen["one"], seen["two"])


@pytest.mark.slow
def test_the_updates_compared_do_what_they_are_there_for(found):
    rows = {name: seen["two"]["rows"] for name, seen in found[0].items() if name in UPDATES and "rows" in seen["two"]}
    assert all(row["value_grad_norm"] > 0 for row in rows["ppo"])
    assert rows["ppo"][0]["optimizer_steps"] == 4
    assert rows["grpo"][1]["kl_reference"] > 0
    assert rows["lora"][1]["kl_reference"] > 0
    assert any(row["update_halvings"] > 0 for row in rows["region"])
    assert len(found[0]["ppo"]["two"]["tokens"]) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16", "four bits"])
def test_narrow_weights_are_roundings_of_masters_in_slices(name, found):
    seen = found[0][name]
    assert all(row["optimizer_steps"] > 0 for row in seen["one"]["rows"])
    # a gradient is rounded to bfloat16 in each pass, and passes differ: a weight may be one rounding apart
    assert_alike(seen["one"], seen["two"], limit=2e-2)


@pytest.mark.slow
def test_demonstrations_are_learned_as_by_one_process(found):
    assert_alike(found[0]["demonstrations"]["one"], found[0]["demonstrations"]["two"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one two", "two one", "two two"])
def test_a_checkpoint_is_the_same_whoever_wrote_it_and_goes_on_in_either(how, found):
    assert_alike(found[0]["checkpoints"]["one one"], found[0]["checkpoints"][how])


@pytest.mark.slow
def test_memory_that_runs_out_in_one_process_halves_its_own_micro_batches(found):
    assert "memory ran out" in found[1][1]
    assert "memory ran out" not in found[1][0]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_in_one_process_is_refused_by_all(found):
    seen = found[0]["not finite"]
    assert "error" not in seen["one"]
    assert seen["two"]["error"] == "NonFiniteError"
    assert "the step was refused" in seen["two"]["words"]


@pytest.mark.slow
def test_what_goes_wrong_in_one_process_alone_ends_all_and_is_named(found):
    alone = found[0]["alone"]
    assert alone["error"] == "ProcessLost"
    assert "the disk is gone" in alone["words"]
    assert "the disk is gone" in found[1][1]


def alone(rank: int, count: int = 2) -> Ranks:
    """One of `count` processes, without the others."""
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.count, ranks.lost = rank, count, False
    return ranks


def test_the_process_that_is_gone_is_named_with_its_last_words():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, gone = alone(0), alone(1)
    left._pids, left._store = [os.getpid(), ended.pid], torch.distributed.HashStore()
    words = f"process 1 of 2 that learn together (pid {ended.pid}) is gone: "
    assert left._who("nobody answers") == words + "it was killed, or ran out of memory"
    gone._store = left._store
    gone.mourn(OSError("the disk is gone"))
    assert left._who("nobody answers") == words + "OSError: the disk is gone"


def test_what_fails_in_one_process_fails_in_all(monkeypatch):
    other = _Told("pass", error=ToldError.of(ValueError("no room"), "process 1 of 2"))
    monkeypatch.setattr(Ranks, "_meet", lambda self, told: [told, other])
    with pytest.raises(ValueError, match="no room"):
        alone(0).together(lambda: 1, int)
    with pytest.raises(ZeroDivisionError):
        alone(0).together(lambda: 1 // 0, int)


def test_all_restore_what_the_leader_does_and_the_leader_alone_saves(tmp_path):
    learner, heard = make_learner(ImageStore(), TEXT), []
    folder = save_checkpoint(tmp_path / "step-1", learner, {})
    learner.ranks = SimpleNamespace(call=lambda message, work: heard.append(message))
    load_checkpoint(folder, learner)
    assert heard == [Restore(str(folder.resolve()))]
    slices = Slices.__new__(Slices)
    for leads in (True, False):
        slices._ranks = SimpleNamespace(leads=leads, talking=contextlib.nullcontext)
        assert slices.to_save(torch.ones(3)).tolist() == [1.0] * 3 * leads


def test_the_leader_says_once_that_all_may_leave(monkeypatch):
    said: list[bytes] = []
    monkeypatch.setattr(Ranks, "_broadcast", lambda self, data: said.append(data))
    for ranks in (alone(0), alone(1)):
        ranks.close()
        ranks.close()
    assert len(said) == 1


def test_samples_are_dealt_out_evenly():
    shares = []
    for rank in range(3):
        ranks = alone(rank, 3)
        shares.append(
            [list(range(9))[ranks.share(costs)] for costs in ([1] * 9, [8, 1, 1, 1, 1, 1, 1, 1, 1], [5, *[0] * 8])]
        )
    assert [share[0] for share in shares] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for case in range(3):
        assert sorted(i for share in shares for i in share[case]) == list(range(9))
    assert [len(share[1]) for share in shares] == [1, 3, 5]


def test_a_call_brings_the_pictures_that_its_samples_show():
    from tests.learner.worlds import picture, sample_trajectories
    from uirl.learner import Policy

    images = ImageStore()
    samples = sample_trajectories(Policy.from_config(make_config()), images, n=2)
    images.put(picture(99))
    call = Learn.of(samples, images, 1, supervised=True)
    assert set(call.pictures) == {hash for sample in samples for hash in sample.images}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.optimizer=adamw_8bit", "Set training.optimizer=adamw"),
        ("model.device=cuda:1", "expected auto or cuda"),
    ],
)
def test_what_cannot_be_sliced_is_refused_by_name(change, words):
    with pytest.raises(ConfigError, match=words) as refused:
        require_sliceable(make_config(change).model, make_config(change).training)
    assert change.split("=")[0] in str(refused.value)


def test_processes_on_several_nodes_are_refused(monkeypatch):
    for key, value in zip(LAUNCHED, ("0", "4", "0", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError, match="got 4 processes, 2 of them on this node"):
        join()
    assert os.environ["WORLD_SIZE"] == "4"
