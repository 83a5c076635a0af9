"""The meter: operations by worked numbers, what engine and learner count, and what a run says of its time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_loop import settings
from uirl import RayPPOTrainer, load_config
from uirl.cli.main import main
from uirl.config import ModelConfig
from uirl.inference.models.loading import load_model
from uirl.learner.batch import Family, _pairs, _tokens
from uirl.metrics import read_metrics
from uirl.training.record.meter import Machine, Weights, measure, meter_words, seconds_like

WEIGHTS = Weights(
    *(10.0, 3.0, 4.0), back={"text": 20.0, "head": 6.0, "eyes": 8.0}, pair=2.0, cache=8.0, held=52.0, patch=5.0
)
MACHINE = Machine("cpu, 1 threads", "float32", operations=100.0, bytes=50.0)
READ = {"learned_tokens": 5.0, "learned_pairs": 15.0, "learned_replies": 2.0, "learned_pixels": 10.0}


def test_operations_are_those_of_the_worked_example() -> None:
    # forward: 2 * (10 * 5 tokens + 3 * 2 replies + 4 * 2 patches) + 2 * 15 pairs = 128 + 30
    assert WEIGHTS.forward(READ, "learned") == 158
    # six for each weight and token, three times the pairs
    assert WEIGHTS.update(READ, recompute=False) == 3 * 158
    # the layers once more, without the head: 2 * (50 + 8) + 30
    assert WEIGHTS.update(READ, recompute=True) == 3 * 158 + 146
    # adapters alone: gradients pass the weights and are not made for them; nothing of the vision part learns
    adapters = replace(WEIGHTS, back={"text": 10.0, "head": 3.0, "eyes": 0.0})
    assert adapters.update(READ, recompute=False) == 158 + 2 * (50 + 6) + 60
    # a pass for old log-probs
    scored = {name.replace("learned", "scored"): number for name, number in READ.items()}
    assert WEIGHTS.update(READ | scored, recompute=False) == 4 * 158


def test_decoding_is_limited_by_products_or_by_memory() -> None:
    read = {"decode_steps": 2.0, "decode_tokens": 4.0, "decode_replies": 4.0, "decode_pairs": 10.0}
    # 2 * (40 + 12) + 20 = 124 operations; 2 * 52 + 10 * 8 = 184 bytes
    assert WEIGHTS.playing(MACHINE, read, "decode") == 184 / 50
    assert WEIGHTS.playing(replace(MACHINE, bytes=1e9), read, "decode") == 124 / 100
    fed = {"prefill_steps": 1.0, "prefill_tokens": 40.0, "prefill_replies": 1.0, "prefill_pairs": 820.0}
    assert WEIGHTS.playing(MACHINE, fed, "prefill") == (800 + 6 + 1640) / 100


@pytest.mark.parametrize("name", ["uirl/tiny-lm", "uirl/tiny-vlm"])
def test_the_weights_of_a_model_are_those_of_its_products(name: str) -> None:
    model: Any = load_model(ModelConfig(model_name=name, device="cpu")).model
    weights, text = Weights.of(model, 4), model.config.get_text_config()
    assert weights.text == sum(p.numel() for n, p in model.get_decoder().named_parameters() if "proj.weight" in n)
    assert weights.head == text.vocab_size * text.hidden_size
    assert weights.pair == 4 * text.num_hidden_layers * text.hidden_size
    assert weights.held == 4 * (weights.text + weights.head)
    assert weights.back == {part: 2 * getattr(weights, part) for part in ("text", "head", "eyes")}
    assert (weights.eyes > 0, weights.patch) == ((True, 3 * 2 * 14 * 14) if "vlm" in name else (False, 1))
    frozen = Weights.of(model.requires_grad_(False), 4)
    assert frozen.back == {"text": weights.text, "head": weights.head, "eyes": 0.0}


def test_a_prompt_that_samples_share_counts_once() -> None:
    # 3 tokens of prompt; replies of 2 and 1: pairs 6 + (4 + 5) + 4
    family = Family((0, 1), 3)
    assert (_tokens(family, [5, 4]), _pairs(family, [5, 4])) == (6, 19)
    assert _pairs(Family((0, 1), 0), [5, 4]) == 15 + 10


def test_a_measurement_leaves_everything_as_it_was() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    machine = measure(torch.device("cpu"), torch.float32, 1e6, seconds=0.01)
    assert machine.operations > 1e8
    assert machine.bytes > 1e7
    assert machine.device == f"cpu, {threads} threads"
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meter")
    trainer = RayPPOTrainer(settings(folder, eval_every=1, adv_estimator="gae"))
    trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    trainer.cleanup()
    return folder / "run"


def test_a_run_says_where_its_time_went(run: Path) -> None:
    meter = json.loads((run / "summary.json").read_text())["meter"]
    parts, rows = meter["parts"], read_metrics(run / "metrics.jsonl")
    assert {"update", "prefill", "decode", "environment", "prompts and waiting", "record", "evaluation"} == parts.keys()
    assert sum(part["share_of_time"] for part in parts.values()) == pytest.approx(1)
    spent = sum(row[f"time/{name}"] for row in rows for name in ("collect", "update", "record", "evaluate"))
    assert sum(part["seconds_per_step"] for part in parts.values()) == pytest.approx(spent / 2)
    limits = {name: part["share_of_limit"] for name, part in parts.items() if "share_of_limit" in part}
    assert limits.keys() == {"update", "prefill", "decode"}, "what has no limit has no share of one"
    assert all(0 < share <= 1.2 for share in limits.values())
    assert all(0 < row[f"limit/{name}"] <= 1.2 for row in rows for name in limits)
    assert "screenshots_per_second" not in meter, "there are no pictures"


def test_the_line_names_the_largest_part_first() -> None:
    shares = {"update": (0.25, 0.615), "waiting": (0.05, None), "decode": (0.7, 0.034)}
    parts = {
        name: {"share_of_time": time} | ({} if limit is None else {"share_of_limit": limit})
        for name, (time, limit) in shares.items()
    }
    assert meter_words({"parts": parts}) == (
        "decode 70 % of the time, at 3.4 % of what the machine gave at the start; update 25 %, at 62 %; waiting 5 %"
    )


def test_a_faster_machine_takes_less() -> None:
    there = {"device": "cpu, 1 threads", "precision": "float32", "operations": 100.0, "bytes": 50.0}
    seconds = {"update": 4.0, "decode": 3.0, "environment": 2.0, "evaluation": 9.0}
    meter = {"machine": there, "parts": {name: {"seconds_per_step": took} for name, took in seconds.items()}}
    faster = replace(MACHINE, operations=400.0, bytes=100.0)
    assert seconds_like(meter, faster, episodes=2) == {"update": 2.0, "decode": 3.0, "environment": 4.0}


def test_a_plan_says_how_long_a_step_takes(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    asked = [str(run / "config.yaml"), "training.threads=1"]
    assert main(["plan", *asked, "--like", str(run)]) == 0
    printed = capsys.readouterr().out
    for words in (
        "this machine: ",
        "GFLOP/s in float32",
        "at the limit of this machine: ",
        "with 1 times its episodes",
    ):
        assert words in printed
    assert torch.get_num_threads() == threads
    assert main(["plan", *asked, "--gpu", "80GB"]) == 0
    assert "is measured on the machine itself" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    for summary in ("{}", '{"meter": {"parts": {}}, "steps": 1, "episodes": 0}', "[]"):
        (tmp_path / "summary.json").write_text(summary)
        assert main(["plan", *asked, "--like", str(tmp_path)]) == 2
        assert "a summary.json without a meter" in capsys.readouterr().err


def test_a_plan_without_countable_weights_says_no_seconds(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Weights, "of", lambda model, itemsize: model.no_such_part)
    assert main(["plan", str(run / "config.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "cannot be said of this model" in printed
    assert "at the limit" not in printed


def test_a_run_of_pictures_says_how_fast_they_come(tmp_path: Path) -> None:
    config = load_config(
        Path(__file__).parents[3] / "configs" / "screen.yaml",
        [
            *("training.batch_size=4", "training.eval_episodes=4", "training.eval_every=null"),
            *("training.warm_start.enabled=false", f"logging.runs_dir={tmp_path}", "logging.run_name=run"),
            *(
                "model.tiny.hidden_size=32",
                "logging.trackers=[]",
                "training.threads=1",
                "training.stop_at_success=null",
            ),
        ],
    )
    trainer = RayPPOTrainer(config)
    meter = trainer.fit(num_epochs=1, num_iters_per_epoch=1)["meter"]
    trainer.cleanup()
    assert meter["screenshots_per_second"] > 1
    assert 0 < meter["parts"]["prefill"]["share_of_limit"] <= 1.2
