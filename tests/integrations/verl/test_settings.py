"""verl's config from ours and from files in verl's terms: what each key says, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import TwoLooks
from uirl import ConfigError, ConfigStore, load_model
from uirl.config.keys import nested_section, walk
from uirl.integrations.verl.mapping import ELSEWHERE, FIXED, FOR_SMALL_MODELS, MAPPED, WITHOUT_EFFECT, ignored
from uirl.integrations.verl.settings import (
    CustomGRPOTrainer,
    Settings,
    Written,
    compose,
    create_curriculum,
    create_verl_config,
    load_verl_config,
    read_verl_yaml,
)
from uirl.integrations.verl.trainer import create_trainer

FILE = Path(__file__).parents[3] / "configs" / "verl_config.yaml"
DOCUMENT = Path(__file__).parent / "data" / "trainer.yaml"
"""The YAML that a founding document shows for verl's trainer, word for word."""
GRPO = CustomGRPOTrainer(eps_low=0.1, eps_high=0.35, normalize_by_std=False, kl_coef=0.001)
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"


def own(*overrides: str) -> ConfigStore:
    return ConfigStore().override(["model.model_name=/models/seven", *overrides])


def file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


# -- from ours ---------------------------------------------------------------------------------------------------------


def test_every_key_of_ours_is_mapped_or_says_why_not() -> None:
    keys = {key for key, field in walk(ConfigStore) if nested_section(field) is None}

    def reasons(key: str) -> list[str]:
        named = (*ELSEWHERE, *WITHOUT_EFFECT)
        return [entry for entry in named if key == entry or key.startswith(entry + ".")]

    assert {key for key in keys if key not in MAPPED and not reasons(key)} == set()
    assert {key for key in MAPPED if reasons(key)} == set()
    assert {key for key in keys if len(reasons(key)) > 1} == set()
    known = keys | {key.rsplit(".", 1)[0] for key in keys}
    assert {entry for entry in (*MAPPED, *ELSEWHERE, *WITHOUT_EFFECT) if entry not in known} == set()


@pytest.mark.verl
def test_what_is_set_in_vain_is_named(tmp_path: Path) -> None:
    assert ignored(own("inference.temperature=0.7", "training.minibatches=1").to_dict()) == []
    vain = own("training.warm_start.steps=3", "training.max_seconds=60", f"logging.runs_dir={tmp_path}")
    said = [line.partition(":")[0] for line in ignored(vain.to_dict())]
    assert said == ["training.max_seconds", "training.warm_start"]
    with pytest.warns(UserWarning, match=r"no effect under verl: .*training\.warm_start: run it with the local"):
        create_trainer(vain)


@pytest.mark.verl
def test_the_mapped_values_say_the_same() -> None:
    sizes = ("training.group_size=16", "training.batch_size=128", "training.minibatches=2", "ray.nnodes=4")
    clips = ("training.clip_ratio_low=0.2", "training.clip_ratio_high=0.3", "algorithm.tis_cap=2.5")
    lengths = ("training.num_epochs=3", "training.num_iters_per_epoch=5", "checkpoint.save_interval=2")
    others = ("training.adv_estimator=grpo", "inference.top_k=0", "algorithm.kl_loss_coef=0.01", "model.use_lora=true")
    made = create_verl_config(own(*sizes, *clips, *lengths, *others), prompt_length=2048, response_length=8192)
    rollout, actor = made.actor_rollout_ref.rollout, made.actor_rollout_ref.actor
    # verl counts prompts where we count episodes: 128 episodes are 8 groups of 16, in 2 mini-batches of 4 groups
    assert (made.data.train_batch_size, rollout.n, actor.ppo_mini_batch_size) == (8, 16, 4)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.3)
    assert (made.trainer.total_training_steps, made.trainer.save_freq, made.trainer.nnodes) == (15, 10, 4)
    assert (rollout.top_k, rollout.mode, rollout.name) == (-1, "async", "vllm")
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.01, "low_var_kl")
    correction = made.algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == ("token", 2.5)
    assert (made.actor_rollout_ref.model.lora_rank, made.actor_rollout_ref.model.path) == (16, "/models/seven")
    assert (made.data.max_prompt_length, made.data.max_response_length) == (2048, 8192)
    assert (made.algorithm.adv_estimator, made.critic.enable) == ("grpo", False)


