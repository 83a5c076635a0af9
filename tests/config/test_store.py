"""The tree: defaults, YAML and dict round trips, overrides, strictness, and messages that name the key."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.config import ConfigStore, EnvironmentConfig, ModelConfig, TrainingConfig, load_config
from uirl.environments.registry import option_sections
from uirl.errors import ConfigError
from uirl.integrations.mobile_world import AgentLoopOptions
from uirl.serving import EndpointOptions


def message(call, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_the_defaults_are_a_valid_run():
    assert ConfigStore().check(training=True) == ConfigStore()


def test_the_documented_assignments_are_accepted():
    config = ConfigStore()
    config.model.model_name = "meta-llama/Llama-2-7b-hf"
    config.model.dtype = "bfloat16"
    config.inference.backend = "vllm"
    config.inference.max_tokens = 256
    config.inference.temperature = 0.7
    config.training.learning_rate = 1e-5
    config.training.num_epochs = 10
    config.training.batch_size = 32
    config.training.clip_ratio = 0.2
    config.training.adv_estimator = "grpo"
    config.checkpoint.output_dir = "./checkpoints"
    config.checkpoint.save_interval = 5
    config.ray.use_ray = True
    config.ray.num_actors = 4
    config.check(training=True)
    assert config.training.learning_rate == 1e-5
    assert config.ray.num_actors == 4


def test_two_stores_share_nothing():
    first, second = ConfigStore(), ConfigStore()
    first.environment.options["level"] = 3
    first.training.warm_start.steps = 7
    assert second == ConfigStore()


@pytest.mark.parametrize(
    ("assign", "key", "meant"),
    [
        (lambda c: setattr(c.training, "learning_rat", 1), "training.learning_rat", "'training.learning_rate'"),
        (lambda c: setattr(c.training, "lr", 1), "training.lr", "'training.learning_rate'"),
        (lambda c: setattr(c.training, "temperature", 1), "training.temperature", "'inference.temperature'"),
        (lambda c: setattr(c.model.lora, "rr", 1), "model.lora.rr", "'model.lora.r'"),
        (lambda c: setattr(c, "trainin", 1), "trainin", "'training'"),
        (lambda c: TrainingConfig(gae_lambda=1), "training.gae_lambda", "'training.lam'"),
        (lambda c: ConfigStore(model={"name": "x"}), "model.name", "'model.model_name'"),
        (lambda c: c.override(["trainng.learning_rate=1"]), "trainng.learning_rate", "'training.learning_rate'"),
        (lambda c: c.override(["training.warm_start={step: 3}"]), "training.warm_start.step", "start.steps'"),
    ],
)
def test_an_unknown_key_names_itself_and_the_nearest(assign, key, meant):
    text = message(assign, ConfigStore())
    assert text.startswith(f"{key} is not a config key; did you mean ")
    assert meant in text


def test_an_unknown_key_with_nothing_near_lists_what_there_is():
    text = message(ConfigStore().override, ["zzz=1"])
    assert text == (
        "zzz is not a config key; known: model, inference, environment, rollout, training, algorithm, curriculum, "
        "actors, verification, evolve, checkpoint, ray, logging"
    )


@pytest.mark.parametrize(
    ("assign", "expected"),
    [
        (
            lambda c: setattr(c.training, "learning_rate", -1),
            "training.learning_rate: got -1, expected number > 0 or null",
        ),
        (
            lambda c: setattr(c.training, "learning_rate", "1e-4"),
            "training.learning_rate: got '1e-4', expected number > 0 or null",
        ),
        (
            lambda c: setattr(c.training, "group_size", True),
            "training.group_size: got True, expected whole number >= 1 or null",
        ),
        (
            lambda c: setattr(c.training, "betas", [0.9, 2.0]),
            "training.betas[1]: got 2.0, expected [number >= 0 and < 1, number >= 0 and < 1]",
        ),
        (
            lambda c: setattr(c.training, "learning_rate", float("nan")),
            "training.learning_rate: got nan, expected number > 0 or null",
        ),
        (
            lambda c: setattr(c.algorithm, "reward_threshold", float("inf")),
            "algorithm.reward_threshold: got inf, expected number",
        ),
        (lambda c: setattr(c.algorithm, "kl_type", "k4"), "algorithm.kl_type: got 'k4', expected 'k1' or 'k2' or 'k3'"),
        (lambda c: setattr(c, "training", 3), "training: got 3, expected mapping of keys"),
        (
            lambda c: setattr(c.model.lora, "target", ["q", 3]),
            "model.lora.target: got ['q', 3], expected 'attention' or 'mlp' or 'all' or list of text",
        ),
        (lambda c: ConfigStore.from_dict(5), "the config: got 5, expected a mapping of config keys"),
        (
            lambda c: c.override(["training.warm_start.steps=0"]),
            "training.warm_start.steps: got 0, expected whole number >= 1",
        ),
    ],
)
def test_a_wrong_value_says_key_got_and_expected(assign, expected):
    assert message(assign, ConfigStore()) == expected


def test_a_refused_assignment_changes_nothing():
    config = ConfigStore()
    message(setattr, config.training, "gamma", 2)
    message(setattr, config.training, "gama", 2)
    assert config == ConfigStore()


def test_all_problems_of_a_file_are_listed_at_once(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training: {lr: 1, gamma: 2}\nmodel: {dtype: fp32}\nenviroment: {}\n")
    text = message(ConfigStore.from_yaml, path)
    assert text.startswith(f"{path}: ")
    for part in ("training.lr is not", "training.gamma: got 2", "model.dtype: got 'fp32'", "mean 'environment'"):
        assert part in text
    assert len(text.splitlines()) == 4


def test_options_take_plain_data_only():
    config = ConfigStore()
    config.environment.options = {"level": 2, "palette": ["red", None, 0.5], "deep": {"a": True}}
    text = message(setattr, config.environment, "options", {"a": {"b": [1, object]}})
    assert text.startswith("environment.options.a.b[1]: got <class 'object'>, expected mapping of plain data")


PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(options=st.dictionaries(st.text(), PLAIN, max_size=4), rate=st.floats(1e-300, 1e300), name=st.text())
def test_yaml_round_trip_is_exact(options, rate, name):
    config = ConfigStore()
    config.environment.options, config.training.learning_rate, config.model.model_name = options, rate, name
    config.training.betas = (0.1 + 0.2, 1 / 3)
    again = load_config_text(config.to_yaml())
    assert again == config
    assert repr(again.to_dict()) == repr(config.to_dict())  # 1 and 1.0 and True are equal, their texts are not


def load_config_text(text: str) -> ConfigStore:
    from uirl.config.yaml_text import parse

    return ConfigStore.from_dict(parse(text, "text"))


@pytest.mark.parametrize(
    "word", ["no", "on", "y", "1e-4", "1:30", "0x1f", "\x85", "2024-01-01", "~", "null", "1_000", ".5", ""]
)
def test_words_that_look_like_something_else_stay_words(word):
    import yaml

    config = ConfigStore()
    config.model.model_name = word
    assert load_config_text(config.to_yaml()).model.model_name == word
    assert yaml.safe_load(config.to_yaml())["model"]["model_name"] == word  # a YAML 1.1 reader agrees


def test_a_file_may_be_partial_or_empty_and_is_written_whole(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("")
    assert ConfigStore.from_yaml(path) == ConfigStore()
    path.write_text("training:\n  learning_rate: 1e-4\n  batch_size: 1_024\n")
    config = ConfigStore.from_yaml(path)
    assert (config.training.learning_rate, config.training.batch_size) == (1e-4, 1024)
    text = config.to_yaml(tmp_path / "deep" / "resolved.yaml")
    assert (tmp_path / "deep" / "resolved.yaml").read_text() == text
    assert ConfigStore.from_yaml(tmp_path / "deep" / "resolved.yaml") == config


ALIASES = "v0: &v0 [x]\n" + "".join(f"v{i + 1}: &v{i + 1} [{', '.join(9 * [f'*v{i}'])}]\n" for i in range(7))
"""Seven short lines that are 5 million values."""
MERGES = ALIASES.replace("[x]", "{x: 1}").replace(" [", " {!!merge <<: [").replace("]\n", "]}\n")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("training: [", "is not YAML"),
        ("training: {gamma: 1, gamma: 0.5}", "key 'gamma' is given twice"),
        ("training: {use_kl_in_reward: yes}", "training.use_kl_in_reward: got 'yes', expected true or false"),
        ("!!python/object/apply:os.system [echo]", "is not YAML"),
        ("training: {1: 2}", "training.1 is not a config key"),
        ("- 1", "the config: got [1], expected a mapping"),
        (ALIASES, "too many values"),
        (MERGES, "not YAML"),
        ("environment: {options: &a {a: *a}}", "nested too deep"),
        ("[" * 2000, "nested too deep"),
        (f"logging: {{run_name: {'x' * 2**20}}}", "expected at most 1048576"),
        (f"training: {{seed: {'9' * 5000}}}", "digits"),
        ("training: {? [a] : b}", "is not YAML"),
    ],
)
def test_bad_files_are_config_errors_that_name_the_file(tmp_path, text, part):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for read in (ConfigStore.from_yaml, load_config):
        found = message(read, path)
        assert str(path) in found
        assert part in found


def test_a_missing_file_is_a_config_error(tmp_path):
    assert "cannot read the config" in message(load_config, tmp_path / "none.yaml")


def test_overrides_read_yaml_and_leave_the_original():
    config = ConfigStore()
    changed = config.override(
        [
            "training.learning_rate=1e-4",
            "training.betas=[0.8, 0.9]",
            "training.warm_start={steps: 3, enabled: false}",
            "training.warm_start.batch_size=8",
            "rollout.max_images=3",
            "rollout.max_images=null",
            "environment.options.screen.size=224",
            "environment.options.words=a = b",
        ]
    )
    assert config == ConfigStore()
    assert type(changed.training.learning_rate) is float
    assert changed.training.learning_rate == 1e-4
    assert changed.training.betas == (0.8, 0.9)
    warm = changed.training.warm_start
    assert (warm.steps, warm.enabled, warm.batch_size, warm.learning_rate) == (3, False, 8, None)
    assert changed.rollout.max_images is None
    assert changed.environment.options == {"screen": {"size": 224}, "words": "a = b"}


@pytest.mark.parametrize(
    ("assignment", "part"),
    [
        ("training.learning_rate", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("training.learning_rate=[", "the value of training.learning_rate is not YAML"),
        ("training.betas.x=1", "training.betas.x is not a config key; training.betas holds [0.9, 0.99]"),
        ("training=3", "training: got 3, expected mapping of keys"),
    ],
)
def test_bad_overrides(assignment, part):
    assert part in message(ConfigStore().override, [assignment])


def test_an_override_may_make_a_file_consistent(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training: {adv_estimator: grpo, batch_size: 12}\n")
    assert "is no multiple of the 8 episodes" in message(load_config, path)
    assert load_config(path, ["training.group_size=4"]).training.episodes_per_group == 4


def test_sections_travel_to_other_processes():
    config = ConfigStore().override(["environment.options.level=3", "model.use_lora=true"])
    assert pickle.loads(pickle.dumps(config)) == config
    twin = copy.deepcopy(config)
    twin.environment.options["level"] = 1
    assert config.environment.options["level"] == 3


def test_a_path_is_accepted_where_a_path_is_meant():
    config = ConfigStore()
    config.checkpoint.output_dir = Path("a") / "b"
    config.model.local_path = Path("m")
    assert (config.checkpoint.output_dir, config.model.local_path) == ("a/b", "m")


def test_resolved_numbers():
    config = ConfigStore()
    assert (config.training.episodes_per_group, config.turn_limit, config.needs_reference) == (1, 16, False)
    config.training.adv_estimator = "grpo"
    assert config.training.episodes_per_group == 8
    config.inference.multi_turn = False
    assert config.turn_limit == 1
    config.rollout.max_turns = 5
    assert config.turn_limit == 5
    config.algorithm.kl_loss_coef = 0.1
    assert config.needs_reference
    config.training.clip_ratio = 0.1
    assert config.training.clip_range == (0.1, 0.1)
    config.training.clip_ratio_high = 0.3
    assert config.training.clip_range == (0.1, 0.3)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("guess_number", "guess_number"),
        ("my.module:DrawerEnvironment", "drawer"),
        ("object:my.module:Outer.<locals>.CartWorld", "cart_world"),
        ("object:my.module:Environment", "own"),
    ],
)
def test_an_environment_gives_its_name_to_files(name, label):
    assert EnvironmentConfig(name=name).label == label


def test_what_a_run_notes_about_an_object_is_no_key_of_the_tree():
    config = ConfigStore()
    config.environment.note_object(Path())
    assert config.environment.name == f"object:{type(Path()).__module__}:PosixPath"
    assert load_config_text(config.to_yaml()).environment.is_object
    assert set(EnvironmentConfig.model_fields) == set(config.environment.to_dict())
    assert message(config.override, ["environment.given=null"]).startswith("environment.given is not a config key")
    assert "given'" not in message(config.override, ["environment.givn=null"])
    with pytest.raises(ConfigError, match=r"an object of pathlib.*, handed over in code"):
        config.environment.require_named()
    config.override(["environment.name=screen"]).environment.require_named()


def test_evaluation_options_lie_on_top():
    section = EnvironmentConfig(options={"level": 1, "size": 56}, eval_options={"level": 3})
    assert section.options_for("train") == {"level": 1, "size": 56}
    assert section.options_for("eval") == {"level": 3, "size": 56}


def test_every_key_is_documented():
    from uirl.config.keys import nested_section, walk

    undocumented = [key for key, field in walk(ConfigStore) if not field.description and nested_section(field) is None]
    assert undocumented == []


def reference_page() -> str:
    return ConfigStore.reference(option_sections(), [EndpointOptions, AgentLoopOptions])


def test_the_reference_page_is_up_to_date():
    command = "python -c 'from tests.config.test_store import PAGE, reference_page; PAGE.write_text(reference_page())'"
    assert PAGE.read_text() == reference_page(), f"write docs/configuration.md again: {command}"


def test_the_config_loads_no_torch():
    code = "import sys, uirl.config; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_section_alone_names_full_keys():
    assert message(ModelConfig, dtype="half").startswith("model.dtype: got 'half'")


def test_what_a_process_notes_beside_a_config_makes_no_other_config() -> None:
    one, other = ConfigStore(), ConfigStore()
    one.logging.keep_home()
    one.logging.call_runs("job")
    assert one == other
    assert one.to_yaml() == other.to_yaml()
    assert pickle.loads(pickle.dumps(one)).logging.stem == "job"
    other.logging.runs_dir = "elsewhere"
    assert one != other
    assert one != 3
