"""Checkpoints as people have them: what was loaded can be written again, and what is missing is said before a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from uirl.config import ConfigStore
from uirl.errors import CheckpointError, ContractError, UirlError
from uirl.inference import ChatRenderer, LoadedModel, load_model
from uirl.inference.models.loading import wrap_model
from uirl.learner import Policy, load_policy
from uirl.learner.checkpoint import export_hf
from uirl.training.assembly import assemble

TINY = ["model.model_name=uirl/tiny-lm", "model.tiny.num_layers=1"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    tiny().save(folder)
    return folder


def tiny() -> LoadedModel:
    return load_model(ConfigStore().override(TINY).model)


def copy_of(folder: Path, target: Path, **files: dict[str, Any]) -> Path:
    """The checkpoint in `folder`, with keys of its JSON files changed."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    for name, changes in files.items():
        path = target / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return target


def config_of(folder: Path, *changes: str) -> ConfigStore:
    return ConfigStore().override([f"model.local_path={folder}", *changes])


ODD: list[dict[str, Any]] = [
    {"do_sample": False, "temperature": 0.9},
    {"do_sample": False, "top_p": 0.8, "top_k": 20},
    {"do_sample": False, "min_p": 0.1, "typical_p": 0.5},
    {"num_beams": 1, "early_stopping": True, "length_penalty": 2.0},
    {"temperature": 0.0},
    {"num_return_sequences": 4},
    {"cache_implementation": "hybrid"},
    {"cache_implementation": "of an older version"},
    {"use_cache": False, "cache_implementation": "static"},
    {"max_length": 20, "max_new_tokens": 10},
    {"pad_token_id": -1},
    {"compile_config": {}, "watermarking_config": {"of": "another version"}},
    {"eos_token_id": [2, 3], "transformers_version": "4.1.0", "_from_model_config": True},
]


IN_CONFIG = [odd for odd in ODD if odd.keys() & {"temperature", "early_stopping", "max_length", "eos_token_id"}]
"""Of older versions; HF reads none of these there."""


@pytest.mark.parametrize(
    ("odd", "file"), [*((odd, "generation_config") for odd in ODD), *((odd, "config") for odd in IN_CONFIG)]
)
def test_a_checkpoint_with_any_way_to_generate_is_written_again(
    plain: Path, tmp_path: Path, odd: dict[str, Any], file: str
) -> None:
    folder = copy_of(plain, tmp_path / "odd", **{file: odd})
    if file == "config":
        (folder / "generation_config.json").unlink()
    loaded = Policy.from_config(config_of(folder)).loaded
    loaded.require_saved()
    ends = odd.get("eos_token_id", [2])
    assert loaded.end_ids == tuple(ends)
    loaded.save(tmp_path / "again")
    assert load_model(config_of(tmp_path / "again").model).end_ids == loaded.end_ids
    written = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert {key for key in written if not key.endswith("_token_id")} <= {"transformers_version", "_from_model_config"}
    hollow = load_model(config_of(folder).model, weights=False)
    assert hollow.end_ids == loaded.end_ids


def test_what_cannot_be_written_again_is_said_before_a_run(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: Any, **options: Any) -> LoadedModel:
        loaded = load_model(config, **options)
        loaded.model.config.odd = object()
        return loaded

    monkeypatch.setattr("uirl.learner.policy.load_model", load)
    with pytest.raises(CheckpointError, match=r"was loaded and cannot be written again: TypeError: .*; mend that file"):
        assemble(config_of(plain))


def adds(words: list[str], **named: str) -> Callable[[Any], None]:
    def change(tokenizer: Any) -> None:
        tokenizer.add_tokens(words)
        for name, word in named.items():
            setattr(tokenizer, name, word)

    return change


def with_template(template: str) -> Callable[[Any], None]:
    def change(tokenizer: Any) -> None:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|later|>"]})
        tokenizer.chat_template = template.replace("TEMPLATE", tokenizer.chat_template)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (adds(["<pad>!"], pad_token="<pad>!"), r"got '<pad>!' \(\d+\), 1 in all, expected ids from 0 to \d+"),
        (adds(["<end>!"], eos_token="<end>!"), r"got '<end>!'"),
        (adds(["<bos>!"], bos_token="<bos>!"), r"got '<bos>!'"),
        (adds(["<|eot_id|>"]), r"got '<\|eot_id\|>'"),
        (
            with_template("<|later|>TEMPLATE"),
            r"prompt holds tokens without a row .*: got \['<\|later\|>'\] .*resize_token",
        ),
    ],
)
def test_tokens_without_an_embedding_are_named_before_a_run(change: Callable[[Any], None], told: str) -> None:
    loaded = tiny()
    while len(loaded.tokenizer) < loaded.vocabulary:
        loaded.tokenizer.add_tokens([f"filler {len(loaded.tokenizer)}"])
    change(loaded.tokenizer)
    with pytest.raises(UirlError, match=told):
        ChatRenderer(wrap_model(loaded.model, loaded.tokenizer, None, name="odd"))


def test_a_tokenizer_of_another_model_is_refused(plain: Path, tmp_path: Path) -> None:
    loaded = tiny()
    loaded.model.resize_token_embeddings(40)
    with pytest.raises(
        CheckpointError, match=r"\d\d+ in all, expected ids from 0 to 39\. Take the tokenizer that belongs"
    ):
        wrap_model(loaded.model, loaded.tokenizer, None, name="odd")


def test_an_added_token_that_no_text_holds_may_lack_a_row() -> None:
    """As in text models of Gemma 3, whose tokenizer knows pictures."""
    loaded = tiny()
    loaded.tokenizer.add_tokens([f"filler {number}" for number in range(loaded.vocabulary)])
    chat = ChatRenderer(wrap_model(loaded.model, loaded.tokenizer, None, name="odd"))
    with pytest.raises(ContractError, match="without a row in the embedding of odd"):
        chat._encode(loaded.tokenizer.convert_ids_to_tokens(loaded.vocabulary))


def test_a_run_on_an_odd_checkpoint_is_exported(plain: Path, tmp_path: Path) -> None:
    from uirl.images import ImageStore
    from uirl.learner import Learner, save_checkpoint

    folder = copy_of(plain, tmp_path / "odd", generation_config=ODD[0])
    for number, changes in enumerate(([], ["model.use_lora=true"])):
        config = config_of(folder, "training.adv_estimator=grpo", *changes)
        learner = Learner(Policy.from_config(config), config, ImageStore())
        saved = save_checkpoint(tmp_path / f"step_{number}", learner, {})
        export_hf(tmp_path / f"exported_{number}", load_policy(saved, model=config.model))
        assert load_model(config_of(tmp_path / f"exported_{number}").model).end_ids == (2,)


@pytest.mark.parametrize("kernel", ["evil/kernel", "kernels-community/flash-attn"])
def test_no_code_that_a_checkpoint_names_is_fetched(plain: Path, tmp_path: Path, kernel: str) -> None:
    folder = copy_of(plain, tmp_path / "odd", config={"attn_implementation": kernel})
    assert load_model(config_of(folder).model).config._attn_implementation in ("sdpa", "eager")


def test_weights_that_would_run_code_are_refused_by_name(plain: Path, tmp_path: Path) -> None:
    folder = copy_of(plain, tmp_path / "odd")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": tmp_path}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"cannot load a model from .*Weights only load failed"):
        load_model(config_of(folder).model)
