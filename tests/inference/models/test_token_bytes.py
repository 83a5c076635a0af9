"""The bytes of tokens, also of those that are a part of a character, in the tokenizers that models come with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from uirl.inference import LoadedModel
from uirl.inference.models.token_bytes import TokenBytes

TEXT = "press ok \N{PARROT}\N{CJK UNIFIED IDEOGRAPH-4E2D}\u00e9 \n\t end"


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Gemma write it: blanks are underlines, what is not in the vocabulary is single bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"presokndt", "\u2581o", "\u2581ok"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("\u2581", "o"), ("\u2581o", "k")]
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return raw


def wordpiece() -> Tokenizer:
    raw = Tokenizer(models.WordPiece({"[UNK]": 0, "press": 1, "##ing": 2, "ok": 3}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.WordPiece()
    return raw


def wrapped(loaded: LoadedModel, raw: Tokenizer) -> LoadedModel:
    return replace(loaded, tokenizer=PreTrainedTokenizerFast(tokenizer_object=raw))


def test_the_bytes_of_all_tokens_are_those_of_the_text(lm: LoadedModel) -> None:
    for loaded in (lm, wrapped(lm, sentencepiece())):
        ids = loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        parts = [TokenBytes(loaded).of(token) for token in ids]
        assert b"".join(parts) == TEXT.encode()
        split = [part for part in parts if b"\xf0" in part]
        assert split
        with pytest.raises(UnicodeDecodeError):
            split[0].decode()


def test_every_token_of_the_vocabulary_has_bytes(lm: LoadedModel) -> None:
    known = TokenBytes(lm)
    assert [token for token in range(len(lm.tokenizer)) if not known.of(token)] == []
    end = lm.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert known.of(end) == b"<|im_end|>"


def test_an_added_word_is_meant_literally(lm: LoadedModel) -> None:
    raw = Tokenizer.from_str(lm.tokenizer.backend_tokenizer.to_str())
    raw.add_tokens([AddedToken("caf\u00e9 \u0120")])  # letters that byte-level BPE writes other bytes with
    loaded = wrapped(lm, raw)
    assert TokenBytes(loaded).of(len(loaded.tokenizer) - 1) == "caf\u00e9 \u0120".encode()


def test_a_tokenizer_without_bytes_gives_the_text(lm: LoadedModel) -> None:
    known = TokenBytes(wrapped(lm, wordpiece()))
    assert [known.of(token) for token in (1, 3)] == [b"press", b"ok"]
