"""The words that a built-in model gets as tokens of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl.config import ModelConfig
from uirl.errors import CheckpointError
from uirl.inference.models.loading import BUILT_IN_MODELS, load_model
from uirl.inference.models.tiny import build_tokenizer

WORDS = ("olive", "magenta", "box.")


def test_words_of_the_task_are_one_token_each_also_as_a_target() -> None:
    tokenizer = build_tokenizer(560, words=WORDS)
    plain = build_tokenizer(560)
    for word in WORDS:
        assert len(plain.tokenize(word)) > 1
        assert tokenizer.tokenize(word) == [word]
        action = '{"action":"click","target":"' + word + '","x":1'
        assert tokenizer.tokenize(action) == ['{"action":"click","target":"', word + '","x":', "1"]


def test_without_words_the_tokens_are_those_of_the_default_job() -> None:
    tokenizer = build_tokenizer(512)
    assert build_tokenizer(512, words=()).get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) == 484


@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_a_saved_model_reads_the_tokens_that_it_was_trained_on(name: str, tmp_path: Path) -> None:
    loaded = load_model(ModelConfig(model_name=name, device="cpu"), seed=0)
    loaded.save(tmp_path)
    saved = load_model(ModelConfig(local_path=str(tmp_path), device="cpu")).tokenizer
    page, call = (
        '\n  button "prev" [1]\n\tIt\'s 12.5 %, "café"; 你',
        '{"action":"click","target":"x y","x":12}</tool_call>',
    )
    text = page + call
    assert saved.encode(text) == loaded.tokenizer.encode(text)
    assert saved.decode(saved.encode(text)) == text


def test_a_kernel_whose_package_is_missing_is_a_checkpoint_that_cannot_be_loaded(lm, tmp_path, monkeypatch) -> None:
    def missing(*_args, **_more) -> None:
        raise ImportError("flash_attn is not installed")

    monkeypatch.setattr("transformers.modeling_utils.PreTrainedModel._flash_attn_import_error", missing)
    lm.save(tmp_path)
    with pytest.raises(CheckpointError, match="cannot load a model"):
        load_model(ModelConfig(local_path=str(tmp_path), device="cpu", attn_implementation="flash_attention_2"))


def test_a_run_is_no_folder_of_weights_and_the_error_says_how_it_becomes_one(tmp_path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=f"uirl export {tmp_path} --to hf"):
        load_model(ModelConfig(local_path=str(tmp_path), device="cpu"))
