"""What a run takes where its config is silent, what is refused, and what is advised: by the plan of its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.published import write_published
from uirl.config import ConfigStore, ModelConfig, load_config
from uirl.errors import CheckpointError, ConfigError
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.inference.models.precision import dtype_of
from uirl.learner import Learner, Policy
from uirl.training import plan as plan_module
from uirl.training.loop import RayPPOTrainer
from uirl.training.memory import GIB, Moment
from uirl.training.plan import (
    ASLEEP,
    AT_ONCE,
    CACHE,
    CHECKPOINTING,
    PLAYING,
    TOKENS,
    UPDATE,
    Described,
    Plan,
    Settled,
    Workload,
    advice,
    plan_of,
    remedies,
    require_room,
    settle,
)

CONFIGS = Path(__file__).parents[2] / "configs"
PICTURE = {"picture": (112, 112)}
VLLM = ["inference.backend=vllm", "model.model_name=uirl/tiny-lm", "training.batch_size=2", "inference.max_turns=2"]
WORK = ["training.batch_size=16", "inference.max_turns=2", "inference.max_context=256", "model.max_image_pixels=12544"]
CHECKPOINT = {"model.dtype": "bfloat16", "training.learning_rate": 1e-6, "training.warm_start.learning_rate": 1e-5}
CHECKPOINT |= {"training.entropy_coef": 0.0}
BF16, LORA = "model.dtype=bfloat16", "model.use_lora=true"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 16 bits."""
    made = tmp_path_factory.mktemp("checkpoint")
    load_model(ModelConfig(dtype="bfloat16", device="cpu")).save(made)
    return made


def of(folder: Path, *changes: str) -> ConfigStore:
    return ConfigStore().override([f"model.local_path={folder}", *WORK, *changes])


def parts(plan: Plan) -> list[dict[str, float]]:
    return [dict(moment.parts) for moment in plan.moments]


# the largest micro-batch


def work_of(samples: int, tokens: int, limit: int) -> Workload:
    keys = ["inference.max_tokens=16", "inference.max_turns=2", "rollout.max_images=2", "training.minibatches=1"]
    config = ConfigStore().override([*keys, f"training.batch_size={samples}", f"training.micro_batch_tokens={limit}"])
    return plan_of(config, limit=None, picture=(112, 112), tokens=tokens).workload


@pytest.mark.parametrize(
    ("samples", "tokens", "limit", "largest"),
    [
        (8, 100, 300, (3, 100)),
        (8, 100, 399, (4, 99)),
        # one sequence of 110 leaves half of the room unused, which two of 100 fill
        (8, 110, 200, (2, 100)),
        (8, 110, 60, (1, 110)),
        (1, 110, 200, (1, 110)),
        (2, 110, 5000, (2, 110)),
    ],
)
def test_the_largest_micro_batch_has_the_most_tokens(
    samples: int, tokens: int, limit: int, largest: tuple[int, int]
) -> None:
    work = work_of(samples, tokens, limit)
    assert (work.rows, work.width, work.longest) == (*largest, tokens)


