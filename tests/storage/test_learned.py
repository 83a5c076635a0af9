"""What updates made of stored trajectories comes back per turn; what nobody computed is None, never 0."""

from __future__ import annotations

import dataclasses
import math
import sqlite3

import numpy as np
import pytest

from tests.storage.episodes import episode
from uirl.config import ConfigStore
from uirl.errors import StorageError
from uirl.storage import Learned, LearnedTokens, TrajectoryStore
from uirl.storage.run_directory import origin_of
from uirl.types import Observation, Trajectory, Turn


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "trajectories.sqlite") as opened:
        yield opened


def two_turns(id: str) -> Trajectory:
    turns = [Turn(Observation(), (1,), (3, 4), (-0.5, -1.0)), Turn(Observation(), (5,), (6, 7, 8), (-2.0, -0.25, -1.5))]
    return Trajectory(id, turns=turns, stop_reason="terminated")


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_each_turn_gets_its_part(store) -> None:
    store.add(two_turns("a"), step=1)
    figures = LearnedTokens(
        "a",
        array(1, 1, 2, 2, -0.1),
        array(-0.5, -1, -2, -0.5, -1),
        array(-0.25, -1, -2, -0.5, -1),
        array(0.1, 2, 3, 4, 5),
    )
    store.add_learned([figures], step=2, version=7)
    learned = store.learned("a")
    assert learned[0] == Learned(2, 7, (1, 1), (-0.5, -1), (-0.25, -1), (float(np.float16(0.1)), 2), None)
    assert learned[1].advantages == (2, 2, float(np.float32(-0.1)))
    assert learned[1].entropies == (3, 4, 5)


def test_what_nobody_computed_is_none(store) -> None:
    store.add_many([two_turns("a"), two_turns("left out")], step=1)
    store.add_learned([LearnedTokens("a", array(0, 0, 0, 0, 0))], step=1, version=0)
    assert store.learned("a")[1] == Learned(1, 0, (0, 0, 0))
    assert store.learned("a")[1].ratio(two_turns("a").turns[1]) is None
    assert store.learned("a")[1].gap(two_turns("a").turns[1]) is None
    assert store.learned("left out") == {}


def test_ratio_and_gap_say_against_whom() -> None:
    turn = Turn(Observation(), (), (1, 2), (-1.0, -2.0))
    scored = Learned(1, 0, (1, 1), old_log_probs=(-1.5, -2.0), log_probs=(-1.0, -2.5))
    assert scored.ratio(turn) == pytest.approx((math.exp(0.5), math.exp(-0.5)))
    assert scored.gap(turn) == (-0.5, 0.0)
    trusted = dataclasses.replace(scored, old_log_probs=None)
    assert trusted.ratio(turn) == pytest.approx((1.0, math.exp(-0.5)))
    assert trusted.gap(turn) == (0.0, -0.5)
    unknown = dataclasses.replace(turn, rollout_log_probs=())
    assert (trusted.ratio(unknown), trusted.gap(unknown)) == (None, None)


def test_one_number_stands_for_many_that_are_equal(store) -> None:
    store.add(two_turns("a"), step=1)
    same = array(*[0.1] * 5)
    store.add_learned([LearnedTokens("a", same, log_probs=array(-1, -2, -3, -4, -5))], step=1, version=0)
    assert store.learned("a")[1].advantages == (float(np.float32(0.1)),) * 3
    with sqlite3.connect(store.path) as connection:
        (sizes,) = connection.execute("SELECT length(advantages), length(log_probs), entropies FROM learned").fetchall()
    assert sizes == (4, 20, None)


def test_the_newest_update_counts_and_a_resume_forgets_it(store) -> None:
    store.add_many([two_turns("a"), episode("b")], step=1)
    store.add(episode("c"), step=2)
    for step in (1, 2):
        figures = [LearnedTokens("a", array(*[step] * 5))] + [LearnedTokens("b", array(step))] * (step == 1)
        store.add_learned(figures, step=step, version=step)
    for advantage in (4, 5):  # the same update again replaces what it said
        store.add_learned([LearnedTokens("c", array(advantage))], step=2, version=2)
    assert store.learned("c")[0] == Learned(2, 2, (5.0,))
    assert store.learned("a")[0].advantages == (2, 2)
    store.truncate_after(1)
    assert [store.learned(id)[0].step for id in ("a", "b")] == [1, 1]
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT trajectory, step FROM learned ORDER BY 1").fetchall() == [(1, 1), (2, 1)]


def test_figures_of_unknown_trajectories_are_an_error_and_nothing_is_stored(store) -> None:
    store.add(episode("b"), step=1)
    with pytest.raises(StorageError, match="there is no trajectory 'x'"):
        store.add_learned([LearnedTokens("b", array(1)), LearnedTokens("x", array(1))], step=1, version=0)
    assert store.learned("b") == {}
    with pytest.raises(ValueError, match=r"log_probs of trajectory b must align .* got \(2,\), expected \(1,\)"):
        LearnedTokens("b", array(1), log_probs=array(1, 2))


def test_figures_of_another_number_of_tokens_are_an_error(store) -> None:
    store.add(two_turns("a"), step=1)
    store.add_learned([LearnedTokens("a", array(1, 2, 3))], step=1, version=0)
    with pytest.raises(StorageError, match="are 3 numbers, expected 5"):
        store.learned("a")


def test_an_origin_says_what_decides_what_is_sampled_and_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm"])
    monkeypatch.setattr("uirl.storage.run_directory._version", lambda name: f"v-{name}")
    usual = ["python", "uirl", "torch", "transformers", "tokenizers", "numpy", "pillow"]
    plain = origin_of(config.model, config.inference)
    assert list(plain["software"]) == usual
    assert (plain["software"]["torch"], plain["engine"]) == ("v-torch", "transformers")
    assert plain["model"] == {
        "name": "uirl/tiny-lm", "local_path": None, "dtype": config.model.dtype, "lora": None,
    }  # fmt: skip
    config.model.use_lora, config.model.lora.r, config.inference.backend = True, 5, "vllm"
    more = origin_of(config.model, config.inference, ["gymnasium"], run="r")
    assert list(more["software"]) == [*usual, "gymnasium", "vllm", "peft"]
    assert (more["model"]["lora"], more["run"]) == (5, "r")
    config.model.quantization = "nf4"
    more = origin_of(config.model, config.inference)
    assert (list(more["software"])[-2:], more["model"]["quantization"]) == (["peft", "bitsandbytes"], "nf4")
    monkeypatch.undo()
    assert origin_of(config.model, config.inference, ["no-such-package"])["software"]["no-such-package"] is None


def test_origins_are_kept_once_each(tmp_path) -> None:
    path = tmp_path / "t.sqlite"
    first = {"software": {"uirl": "1"}, "model": "m"}
    for origin, ids in (
        (first, "ab"),
        (None, "c"),
        ({"software": {"uirl": "2"}}, "d"),
        (dict(reversed(first.items())), "e"),
    ):
        with TrajectoryStore(path, origin=origin) as store:
            for id in ids:
                store.add(episode(id), step=1)
    with TrajectoryStore(path, read_only=True) as store:
        assert store.origins() == [first, {"software": {"uirl": "2"}}]
        assert [store.origin(id) for id in "abcde"] == [first, first, None, {"software": {"uirl": "2"}}, first]
