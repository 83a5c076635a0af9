"""The bytes that a token stands for. A character may be spread over several tokens, and then no text tells what each of
them is: the word of a token in its vocabulary does."""

from __future__ import annotations

import json
import re
from typing import Any

from uirl.inference.models.loading import LoadedModel

_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenBytes:
    """Tokens of one model -> bytes. Knows how byte-level BPE (GPT-2 and all that followed it) and SentencePiece with
    byte fallback write bytes; a token of any other tokenizer is the text it decodes to."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.tokenizer
        self._literal = {i: token.content for i, token in loaded.tokenizer.added_tokens_decoder.items()}
        self._kinds = _decoders(loaded.tokenizer)
        self._bytes_of: dict[int, bytes] = {}
        self._byte_of: dict[str, int] = {}
        if "ByteLevel" in self._kinds:
            from transformers.convert_slow_tokenizer import bytes_to_unicode

            self._byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}

    def of(self, token: int) -> bytes:
        """Return the bytes of a token; those of a part of a character are no UTF-8 on their own."""
        token_bytes = self._bytes_of.get(token)
        if token_bytes is None:  # asking a tokenizer costs a tenth of a millisecond and more
            token_bytes = self._bytes_of[token] = self._look_up(token)
        return token_bytes

    def _look_up(self, token: int) -> bytes:
        if token in self._literal:
            return self._literal[token].encode()
        word = self._tokenizer.convert_ids_to_tokens(token)
        if word and self._byte_of and all(letter in self._byte_of for letter in word):
            return bytes(self._byte_of[letter] for letter in word)
        if word and "ByteFallback" in self._kinds:
            one = _ONE_BYTE.fullmatch(word)
            return bytes([int(one[1], 16)]) if one else word.replace(_BLANK, " ").encode()
        return str(self._tokenizer.decode([token])).encode()


def _decoders(tokenizer: Any) -> frozenset[str]:
    """Return the kinds of what turns words of the vocabulary into text; empty for tokenizers without a fast backend."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return frozenset()
    state = json.loads(decoder.__getstate__())
    return frozenset(part["type"] for part in state.get("decoders", [state]))
