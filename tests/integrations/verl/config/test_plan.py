"""The sum of a run's memory: every config that users start from fits its machines, and what does not is refused."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.integrations.verl.config.test_shipped import composed
from tests.integrations.verl.models import qwen
from tests.integrations.verl.pages import PAGES, SHIPPED
from uirl import load_model
from uirl.cli.main import main
from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.integrations.verl.plan import Plan, plan_of
from uirl.training.memory import GIB, Shape, shape_of_config

pytestmark = pytest.mark.verl
HOST = 1024
"""GiB of a node with eight GPUs, as DGX H100s have at least."""


@cache
def shape(size: str) -> Shape:
    return shape_of_config(qwen(size))


def plan(name: str, folder: Path, *overrides: str) -> Plan:
    made, _ = composed(name, folder, *overrides)
    size = re.search(r"-(\d+B)-", made.actor_rollout_ref.model.path)
    assert size is not None
    return plan_of(made, shape(size[1]), gpu_gib=80, host_gib=HOST)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_config_fits_gpus_of_80_gib_and_hosts_of_1_tib(name: str, tmp_path: Path) -> None:
    made = plan(name, tmp_path)
    assert made.problems == [], str(made)
    assert made.cache_tokens > 2 * made.longest


@pytest.mark.parametrize("name", SHIPPED)
def test_without_recomputation_none_of_them_does(name: str, tmp_path: Path) -> None:
    made = plan(name, tmp_path, "uirl.model.gradient_checkpointing=false")
    assert any("updating the policy" in problem for problem in made.problems), str(made)


FILE = "configs/verl_config.yaml"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model.path"
TENSOR = "actor_rollout_ref.rollout.tensor_model_parallel_size"
TOO_MUCH = {
    "an entropy bonus over long micro-batches": (
        (f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.ppo_max_token_len_per_gpu=40960"),
        "updating the policy",
    ),
    "a large model on one node": (
        ("actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-72B-Instruct",),
        "updating the policy",
    ),
    "a server that takes all": (("actor_rollout_ref.rollout.gpu_memory_utilization=0.9",), "playing episodes"),
    "a server without room for a cache": (
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.25",),
        "the cache of a rollout server holds",
    ),
    "pictures that are never dropped": (("uirl.rollout.max_images=1000", "uirl.inference.max_turns=1000"), "learning"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_what_cannot_fit_is_said_with_the_moment_at_which_it_breaks(case: str, tmp_path: Path) -> None:
    overrides, moment = TOO_MUCH[case]
    problems = plan(FILE, tmp_path, *overrides).problems
    assert any(moment in problem for problem in problems), problems


def test_a_critic_and_its_states_count(tmp_path: Path) -> None:
    alone, both = plan(FILE, tmp_path), plan(FILE, tmp_path, "algorithm.adv_estimator=gae", "critic.strategy=fsdp2")
    assert "updating the critic" in [moment.name for moment in both.moments]
    more = both.moments[0].total - alone.moments[0].total
    states = 12 * shape("7B").parameters / 8  # its weights and optimiser wait on the GPU
    assert more == pytest.approx(states)
    offloaded = plan(
        FILE,
        tmp_path,
        "algorithm.adv_estimator=gae",
        "critic.strategy=fsdp2",
        "critic.fsdp.param_offload=true",
        "critic.fsdp.optimizer_offload=true",
    )
    assert offloaded.moments[0].total == pytest.approx(alone.moments[0].total)
    hosts = [m.parts["models offloaded"] for m in offloaded.moments if "models offloaded" in m.parts]
    assert hosts == [pytest.approx(16 * shape("7B").parameters)]


def moment(made: Plan, name: str) -> dict[str, float]:
    """What lies there at the moment `name`."""
    return dict(next(moment for moment in made.moments if moment.name == name).parts)


def test_a_reference_that_verls_own_keys_ask_for_counts(tmp_path: Path) -> None:
    alone, both = (moment(plan(FILE, tmp_path, f"{ACTOR}.use_kl_loss={on}"), "learning") for on in ("false", "true"))
    assert (alone["reference"], both["reference"]) == (0, pytest.approx(4 * shape("7B").parameters))
    megatron = ("verl_run_book.md#2", tmp_path, f"{ACTOR}.use_kl_loss=true")
    share = 2 * shape("72B").parameters / 16
    away = plan(*megatron)
    assert moment(away, "learning")["reference"] == pytest.approx(8 * share), "offloaded with the policy"
    assert moment(away, "playing episodes")["reference"] == 0
    stays = plan(*megatron, "actor_rollout_ref.ref.megatron.param_offload=false")
    assert moment(stays, "playing episodes")["reference"] == pytest.approx(share)
    assert moment(stays, "updating the policy")["other models that stay"] == pytest.approx(share)


def test_a_cache_is_split_no_further_than_there_are_heads(tmp_path: Path) -> None:
    """3B has two heads of keys: on eight GPUs every head is there four times."""
    made = plan(FILE, tmp_path, "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-3B-Instruct", f"{TENSOR}=8")
    room = 0.5 * 80 * GIB - 2 * shape("3B").parameters / 8 - 4 * GIB
    assert made.cache_tokens == pytest.approx(room / (2 * 36 * 128 * 2))


@pytest.mark.parametrize(
    ("name", "overrides", "key"),
    [
        (FILE, [f"{TENSOR}=8"], TENSOR),
        (FILE, [f"{ACTOR}.ulysses_sequence_parallel_size=8"], f"{ACTOR}.ulysses_sequence_parallel_size"),
        ("verl_run_book.md#2", [f"{TENSOR}=4", f"{MODEL}=Qwen/Qwen2.5-VL-7B-Instruct"], f"{ACTOR}.megatron.tensor_"),
    ],
)
def test_gpus_that_cannot_share_the_heads_are_refused(
    name: str, overrides: list[str], key: str, tmp_path: Path
) -> None:
    """7B has 28 heads, four of keys; the run book's Megatron splits layers among eight GPUs."""
    with pytest.raises(ConfigError, match=rf"{key}\w*=8 does not divide the 28 attention heads \(4 .* 1, 2, 4, 28"):
        plan(name, tmp_path, *overrides)


