"""What a config of somebody else may reach: nothing, unless its user asks for it or has run it before."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import JsonValue
from pydantic.fields import FieldInfo

from uirl.cli.main import main
from uirl.config import ConfigStore
from uirl.config.keys import at, nested_section, reach_of, walk
from uirl.config.overrides import apply_overrides
from uirl.config.stored import override_stored, remember
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, load_checkpoint, load_policy, save_checkpoint
from uirl.storage import RunDirectory, TrajectoryStore

KEYS = {key: field for key, field in walk(ConfigStore) if nested_section(field) is None}
REACHING = [key for key, field in KEYS.items() if (reach := reach_of(field)) is not None and reach.what]
PLANTED: dict[str, list[Any]] = {
    "model.model_name": ["../weights", "/models/x"],
    "model.trust_remote_code": [True],
    "model.attn_implementation": ["evil/kernel"],
    "inference.backend": ["openai"],
    "inference.engine_options": [{"worker_cls": "evil.Worker"}, {"trust_remote_code": True}, {"a": {"b": ["x"]}}],
    "environment.name": ["subprocess:Popen", "package.module:Class"],
    "environment.options": [
        {"url": "http://evil", "token_env": "SECRET"},
        {"deep": [{"command": "sh"}]},
        {"sandbox": {"network": True}},
    ],
    "environment.eval_options": [{"url": "http://evil"}],
    "logging.trackers": [["wandb"], ["tensorboard", "mlflow"]],
}


@pytest.fixture(autouse=True)
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has begun a run yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def planted(key: str) -> list[Any]:
    return PLANTED.get(key, ["/etc/evil", "http://evil:1"])


def stored_with(key: str, value: Any) -> ConfigStore:
    """A config with one value changed, whether or not it fits the others."""
    config = ConfigStore()
    section: Any = config
    *path, last = key.split(".")
    for part in path:
        section = getattr(section, part)
    setattr(section, last, value)
    return config


def holds_text(annotation: Any) -> bool:
    inner = get_args(annotation)
    if get_origin(annotation) is dict:
        return holds_text(inner[1])
    return annotation in (str, Any, JsonValue) or any(map(holds_text, inner))


@pytest.mark.parametrize(("key", "field"), KEYS.items())
def test_every_key_that_can_hold_text_says_what_it_reaches(key: str, field: FieldInfo) -> None:
    if holds_text(field.annotation):
        assert reach_of(field) is not None, f"{key}: write Words, Address, PathText, Variable or a Reach"


def refusal(stored: ConfigStore, typed: list[str], folder: Path) -> str:
    """What is said to consent; empty: it is not asked for, whether or not the values fit together."""
    try:
        override_stored(stored, typed, folder)
    except ConfigError as error:
        return str(error) if "reaches outside of its run" in str(error) else ""
    return ""


def test_what_is_classified_has_a_case() -> None:
    assert set(PLANTED) <= set(REACHING)
    assert {"verification.memory", "actors.pictures", "ray.address", "verification.api_key_env"} <= set(REACHING)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in REACHING for value in planted(key)])
def test_what_reaches_outside_is_named_and_needs_a_word(key: str, value: Any, tmp_path: Path) -> None:
    stored = stored_with(key, value)
    said = refusal(stored, [], tmp_path)
    assert re.search(rf"\n  {re.escape(key)}[.a-z_]* \(", said)
    words = shlex.split(said.rpartition("type these values, or others: ")[2])
    values = ConfigStore().to_dict()
    apply_overrides(ConfigStore, values, words)
    assert at(values, key) == value, "what is to be typed gives the same"
    assert not refusal(stored, words, tmp_path)
    remember(stored.to_dict())
    assert not refusal(stored, [], tmp_path), "a run of one's own"
    also = stored.model_copy(deep=True)
    also.verification.rules = "/elsewhere"
    assert "verification.rules (a file): /elsewhere" in refusal(also, [], tmp_path)


def test_one_own_run_does_not_lend_its_secret_to_anothers_address(tmp_path: Path) -> None:
    mine = stored_with("verification.api_key_env", "MY_KEY")
    mine.verification.judge_url = "http://mine"
    remember(mine.to_dict())
    theirs = mine.model_copy(deep=True)
    theirs.verification.judge_url = "http://theirs"
    with pytest.raises(ConfigError, match=r"judge_url \(an address\): http://theirs\n  verification.api_key_env"):
        override_stored(theirs, [], tmp_path)


def test_words_and_numbers_reach_nothing(tmp_path: Path) -> None:
    typed = [
        *("training.seed=3", "inference.system_prompt=/etc/passwd", "environment.name=mobile_world"),
        *("environment.options.level=3", "model.model_name=Qwen/Qwen2.5-VL-3B-Instruct", "rollout.max_turns=4"),
    ]
    stored = ConfigStore().override(typed)
    assert override_stored(stored, [], tmp_path) == stored


COMMANDS = ["train --resume", "check", "plan", "evolve", "eval", "serve-model", "judge", "export --to sft"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_obeys_the_config_of_somebody_else(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reached: list[Any] = []
    for what in ("socket.socket.connect", "subprocess.Popen.__init__"):
        monkeypatch.setattr(what, lambda *args, **options: reached.append(args))
    config = stored_with("verification.judge_url", "http://127.0.0.1:9")
    config.verification.judge, config.verification.api_key_env = "judge", "SECRET"
    config.environment.name, config.environment.options = "remote", {"url": "http://127.0.0.1:9", "token_env": "SECRET"}
    run = tmp_path / "runs" / "theirs"
    with RunDirectory.create(run, config.to_yaml()) as directory:
        TrajectoryStore(directory.trajectories_path).close()
    if command in ("eval", "serve-model"):
        (run / "checkpoints").rmdir()  # a folder with a config is enough
    name, *options = command.split()
    assert main([name, str(run), *options]) == 2
    said = capsys.readouterr()
    assert "reaches outside of its run" in said.err
    assert "SECRET" in said.err
    assert reached == []


TINY = ["model.model_name=uirl/tiny-lm", "training.adv_estimator=reinforce_plus_plus", "environment.name=guess_number"]
HIDDEN = {"model.attn_implementation": "evil/kernel", "model.local_path": "/somewhere"}


@pytest.mark.parametrize("key", HIDDEN)
@pytest.mark.parametrize("adapters", [False, True])
def test_the_config_of_a_checkpoint_is_not_obeyed_behind_that_of_its_run(
    adapters: bool, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run says nothing, and the checkpoint in it names code or files."""
    monkeypatch.chdir(tmp_path)
    config = ConfigStore().override([*TINY, f"model.use_lora={str(adapters).lower()}", "training.batch_size=8"])
    learner = Learner(Policy.from_config(config), config, ImageStore())
    learner.config = config.model_copy(deep=True)
    learner.config.inference.backend = "vllm"  # the embedded engine takes no kernels of others
    setattr(learner.config.model, key.removeprefix("model."), HIDDEN[key])
    run = tmp_path / "runs" / "theirs"
    RunDirectory.create(run, config.to_yaml()).close()
    folder = save_checkpoint(run / "checkpoints" / "step_000001", learner, {})
    asked = pytest.raises(ConfigError, match=re.escape(key)) if adapters or "attn" in key else nullcontext()
    for source in (folder, shutil.copytree(folder, tmp_path / "alone_1")):
        with asked:
            load_policy(source)
    learner.config = config
    load_checkpoint(folder, learner)
    for command in ("eval --episodes 2", "export --to hf"):
        name, *options = command.split()
        assert main([name, str(run), *options]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("place", ["name", "member"])
def test_code_inside_the_folder_has_to_be_typed_also_where_a_mixture_names_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "their_world.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    config = ConfigStore()
    if place == "name":
        config.environment.name = "their_world:World"
    else:
        config.environment.name = "mixture"
        config.environment.options = {"members": [{"name": "errands"}, {"name": "their_world:World"}]}
    remember(config.to_dict())
    assert override_stored(config, [], tmp_path / "elsewhere") == config
    with pytest.raises(ConfigError, match="their_world:World"):
        override_stored(config, [], tmp_path / "theirs")
