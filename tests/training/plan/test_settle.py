"""What a run takes where its config is silent: by the model, its device and the plan, and nothing that was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from uirl.cli.main import main
from uirl.config import ConfigStore, ModelConfig
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.inference.models.precision import dtype_of
from uirl.learner import Learner, Policy
from uirl.training.loop import RayPPOTrainer
from uirl.training.plan import guard
from uirl.training.plan import plan as plan_module
from uirl.training.plan.moment import GIB, Moment
from uirl.training.plan.plan import PLAYING, UPDATE, Plan, Traces, plan_of
from uirl.training.plan.settle import AT_ONCE, CHECKPOINTING, TOKENS, settle
from uirl.training.plan.workload import Workload

PICTURE = {"picture": (112, 112)}
WORK = ["training.batch_size=16", "inference.max_turns=2", "inference.max_context=256", "model.max_image_pixels=12544"]
CHECKPOINT = {"model.dtype": "bfloat16", "training.learning_rate": 1e-6, "training.warm_start.learning_rate": 1e-5}
CHECKPOINT |= {"training.entropy_coef": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 16 bits."""
    made = tmp_path_factory.mktemp("checkpoint")
    load_model(ModelConfig(dtype="bfloat16", device="cpu")).save(made)
    return made


def of(folder: Path, *changes: str) -> ConfigStore:
    return ConfigStore().override([f"model.local_path={folder}", *WORK, *changes])


def names(folder: Path, dtype: str | None, into: Path) -> ModelConfig:
    """The same checkpoint, whose config.json names another precision."""
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = dtype
    (into / "config.json").write_text(json.dumps(config))
    return ModelConfig(local_path=str(into))


@pytest.mark.parametrize("here", [(True, 80 * GIB), (True, 1), (False, 1), (False, None)])
def test_a_built_in_model_has_the_same_settings_everywhere(here: tuple[bool, float | None]) -> None:
    settled = settle(ConfigStore(), here=here)
    assert settled.chosen == {
        "model.dtype": "float32",
        "training.learning_rate": 4e-4,
        "training.warm_start.learning_rate": 1e-3,
        "training.entropy_coef": 0.02,
        CHECKPOINTING: False,
        TOKENS: 32_768,
        AT_ONCE: 256,
    }
    assert settled.plan is None


def test_a_checkpoint_with_room_for_everything(folder: Path) -> None:
    settled = settle(of(folder), here=(True, 80 * GIB), **PICTURE)
    assert settled.chosen == CHECKPOINT | {CHECKPOINTING: False, TOKENS: 32_768, AT_ONCE: 256}
    assert settled.plan is not None
    assert "model.dtype=bfloat16" in str(settled)


@pytest.mark.parametrize(
    ("changes", "rate", "warm"),
    [([], 1e-6, 1e-5), (["model.use_lora=true"], 2e-5, 1e-4), (["evolve.rounds=1"], 1e-6, 1e-5)],
)
def test_rates_are_those_of_what_is_trained(folder: Path, changes: list[str], rate: float, warm: float) -> None:
    config = settle(of(folder, *changes), phases=("training", "warm_start", "evolve"), here=(True, None)).config
    assert config.training.learning_rate == rate
    assert config.training.warm_start.learning_rate == config.evolve.learning_rate == warm


@pytest.mark.parametrize(
    ("stored", "gpu", "expected"),
    [
        ("bfloat16", True, "bfloat16"),
        ("float32", True, "float32"),
        # small gradients vanish in float16
        ("float16", True, "bfloat16"),
        (None, True, "bfloat16"),
        ("bfloat16", False, "float32"),
    ],
)
def test_the_precision_is_that_of_the_checkpoint_on_a_gpu(
    folder: Path, stored: str | None, gpu: bool, expected: str, tmp_path: Path
) -> None:
    assert dtype_of(names(folder, stored, tmp_path), gpu=gpu) == expected