@pytest.mark.verl
def test_what_some_settings_need_more_of() -> None:
    plain, config = create_verl_config(own()), own("environment.name=guess_number")
    assert plain.critic.enable
    assert not plain.algorithm.filter_groups.enable, "verl refills without limit"
    assert create_verl_config(own("algorithm.max_resamples=2")).algorithm.filter_groups.enable
    imitation = create_verl_config(own("training.adv_estimator=rejection_sampling"))
    assert imitation.algorithm.adv_estimator == "uirl_rejection_sampling"
    assert imitation.actor_rollout_ref.actor.policy_loss.loss_mode == "gpg"
    assert Settings.read(create_verl_config(config).data).store() == config


@pytest.mark.verl
def test_verl_finds_the_config_valid(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    load_model(ConfigStore().override(["model.model_name=uirl/tiny-lm"]).model).save(tmp_path)
    for estimator in ("gae", "grpo"):
        keys = (f"training.adv_estimator={estimator}", "training.clip_ratio_high=0.3", "inference.top_p=0.9")
        made = create_verl_config(own(*keys), model_path=str(tmp_path))
        validate_config(made, use_reference_policy=False, use_critic=estimator == "gae")
        parts = (made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout, made.algorithm)
        actor, rollout, algorithm = (omega_conf_to_dataclass(part) for part in parts)
        assert (algorithm.adv_estimator, actor.clip_ratio_high, rollout.top_p) == (estimator, 0.3, 0.9)
        assert rollout.val_kwargs.top_p == 0.9, "evaluation samples as training does"


@pytest.mark.verl
@pytest.mark.parametrize(
    ("ours", "keys", "message"),
    [
        ((), ["trainer.nnode=2"], r"verl has no key 'trainer.nnode': trainer holds no 'nnode'; .*'nnodes'"),
        (("training.adv_estimator=gigpo",), [], "has no place under verl"),
        (
            (
                "training.adv_estimator=grpo",
                "training.batch_size=24",
                "training.group_size=8",
                "training.minibatches=2",
            ),
            [],
            "does not divide the 3 groups",
        ),
        ((), {"trainer.nnodes": {"count": 2}}, r"trainer\.nnodes cannot hold .*expected a value like 1"),
        ((), {"actor_rollout_ref.rollout": 3}, r"actor_rollout_ref\.rollout cannot hold 3.*expected keys and values"),
    ],
)
def test_what_verl_does_not_have_is_refused(ours: tuple[str, ...], keys: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_verl_config(own(*ours), keys)


@pytest.mark.verl
def test_verls_own_keys_win_and_sections_that_verl_leaves_empty_take_anything() -> None:
    made = create_verl_config(
        own("inference.engine_options={swap_space: 8}"),
        {
            "trainer.total_epochs": 7,
            "data.mm_processor_kwargs": {"max_pixels": 500_000},
            "actor_rollout_ref.rollout.engine_kwargs.sglang.mem": 1,
        },
    )
    engines = made.actor_rollout_ref.rollout.engine_kwargs
    assert (made.trainer.total_epochs, engines.vllm.swap_space, engines.sglang.mem) == (7, 8, 1)
    assert made.data.mm_processor_kwargs.max_pixels == 500_000
    other = create_verl_config(own(), ["data.mm_processor_kwargs.max_pixels=5"]).data
    assert other.mm_processor_kwargs.max_pixels == 5
    deep = create_verl_config(own(), ["actor_rollout_ref.actor.megatron.override_ddp_config.x=1"], megatron=True)
    assert deep.actor_rollout_ref.actor.megatron.override_ddp_config.x == 1


@pytest.mark.verl
@pytest.mark.parametrize(("server", "tokens"), [("vllm", 1024 + 512), ("sglang", 1024 + 512 + 1)])
def test_a_server_holds_the_longest_sequence_and_not_all_that_the_model_could(
    server: str, tokens: int, tmp_path: Path
) -> None:
    """verl's null is the model's maximum, for which a server wants a cache before it starts."""
    store = own(f"logging.runs_dir={tmp_path}", f"inference.backend={server}", "rollout.max_tokens=512")
    keys = {"actor_rollout_ref.actor.ppo_mini_batch_size": 128}
    assert create_trainer(store, overrides=keys).config.actor_rollout_ref.rollout.max_model_len == tokens
    asked = store.override(["inference.max_context=4000"])
    assert create_trainer(asked, overrides=keys).config.actor_rollout_ref.rollout.max_model_len == 4000


@pytest.mark.verl
@pytest.mark.parametrize(
    ("server", "keys", "message"),
    [
        ("vllm", {"data.mm_processor_kwargs": {"do_resize": False}}, r"kwargs\.do_resize has no place here"),
        ("sglang", {"data.mm_processor_kwargs": {"max_pixels": 1000}}, "SGLang server takes no data.mm_processor"),
        ("vllm", {f"{MULTI_TURN}.enable": True}, r"multi_turn.enable=True has no effect.*max_turns of the section"),
        ("vllm", {f"{MULTI_TURN}.tool_config_path": "a.yaml"}, r"tool_config_path='a.yaml' has no effect"),
        ("vllm", {"reward.custom_reward_function.path": "a.py"}, r"custom_reward_function.path='a.py' has no effect"),
    ],
)
def test_keys_that_not_every_process_reads_are_refused(
    server: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_trainer(own(f"logging.runs_dir={tmp_path}", f"inference.backend={server}"), TwoLooks(), overrides=keys)


@pytest.mark.verl
def test_a_dataset_of_somebody_elses_may_name_verls_loop(tmp_path: Path) -> None:
    dataset = {"data.custom_cls.path": None, "data.custom_cls.name": None, "data.train_files": "rows.parquet"}
    keys = {f"{MULTI_TURN}.enable": True, "reward.custom_reward_function.path": "mine.py"}
    made = trainer(config(tmp_path), TwoLooks(), verl=dataset | keys).config
    assert made.actor_rollout_ref.rollout.multi_turn.enable is True


# -- from a file in verl's terms ---------------------------------------------------------------------------------------


@pytest.mark.verl
def test_the_file_of_the_project_is_taken_as_it_is() -> None:
    made, ours, own_curriculum = load_verl_config(FILE, ["trainer.nnodes=2"])
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (rollout.n, rollout.mode, rollout.name) == (16, "async", "vllm")
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.strategy) == (0.2, 0.3, "fsdp2")
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node) == (2, 8)
    assert (ours.curriculum.enabled, ours.curriculum.min_attempts_per_task, own_curriculum) == (True, 5, {})
    assert Settings.read(made.data).store() == ours
    assert (ours.training.group_size, ours.training.clip_range, ours.ray.nnodes) == (16, (0.2, 0.3), 2)
    assert ours.model.model_name == made.actor_rollout_ref.model.path == made.critic.model.path
    assert made.trainer.total_training_steps == ours.training.num_epochs * ours.training.num_iters_per_epoch


def test_verls_words_become_ours() -> None:
    flat = {
        "actor_rollout_ref.rollout.n": 4,
        "data.train_batch_size": 6,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.actor.optim.lr": 2e-6,
        "algorithm.adv_estimator": "rloo",
        "trainer.total_epochs": 3,
        "trainer.total_training_steps": 12,
        "actor_rollout_ref.rollout.top_k": -1,
        "trainer.test_freq": -1,
        "trainer.experiment_name": "mine",
    }
    ours = Written(flat, ConfigStore(), {}, set()).merged()
    training = ours.training
    assert (training.group_size, training.batch_size, training.minibatches) == (4, 24, 3)
    assert (training.learning_rate, training.adv_estimator) == (2e-6, "rloo")
    assert (training.num_epochs, training.num_iters_per_epoch) == (3, 4)
    assert (ours.inference.top_k, ours.logging.run_name) == (0, "mine")
    assert training.eval_every == ConfigStore().training.eval_every, "verl's -1 is never, which is left to verl"
    only_verls = {"algorithm.adv_estimator": "opo", "actor_rollout_ref.rollout.name": "trtllm"}
    assert Written(only_verls, ConfigStore(), {}, set()).merged() == ConfigStore()


def test_the_command_line_wins_over_the_file_in_either_spelling(tmp_path: Path) -> None:
    path = file(tmp_path, "algorithm: {clip_eps_low: 0.1}\nuirl: {training: {seed: 3}}\n")
    read = read_verl_yaml(
        path, ["actor_rollout_ref.actor.clip_ratio_low=1e-2", "uirl.training.seed=5", "curriculum.enabled=true"]
    )
    assert read.flat == {"actor_rollout_ref.actor.clip_ratio_low": 0.01}
    assert (read.store.training.seed, read.store.curriculum.enabled, read.curriculum) == (5, True, {})
    other = read_verl_yaml(file(tmp_path, "curriculum: {class: mine:Own}"), {"curriculum.pace": 3})
    assert (other.store.curriculum, other.curriculum) == (ConfigStore().curriculum, {"class": "mine:Own", "pace": 3})


def test_the_file_of_the_document_is_read_as_it_stands() -> None:
    read = read_verl_yaml(DOCUMENT)
    ours = read.merged()
    training = ours.training
    assert (training.num_epochs, training.gamma, training.lam, training.clip_range) == (10, 0.99, 0.95, (0.2, 0.2))
    assert (training.batch_size, training.episodes_per_group, ours.inference.temperature) == (32, 1, 0.7)
    assert (ours.logging.project, ours.logging.run_name) == ("my_project", "experiment_1")


@pytest.mark.verl
def test_verl_takes_the_file_of_the_document() -> None:
    made, ours, _ = load_verl_config(DOCUMENT, ["algorithm.clip_ratio=0.1"])
    actor = made.actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.1, 0.1)
    assert (made.trainer.total_epochs, made.trainer.device, made.trainer.project_name) == (10, "cuda", "my_project")
    assert (made.data.train_batch_size, made.actor_rollout_ref.rollout.n) == (32, 1)
    assert Settings.read(made.data).store() == ours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "algorithm: {clip_ratio: 0.1}\nactor_rollout_ref: {actor: {clip_ratio: 0.2}}",
            "algorithm.clip_ratio and actor_rollout_ref.actor.clip_ratio say the same thing",
        ),
        ("- a list", "holds list; expected sections"),
        ("uirl: 3", "section uirl is 3"),
        ("uirl: {training: {sed: 3}}", "sed"),
        ("a: [", "is not YAML"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_verl_yaml(file(tmp_path, text))


OURS_WHATEVER_THE_FILE_SAYS = """
actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.rollout.seed data.seed
actor_rollout_ref.actor.ppo_mini_batch_size critic.ppo_mini_batch_size data.train_batch_size
actor_rollout_ref.rollout.tensor_model_parallel_size trainer.total_epochs trainer.total_training_steps
data.max_prompt_length data.max_response_length actor_rollout_ref.rollout.name
actor_rollout_ref.rollout.val_kwargs.temperature trainer.test_freq trainer.save_freq trainer.max_actor_ckpt_to_keep
trainer.max_critic_ckpt_to_keep trainer.resume_mode trainer.logger trainer.project_name trainer.experiment_name
critic.enable actor_rollout_ref.model.path critic.model.path critic.model.tokenizer_path
actor_rollout_ref.model.lora_alpha actor_rollout_ref.actor.kl_loss_coef
"""
"""verl's keys that hold our value in a file that says nothing of them. None of them is about large models: seeds, how
large an update is and how many there are, evaluations and checkpoints, the weight of a term that is off."""


def leaves_of(config: Any) -> dict[str, Any]:
    """Dotted key -> value of verl's whole config, without what only repeats another key."""
    from omegaconf import OmegaConf

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                yield from walk(value, f"{prefix}{key}.")
            elif not (isinstance(value, str) and ("${" in value or value == "???")):
                yield f"{prefix}{key}", value

    return dict(walk(OmegaConf.to_container(config), ""))


@pytest.mark.verl
def test_a_file_that_says_nothing_holds_no_default_of_ours_that_suits_tiny_models(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    made, ours, _ = load_verl_config(file(tmp_path, "uirl: {}\n"))
    theirs = compose()
    theirs.actor_rollout_ref.rollout.name = "vllm"
    mine = {key: value for key, value in leaves_of(made).items() if not key.startswith("data.uirl")}
    differs = {key for key, value in mine.items() if value != OmegaConf.select(theirs, key)}
    assert differs - {*FIXED, *OURS_WHATEVER_THE_FILE_SAYS.split()} == set()
    # and ours tell what verl will do
    assert (ours.training.entropy_coef, ours.algorithm.dual_clip, ours.training.learning_rate) == (0, 3.0, 1e-6)
    assert (ours.model.dtype, ours.training.betas, ours.training.warmup_steps) == ("bfloat16", (0.9, 0.999), 0)
    assert ours.training.value_learning_rate == made.critic.optim.lr == 1e-5
    assert len(FOR_SMALL_MODELS) == 10


@pytest.mark.verl
def test_what_the_file_or_the_command_line_writes_holds_even_where_it_is_our_default(tmp_path: Path) -> None:
    text = "uirl: {training: {entropy_coef: 0.02, betas: [0.9, 0.99]}, model: {gradient_checkpointing: false}}\n"
    made, ours, _ = load_verl_config(file(tmp_path, text), ["uirl.algorithm.dual_clip=null", "uirl.training.lam=0.95"])
    actor = made.actor_rollout_ref.actor
    assert (actor.entropy_coeff, actor.clip_ratio_c, list(actor.optim.betas)) == (0.02, 1e9, [0.9, 0.99])
    assert (made.algorithm.lam, ours.training.lam, ours.algorithm.dual_clip) == (0.95, 0.95, None)
    assert not made.actor_rollout_ref.model.enable_gradient_checkpointing
    assert not made.critic.model.enable_gradient_checkpointing
    assert ours.training.entropy_coef == 0.02


class Mine:
    def __init__(self, pace: int = 1) -> None:
        self.pace = pace


def test_a_section_names_a_curriculum_of_ones_own_and_its_arguments() -> None:
    name = f"{__name__}:Mine"
    made = create_curriculum({"class": name, "pace": 3})
    assert isinstance(made, Mine)
    assert made.pace == 3
    assert create_curriculum({"class": name, "enabled": False}) is None
    assert create_curriculum({}) is None
    for section, message in (
        ({"class": name, "colour": "red"}, "colour"),
        ({"class": name, "enabled": "often"}, "expected true or false"),
        ({"class": "nowhere:Mine"}, "expected 'package.module:Class'"),
    ):
        with pytest.raises(ConfigError, match=message):
            create_curriculum(section)


# -- GRPO's settings, and those of a multi-turn engine -----------------------------------------------------------------


def test_grpo_in_a_config_of_ours() -> None:
    before = ConfigStore()
    config = GRPO.update_config_for_verl(before)
    assert (config.training.adv_estimator, config.training.clip_range) == ("grpo", (0.1, 0.35))
    assert (config.algorithm.normalize_by_std, config.algorithm.kl_loss_coef) == (False, 0.001)
    assert before == ConfigStore()
    for wrong in ({"eps_low": 1.0}, {"eps_high": 0.0}, {"kl_coef": -0.1}, {"eps_low": float("nan")}):
        with pytest.raises(ConfigError, match="expected 0 < eps_low < 1"):
            CustomGRPOTrainer(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a ConfigStore or verl's config, got dict"):
        GRPO.update_config_for_verl({})


@pytest.mark.verl
def test_grpo_in_a_config_of_verls() -> None:
    from omegaconf import OmegaConf

    before = create_verl_config(own())
    config = GRPO.update_config_for_verl(before)
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.35)
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.001)
    assert (config.algorithm.adv_estimator, config.algorithm.norm_adv_by_std_in_grpo) == ("grpo", False)
    assert before.actor_rollout_ref.actor.clip_ratio_low != 0.1
    with pytest.raises(ConfigError, match=r"Expected a whole config of verl's.*load_verl_config"):
        GRPO.update_config_for_verl(OmegaConf.create({"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {}}))


@pytest.mark.verl
def test_a_multi_turn_engine_says_turns_prompt_and_tools(tmp_path: Path) -> None:
    from uirl import CalculatorTool, MultiTurnInferenceEngine, ToolRegistry, create_inference_engine, create_parser
    from uirl.environments.tool_use import ToolEnvironment
    from uirl.rollout import MultiTurnManager

    engine = create_inference_engine("uirl/tiny-lm")
    manager = MultiTurnManager(ToolRegistry([CalculatorTool()]), create_parser("qwen"), TwoLooks())
    multi_turn = MultiTurnInferenceEngine(engine, 3, "look twice", tool_manager=manager, enable_tools=True)
    store = ConfigStore().override(["model.model_name=uirl/tiny-lm", f"logging.runs_dir={tmp_path}"])
    trainer = create_trainer(store, TwoLooks(), multi_turn_engine=multi_turn)
    told = Settings.read(trainer.config.data).store()
    assert told.inference.max_turns == 3
    assert told.inference.system_prompt.startswith("look twice\n\n- calculator(")
    assert isinstance(trainer._environment, ToolEnvironment)
    assert told.environment.name == "object:uirl.environments.tool_use.environment:ToolEnvironment"
    with pytest.raises(ConfigError, match="handed over in code"):
        create_trainer(told)
    assert store.inference.max_turns != 3
    engine.close()
    manager.close()