def test_shorter_sequences_of_the_largest_micro_batch_hold_fewer_pictures() -> None:
    whole, halved = work_of(8, 96, 96), work_of(8, 96, 100)
    assert (whole.rows, whole.width, halved.rows, halved.width) == (1, 96, 2, 50)
    assert whole.pictures_each == whole.pictures == halved.pictures
    of_picture = whole.picture_tokens
    assert halved.pictures_each == min(whole.pictures, 48 // of_picture)
    assert halved.replies <= 50 - halved.pictures_each * of_picture - 1


@pytest.mark.parametrize(("samples", "limit", "alone"), [(2, 100, True), (2, 60, False), (3, 100, False)])
def test_a_micro_batch_is_alone_where_no_samples_make_two(samples: int, limit: int, alone: bool) -> None:
    """Of a limit of 60, two samples of 50 are two micro-batches, and two of 30 are one."""
    assert work_of(samples, 50, limit).alone == alone


# what nobody chose


@pytest.mark.parametrize("here", [(True, 80 * GIB), (False, 1), (False, None)])
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
    require_room(settled)


def test_a_checkpoint_with_room_for_everything(folder: Path) -> None:
    settled = settle(of(folder), here=(True, 80 * GIB), **PICTURE)
    assert settled.chosen == CHECKPOINT | {CHECKPOINTING: False, TOKENS: 32_768, AT_ONCE: 256}
    assert settled.plan is not None
    assert str(settled).endswith("rollout.parallel=256 (by the plan)")
    assert "model.dtype=bfloat16" in str(settled)


@pytest.mark.parametrize(
    ("changes", "rate", "warm"), [([], 1e-6, 1e-5), ([LORA], 2e-5, 1e-4), (["evolve.rounds=1"], 1e-6, 1e-5)]
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
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": stored}))
    assert dtype_of(ModelConfig(local_path=str(tmp_path)), gpu=gpu) == expected


def of_parts(config: ConfigStore, *, limit: float, gpu: bool, model: Any = None) -> Plan:
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
    work = Workload(1000, rows, 1000, 10, 0, 0, (8, 8), 0, False, episodes, 1, None)
    return Plan("by hand", 1, 1, work, moments, episodes, {})


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
    monkeypatch.setattr(plan_module, "plan_of", of_parts)
    settled = settle(of(folder), here=(True, memory))
    assert tuple(settled.chosen[key] for key in (CHECKPOINTING, TOKENS, AT_ONCE)) == expected
    assert ("it does not fit" in str(settled)) == (memory < 66)
    assert settled.plan == of_parts(settled.config, limit=memory, gpu=True)


def test_what_is_written_is_not_chosen_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "plan_of", of_parts)
    for key, value in ((CHECKPOINTING, "false"), (TOKENS, "32768"), (AT_ONCE, "256")):
        settled = settle(of(folder, f"{key}={value}"), here=(True, 60))
        assert key not in settled.chosen
        assert "it does not fit" in str(settled)
    assert settle(of(folder, f"{TOKENS}=32768"), here=(True, 370)).chosen[CHECKPOINTING] is False
    written = ["model.dtype=float32", "training.learning_rate=0.5", "training.warm_start.learning_rate=0.25"]
    config = of(
        folder, *written, "training.entropy_coef=0.02", f"{CHECKPOINTING}=false", f"{TOKENS}=77", f"{AT_ONCE}=3"
    )
    settled = settle(config, here=(True, 1))
    assert (settled.config, settled.chosen) == (config, {})


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


def test_a_run_says_and_saves_what_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU of which it is told; the forward itself runs here."""
    monkeypatch.setattr(plan_module, "memory_here", lambda _: (True, 80 * GIB))
    tiny = ConfigStore().override(["model.model_name=uirl/tiny-lm", BF16])
    load_model(tiny.model).save(tmp_path / "checkpoint")
    config = ConfigStore().override(
        [
            *(f"model.local_path={tmp_path / 'checkpoint'}", LORA, "environment.name=guess_number"),
            *("environment.options={n: 4, guesses: 2}", "inference.max_tokens=4", "logging.trackers=[]"),
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


# the parts


def cache_of(plan: Plan, moment: int = 1) -> tuple[float, str]:
    """(bytes of the attention cache, what is said of it)."""
    [(name, size)] = [found for found in parts(plan)[moment].items() if found[0].startswith(CACHE)]
    return size, name.removeprefix(CACHE)


def test_the_attention_cache_takes_no_more_than_the_engine_gives_it(folder: Path) -> None:
    """Requests wait for room: in what is written, else in half of what is free, and one has room in any case."""
    how: dict[str, Any] = {"tokens": 256, **PICTURE}
    ample = {n: plan_of(of(folder, f"rollout.parallel={n}"), limit=None, **how) for n in (1, 32)}
    sixteen, all_of_them = cache_of(ample[1])[0], cache_of(ample[32])
    assert all_of_them == (2 * sixteen, ""), "in sixteens, as the engine takes them"
    one = sixteen * 256 / 320 / 16  # longer where there is room, by an eighth and in steps of 64
    limit = ample[32].kept["weights"] + plan_module.PROCESS + 2 * 25.5 * one
    bounded = plan_of(of(folder, "rollout.parallel=32"), limit=limit, **how)
    assert cache_of(bounded) == (25 * one, ": room for 25 of 32 episodes, the others wait")
    for room, held in ((10.5, 10), (0.1, 1)):
        written = of(folder, "rollout.parallel=32", f"inference.kv_cache_gib={room * one / GIB}")
        assert plan_of(written, limit=None, **how).cached == held


def test_where_episodes_would_wait_for_the_cache_fewer_play(folder: Path) -> None:
    how: dict[str, Any] = {"tokens": 2048, **PICTURE}
    whole = plan_of(of(folder), limit=None, **how)
    limit = whole.kept["weights"] + plan_module.PROCESS + cache_of(whole)[0]  # half of it is the cache's
    settled = settle(of(folder), here=(True, limit), **how)
    assert settled.plan is not None
    assert settled.plan.cached == settled.plan.workload.episodes < whole.workload.episodes


def test_an_engine_has_its_own_weights_in_its_share() -> None:
    how: dict[str, Any] = {"limit": 80 * GIB, "tokens": 64}
    for share, fits in ((1e-7, False), (0.45, True)):
        options = f"inference.engine_options.gpu_memory_utilization={share}"
        plan = plan_of(ConfigStore().override([*VLLM, options]), **how)
        moment = plan.moments[2]
        assert moment.limit == share * 80 * GIB
        assert moment.parts["weights"] == 4 * plan.parameters
        assert plan.fits(moment.name) == fits
    halves = ConfigStore().override([*VLLM, "inference.engine_options.tensor_parallel_size=2"])
    assert plan_of(halves, **how).moments[2].parts["weights"] == 2 * plan.parameters
    with pytest.raises(ConfigError, match="expected a share of the GPU"):
        plan_of(ConfigStore().override([*VLLM, "inference.engine_options.gpu_memory_utilization=45"]), **how)


@pytest.mark.parametrize("key", ["inference.max_context", "rollout.max_tokens"])
def test_what_bounds_a_sequence_is_planned_for(key: str) -> None:
    """However short the texts are that would be assumed without."""
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", "inference.max_turns=1", f"{key}=1500"])
    assert plan_of(config, limit=None).workload.longest == 1500


@pytest.mark.parametrize(
    ("changes", "asleep"),
    [([], True), (["inference.sleep=1"], True), (["inference.sleep=off"], False), (["actors.staleness=1"], False)],
)
def test_an_engine_that_sleeps_during_an_update_leaves_its_share(changes: list[str], asleep: bool) -> None:
    update, playing, _ = parts(plan_of(ConfigStore().override([*VLLM, *changes]), limit=80 * GIB, tokens=64))
    assert playing["engine"] == 0.45 * 80 * GIB
    assert (update.get("engine, asleep"), update.get("engine")) == (
        (ASLEEP, None) if asleep else (None, playing["engine"])
    )
    assert "engine, asleep" not in playing


def test_on_a_cpu_and_behind_a_server_nothing_sleeps() -> None:
    served = ConfigStore().override([*VLLM, "inference.server_url=http://there:8000"])
    for plan in (plan_of(ConfigStore().override(VLLM), limit=GIB, gpu=False), plan_of(served, limit=GIB)):
        assert all("engine, asleep" not in each for each in parts(plan))


# what fits


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published("Qwen3-VL-2B", tmp_path_factory.mktemp("published"))


@pytest.mark.slow
def test_full_fine_tuning_of_two_billion_needs_more_than_24_gib(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.1e9 weights in 16 bits with float32 masters, moments and gradients: 18 bytes each, 35.7 GiB."""
    config = ConfigStore().override([f"model.local_path={published}", "training.adv_estimator=grpo", BF16])
    monkeypatch.setattr(plan_module, "memory_here", lambda _: (True, 24 * GIB))
    said = r"optimizer 23\.8, .* 35\.7 GiB in all, .* 24\.0 GiB of this GPU; it fits with: .*model\.use_lora=true"
    with pytest.raises(ConfigError, match=said):
        RayPPOTrainer(config)
    model = Described.of(config.model)
    require_room(settle(config.override([LORA]), model=model))
    require_room(settle(config, here=(True, 36 * GIB), model=model))
    require_room(settle(config, here=(False, None)))


@pytest.mark.parametrize(
    ("gib", "changes", "expected"),
    [
        (5, [LORA, "actors.staleness=1"], ["model.quantization=nf4", "actors.staleness=0"]),
        (12, [], None),
        (10.5, [*VLLM[:1], LORA, "inference.sleep=off"], None),
        (12, [*VLLM[:1], "inference.sleep=2"], None),
    ],
)
def test_the_keys_that_help_are_found(published: Path, gib: float, changes: list[str], expected: Any) -> None:
    """Each set of keys that is advised goes together and fits, and none of them is needless."""
    small = ["training.adv_estimator=grpo", "training.batch_size=8", "rollout.parallel=1", TOKENS + "=2048", BF16]
    config = ConfigStore().override([f"model.local_path={published}", *small, f"{CHECKPOINTING}=true", *changes])
    model = Described.of(config.model)
    how: dict[str, Any] = {"limit": gib * GIB, "tokens": 2048, "picture": (640, 360), "model": model}
    plan, settled = plan_of(config, **how), Settled(config, {}, how=how)
    assert plan.problems
    found, fits = remedies(settled, plan)
    assert expected is None or found == expected
    assert str(plan_of(config.override(found).check(training=True), **how)) == str(fits)
    assert not fits.problems
    assert advice(found, fits) == f"it fits with: {' '.join(found)}"
    for needless in found:
        fewer = settled.tried([key for key in found if key != needless])
        assert fewer is None or fewer.problems, needless


FILES = {
    "one_gpu/qwen2_5_vl_7b_lora_80gb.yaml": ("Qwen2.5-VL-7B", 80, (1920, 1080)),
    "one_gpu/qwen3_vl_4b_lora_24gb.yaml": ("Qwen3-VL-4B", 24, (1920, 1080)),
    "one_gpu/qwen3_vl_2b_lora_16gb.yaml": ("Qwen3-VL-2B", 16, (1920, 1080)),
    # MAI-UI-2B is a Qwen3-VL-2B
    "mobile_world.yaml": ("Qwen3-VL-2B", 80, (1080, 2400)),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_file_fits_its_gpu(file: str, tmp_path: Path) -> None:
    """With the sizes of the published checkpoints and screenshots as large as they come."""
    assert {f"one_gpu/{path.name}" for path in (CONFIGS / "one_gpu").iterdir()} == FILES.keys() - {"mobile_world.yaml"}
    name, gpu, picture = FILES[file]
    config = load_config(CONFIGS / file)
    assert name in config.model.model_name or file == "mobile_world.yaml"
    config.model.local_path = str(write_published(name, tmp_path))
    settled = settle(config, here=(True, gpu * GIB), picture=picture)
    assert settled.config.check(training=True).model.dtype == "bfloat16"
    assert not settled.config.wants_warm_start
    assert settled.plan is not None
    assert not settled.plan.problems, str(settled.plan)
    assert settled.plan.workload.bound is not None, "no length is assumed"
    assert settled.plan.workload.pictures


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing-here"):
        plan_of(of(tmp_path / "nothing-here"), limit=None)