def of_parts(config: ConfigStore, *, limit: float, gpu: bool, traces: Any = None) -> Plan:
    """A plan by hand, in bytes: 50 of weights; a sequence of 1000 tokens takes 10 of activations, 2 where they are
    computed again; 16 rows of the attention cache take 16."""
    rows = min(40, max(1, config.training.micro_batch_limit // 1000))
    episodes = min(config.rollout.parallel_limit, 64)
    activations = rows * (2.0 if config.model.gradient_checkpointing else 10.0)
    cache = 16.0 * -(-episodes // 16)
    moments = (
        Moment("GPU", UPDATE, {"weights": 50.0, "activations": activations}, limit),
        Moment("GPU", PLAYING, {"weights": 50.0, "attention cache": cache}, limit),
    )
    work = Workload(1000, rows, 1000, 10, 0, 0, (8, 8), 0, False, episodes, episodes, 1, None)
    return Plan("by hand", 1, 1, work, moments)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        # 32 sequences as they are: 50 + 32 x 10
        (370, (False, 32_768, 256)),
        (369, (False, 31_000, 256)),
        # 6 of them, 50 + 6 x 10, beside 64 episodes: 50 + 4 x 16
        (114, (False, 6_000, 256)),
        # 3 of 4 times 16 rows
        (113, (False, 6_000, 48)),
        (100, (False, 5_000, 48)),
        # 4 sequences are less than 4096 tokens: computed again, 24 of them take 50 + 24 x 2
        (99, (True, 24_000, 48)),
        # 8 sequences: 50 + 8 x 2
        (66, (True, 8_000, 16)),
        # one sequence: 50 + 2; 16 rows of the cache are the least there is
        (52, (True, 1_000, 16)),
        (51, (True, 1_000, 16)),
    ],
)
def test_memory_is_saved_in_the_order_of_what_that_costs(
    folder: Path, memory: float, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uirl.training.plan.settle.plan_of", of_parts)
    settled = settle(of(folder), here=(True, memory))
    assert tuple(settled.chosen[key] for key in (CHECKPOINTING, TOKENS, AT_ONCE)) == expected
    assert ("it does not fit" in str(settled)) == (memory < 66)
    assert settled.plan == of_parts(settled.config, limit=memory, gpu=True)


def test_what_is_written_is_not_chosen_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uirl.training.plan.settle.plan_of", of_parts)
    for key, value in ((CHECKPOINTING, "false"), (TOKENS, "32768"), (AT_ONCE, "256")):
        settled = settle(of(folder, f"{key}={value}"), here=(True, 60))
        assert key not in settled.chosen
        assert "it does not fit" in str(settled)
    assert settle(of(folder, f"{TOKENS}=32768"), here=(True, 370)).chosen[CHECKPOINTING] is False


@pytest.mark.slow
def test_an_update_is_traced_once_for_configs_that_differ_in_episodes_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    trace = plan_module.linear_in_layers
    monkeypatch.setattr(plan_module, "linear_in_layers", lambda *args: calls.append(args) or trace(*args))
    options: dict[str, Any] = {"limit": None, "traces": Traces(), **PICTURE}
    configs = [of(folder, f"{AT_ONCE}=64"), of(folder, f"{AT_ONCE}=16"), of(folder, f"{TOKENS}=300", f"{AT_ONCE}=64")]
    many, one, fewer = (plan_of(config, **options).moments for config in configs)
    assert len(calls) == 2
    assert many[0].parts == one[0].parts
    assert many[1].parts["attention cache"] > one[1].parts["attention cache"]
    assert fewer[0].parts["activations"] < many[0].parts["activations"]


@pytest.mark.slow
def test_what_plans_have_in_common_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    shapes = plan_module.policy_of_shapes
    monkeypatch.setattr(plan_module, "policy_of_shapes", lambda config: made.append(config) or shapes(config))
    vision = ConfigStore().override(["model.tiny.num_layers=1", "inference.max_turns=2"])
    changes = [[], [f"{TOKENS}=300"], [f"{CHECKPOINTING}=true"]]
    configs = [vision.override(["training.batch_size=4", *change]) for change in changes]
    traces = Traces()
    together = [plan_of(config, limit=None, traces=traces, **PICTURE) for config in configs]
    assert len(made) == 2  # with gradient checkpointing and without
    assert together == [plan_of(config, limit=None, **PICTURE) for config in configs]


@pytest.mark.slow
def test_a_bound_on_the_attention_cache_holds_whatever_the_episodes(folder: Path) -> None:
    """Requests wait for room in it, so that a plan counts no more."""
    caches = {}
    for bound in ("null", "0.001"):
        config = of(folder, "model.gradient_checkpointing=true", f"inference.kv_cache_gib={bound}")
        caches[bound] = plan_of(config, limit=None, **PICTURE).moment(PLAYING).parts["attention cache"]
    assert caches["null"] > caches["0.001"] == pytest.approx(0.001 * GIB)


def test_what_is_written_stays(folder: Path) -> None:
    written = [
        *("model.dtype=float32", "training.learning_rate=0.5", "training.warm_start.learning_rate=0.25"),
        *("training.entropy_coef=0.02", f"{CHECKPOINTING}=false", f"{TOKENS}=77", f"{AT_ONCE}=3"),
    ]
    config = of(folder, *written)
    settled = settle(config, here=(True, 1), **PICTURE)
    assert (settled.config, settled.chosen, settled.plan) == (config, {}, None)


@pytest.mark.parametrize(("changes", "bonus"), [([], 0.0), (["training.entropy_coef=0.01"], 0.01)])
def test_the_learner_of_a_checkpoint_has_no_bonus_that_nobody_asked_for(
    folder: Path, changes: list[str], bonus: float
) -> None:
    config = of(folder, "training={adv_estimator: grpo, group_size: 2}", *changes)
    policy = Policy(load_model(ModelConfig(local_path=str(folder), dtype="float32", device="cpu")))
    assert Learner(policy, config, ImageStore()).settings.entropy_coef == bonus
    assert config.entropy_coef == bonus
    assert ConfigStore().override(changes).entropy_coef == (bonus or 0.02)


def test_a_policy_that_is_there_says_what_it_is(folder: Path) -> None:
    policy = Policy(load_model(ModelConfig(local_path=str(folder), dtype="bfloat16", device="cpu")))
    settled = settle(of(folder), here=(False, 1), policy=policy)
    assert settled.chosen == CHECKPOINT | {CHECKPOINTING: False, TOKENS: 32_768, AT_ONCE: 256}


def test_the_command_prints_what_it_chose(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", "80GB", "--picture", "112x112", f"model.local_path={folder}", *WORK]
    assert main(["plan", *words]) == 0
    printed = capsys.readouterr().out
    assert "model.dtype=bfloat16, training.learning_rate=1e-06" in printed
    assert "rollout.parallel=256 (by the plan)" in printed


def test_the_guard_counts_the_precision_that_will_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[bool, Any] = {}
    for gpu in (True, False):
        monkeypatch.setattr(guard, "memory_here", lambda _, gpu=gpu: (gpu, 1))
        with pytest.raises(Exception, match="weights") as caught:
            guard.require_room(of(folder, "model.use_lora=true"))
        sizes[gpu] = str(caught.value).split("weights ")[1].split(",")[0]
    assert float(sizes[False]) == pytest.approx(2 * float(sizes[True]), abs=0.001)


def test_a_run_says_and_saves_what_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU of which it is told; the forward itself runs here."""
    monkeypatch.setattr(guard, "memory_here", lambda _: (True, 80 * GIB))
    tiny = ConfigStore().override(["model.model_name=uirl/tiny-lm", "model.dtype=bfloat16"])
    load_model(tiny.model).save(tmp_path / "checkpoint")
    config = ConfigStore().override(
        [
            *(f"model.local_path={tmp_path / 'checkpoint'}", "model.use_lora=true", "environment.name=guess_number"),
            *("environment.options={n: 4, guesses: 2}", "inference.max_tokens=4", "logging.tensorboard=false"),
            *("training.batch_size=4", "training.minibatches=1", "training.num_epochs=1"),
            *("training.num_iters_per_epoch=1", "training.eval_every=null", "training.eval_episodes=2"),
            f"logging.runs_dir={tmp_path}",
        ]
    )
    trainer = RayPPOTrainer(config)
    try:
        summary = trainer.fit()
    finally:
        trainer.cleanup()
    assert config.model.dtype is config.training.learning_rate is None, "the caller's own config stays as it is"
    assert trainer.run_path is not None
    saved = ConfigStore.from_yaml(trainer.run_path / "config.yaml")
    assert (saved.model.dtype, saved.training.learning_rate, saved.rollout.parallel) == ("bfloat16", 2e-5, 256)
    assert (saved.model.gradient_checkpointing, saved.training.micro_batch_tokens) == (False, 32_768)
    assert summary["warm_start"] is None, "a checkpoint is not taught what to do"
    assert trainer.learner.policy.loaded.dtype == torch.bfloat16
    assert "chosen for this model and its device: model.dtype=bfloat16, training.learning_rate=2e-05" in (
        capsys.readouterr().out
    )
