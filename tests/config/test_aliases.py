"""The keys of the founding documents: their YAML is read as it stands, and nothing in it is read and then ignored."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from uirl.config import ConfigStore, load_config
from uirl.config.aliases import ALIASES
from uirl.environments import UIVerifiersEnvironment, create_environment
from uirl.errors import ConfigError

FILE = Path(__file__).parent / "data" / "ui_rl.yaml"
"""The YAML of the document, word for word."""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_the_file_of_the_document_is_the_run_it_describes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load_config(FILE)
    assert (config.model.model_name, config.model.use_lora) == ("Qwen/Qwen2-VL-2B-Instruct", True)
    environment = create_environment(config.environment.name, config.environment.options, config.environment)
    assert isinstance(environment, UIVerifiersEnvironment)
    assert environment.options.prompt == "Complete the data entry form"
    assert (environment.options.session_type, environment.action_format) == ("simple_data_entry", "json")
    assert (environment.max_turns, config.turn_limit) == (50, 50)
    assert config.environment.options["urls"] == [f"http://ui-verifier-vm-{i}:8000" for i in (1, 2, 3, 4)]
    assert config.rollout.parallel == 4, "one episode at a time on each machine"
    assert config.training.batch_size == 32
    assert config.training.num_epochs * config.training.num_iters_per_epoch == 1000
    (said,) = [record.getMessage() for record in caplog.records]
    assert "model.name as model.model_name='Qwen/Qwen2-VL-2B-Instruct'" in said
    assert "training.num_iterations as training.num_epochs=100" in said
    assert config.check(training=True) == ConfigStore.from_yaml(FILE)


def test_a_run_keeps_it_in_our_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(FILE)
    caplog.clear()
    config.to_yaml(tmp_path / "config.yaml")
    assert ConfigStore.from_yaml(tmp_path / "config.yaml") == config
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: {nam: x}", "model.nam is not a config key; did you mean 'model.name'?"),
        ("training: {num_iteration: 3}", "did you mean 'training.num_iterations'?"),
        ("environment: {ui_env_url: [x]}", "did you mean 'environment.ui_env_urls'?"),
        ("actor: {max_steps_per_episod: 3}", "did you mean 'actor.max_steps_per_episode'?"),
        ("actor: {zzz: 3}", "actor.zzz is not a config key; known: actor.session_type, actor.task_prompt"),
        ("acter: {task_prompt: x}", "acter is not a config key; did you mean 'actor'?"),
        ("actor: 3", "actor: got 3, expected mapping of keys"),
        ("environment: {ui_env_urls: http://a}", "ui_env_urls: got 'http://a', expected a list of addresses"),
        ("actor: {max_steps_per_episode: many}", "rollout.max_turns: got 'many', expected whole number"),
        ("training: {num_iterations: 0}", "training.num_iterations: got 0, expected whole number >= 1"),
        ("model: {name: a, model_name: b}", "model.name and model.model_name say the same thing; keep one"),
        ("training: {num_iterations: 9, num_epochs: 3}", "training.num_iterations and training.num_epochs say the"),
        ("actor: {num_actors: 2}\nrollout: {parallel: 3}", "actor.num_actors and rollout.parallel say the same"),
        (
            "model: {action_format: react}\nenvironment: {ui_env_urls: [http://a]}",
            "model.action_format: got 'react', expected 'json': the environment says how an action is written",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_the_file(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    found = message(path)
    assert found.startswith(str(path))
    assert told in found


OTHER: dict[str, Any] = {
    "model.name": "uirl/tiny-lm",
    "model.action_format": "react",
    "environment.dataset": "a.jsonl",
    "environment.eval_dataset": "b.jsonl",
    "environment.ui_env_urls": ["http://a"],
    "actor.session_type": "other",
    "actor.task_prompt": "other",
    "actor.max_steps_per_episode": 7,
    "actor.num_actors": 3,
    "training.num_iterations": 7,
}


@pytest.mark.parametrize("word", ALIASES)
def test_no_word_is_read_and_does_nothing(tmp_path: Path, word: str) -> None:
    section, _, key = word.partition(".")
    from_file = load_config(written(tmp_path, f"{section}: {{{key}: {OTHER[word]}}}"))
    assert from_file != ConfigStore()
    assert ConfigStore().override([f"{word}={OTHER[word]}"]) == from_file


def test_the_command_line_may_say_it_in_either_words() -> None:
    config = load_config(
        FILE, ["actor.max_steps_per_episode=9", "model.model_name=uirl/tiny-vlm", "rollout.parallel=2"]
    )
    assert (config.turn_limit, config.environment.options["max_turns"]) == (9, 9)
    assert (config.model.model_name, config.rollout.parallel) == ("uirl/tiny-vlm", 2)
    with pytest.raises(ConfigError, match="expected 'json'"):
        load_config(FILE, ["model.action_format=react"])


def test_what_is_set_beside_the_addresses_stays(tmp_path: Path) -> None:
    text = "environment: {name: remote, ui_env_urls: [http://a, http://b]}\nrollout: {parallel: 8}\n"
    config = load_config(written(tmp_path, text))
    assert (config.environment.name, config.rollout.parallel) == ("remote", 8)
    assert config.environment.options == {"urls": ["http://a", "http://b"]}
    odd = load_config(written(tmp_path, "training: {num_iterations: 25}"))
    assert (odd.training.num_epochs, odd.training.num_iters_per_epoch) == (25, 1)