def test_pictures_within_a_budget_of_tokens_count_in_every_sequence(tmp_path: Path) -> None:
    """Two of 1196 tokens fit: after the first, each of 16 turns begins a sequence of two."""
    bytes_of_one = 512 * 26 * 46 * 4 * 3 * 14**2
    all_of_them = ("uirl.rollout.max_images=null", "uirl.rollout.keep_images=null")
    windowed = moment(plan(FILE, tmp_path, *all_of_them, "uirl.rollout.token_budget=2600"), "learning")[
        "pictures of an update"
    ]
    assert windowed == (1 + 1 + 14 * 2) * bytes_of_one
    whole = moment(plan(FILE, tmp_path, *all_of_them), "learning")["pictures of an update"]
    assert whole == 16 * bytes_of_one
    longer = moment(plan(FILE, tmp_path, *all_of_them, "uirl.inference.max_turns=50"), "learning")
    assert longer["pictures of an update"] == (20480 // 1196) * bytes_of_one, "a sequence holds no more"


def test_the_critics_micro_batches_are_those_that_verl_takes(tmp_path: Path) -> None:
    """verl's critic fills them up even where it is told that their number of rows is fixed."""
    gae = ("algorithm.adv_estimator=gae", "critic.strategy=fsdp2", "critic.use_dynamic_bsz=false")
    made = plan(FILE, tmp_path, *gae, "critic.ppo_micro_batch_size_per_gpu=1", "critic.ppo_max_token_len_per_gpu=40960")
    assert moment(made, "updating the critic")["inputs of the layers"] == 40960 * 28 * 2 * 3584


def test_logits_that_are_never_all_there_take_no_room(tmp_path: Path) -> None:
    """56 thousand tokens on one GPU: refused with whole logits, and not where one kernel makes and uses them."""
    long = (f"{ACTOR}.ppo_max_token_len_per_gpu=57344", "data.max_response_length=53248")
    whole = plan(FILE, tmp_path, *long, "uirl.rollout.max_images=3")
    fused = plan(FILE, tmp_path, *long, "actor_rollout_ref.model.use_fused_kernels=true")
    assert any("scoring" in problem for problem in whole.problems)
    assert fused.problems == [], str(fused)


def test_states_that_fsdp2_keeps_on_the_host_are_not_on_the_gpu(tmp_path: Path) -> None:
    made = plan(FILE, tmp_path, f"{ACTOR}.fsdp_config.offload_policy=true")
    parts = moment(made, "updating the policy")
    assert (parts["weights"], parts["gradients"], parts["states of the optimiser"]) == (0, 0, 0)
    assert moment(made, "playing episodes")["trained models that stay"] == 0
    assert moment(made, "learning")["models offloaded"] == pytest.approx(16 * shape("7B").parameters)


def rows(folder: Path) -> list[str]:
    """The table of the run book."""
    out = []
    for name in SHIPPED:
        if name.startswith("verl.md"):
            continue
        made = plan(name, folder)
        full = {moment.name: f"{moment.total / GIB:.0f}" for moment in made.moments}
        cells = [full.get(moment, "") for moment in MOMENTS]
        title = TITLES[name]
        out.append(f"| {title} | " + " | ".join([*cells, f"{made.cache_tokens / 1000:.0f}"]) + " |")
    return out


MOMENTS = (
    "updating the policy",
    "scoring what was sampled",
    "sending weights to the servers",
    "playing episodes",
    "loading the model",
    "learning",
)
TITLES = {
    "configs/verl_config.yaml": "7B, FSDP2, 8 GPUs",
    "verl_run_book.md#0": "32B, adapters, FSDP2, 8 GPUs",
    "verl_run_book.md#1": "72B, FSDP2, 32 GPUs",
    "verl_run_book.md#2": "72B, Megatron, 32 GPUs",
}


def test_the_table_of_the_run_book_is_this_sum(tmp_path: Path) -> None:
    missing = [row for row in rows(tmp_path) if f"\n{row}\n" not in PAGES["verl_run_book.md"]]
    assert missing == []


def test_the_command_prints_the_sum_and_says_whether_it_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_model(ConfigStore().override(["model.model_name=uirl/tiny-lm"]).model).save(tmp_path / "model")
    path = tmp_path / "config.yaml"
    path.write_text(SHIPPED[FILE])
    command = ["verl", "--config", str(path), "--plan", "--sft_model_path", str(tmp_path / "model")]
    assert main([*command, "--host_gib", "500"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^GPU, updating the policy: \d+\.\d of 72\.0 GiB$", said, re.MULTILINE)
    assert re.search(r"^host, learning: \d+\.\d of 450 GiB$", said, re.MULTILINE)
    assert main([*command, "--gpu_gib", "4"]) == 1
    assert "does not fit: " in capsys.readouterr().out
    assert main([*command, "--picture", "large"]) == 2
    assert "expected a picture like 1280x720" in capsys.readouterr().err
    assert main(["verl", "--config", str(path), "--plan", "--sft_model_path", str(tmp_path / "nothing")]) == 2
