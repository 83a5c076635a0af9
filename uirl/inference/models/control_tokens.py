"""Control tokens belong to the chat template: content that spells one stays letters.

A chat template joins its own control tokens and everybody's content into one string, and a tokenizer makes a control
token of every place that spells one. So whatever is content goes into the template with the words of control tokens
under an alias that nobody can guess. The template's own words are found in what it rendered, the aliases are turned
back into letters, and a tokenizer that knows control tokens under secret names alone encodes both: the surroundings
merge as ever, and nothing that content can hold makes a control token. A text without such words goes through the
model's tokenizer as it is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uirl.errors import EnvironmentFailure
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.bounded_cache import BoundedCache
from uirl.thoughts import any_of

CACHE_BYTES = 32 * 2**20
"""Of texts and their ids: what environments say again and again."""

# digits alone: they pass through JSON, HTML escapes, changes of case and strip() as they are
_SECRET = str(10**39 + secrets.randbelow(9 * 10**39))
_MARK = _SECRET + "1"
_NAME = _SECRET + "2"
_DIGITS = 5
_NOTHING = _MARK + "9" * _DIGITS
"""Stands between two texts that would spell a control token together."""


def without_aliases(text: str) -> str:
    """Return a text for others, such as an error of a template that quotes what it was given: who knows an alias could
    write control tokens."""
    return text.replace(_SECRET, "")


class ControlTokens:
    """The control tokens of one model, and how a text is encoded in which only the template's own count.

    Control tokens are those that the tokenizer flags special, those that end a reply or stand for pictures, whatever
    their flag, and `extra`: others that the chat template builds with. `wrappers` are unflagged tokens around the
    result of a tool; content may not write them, a reply of the policy may.
    """

    def __init__(self, loaded: LoadedModel, extra: Iterable[str] = (), wrappers: Iterable[str] = ()) -> None:
        self._tokenizer = loaded.tokenizer
        added: Mapping[int, Any] = loaded.tokenizer.added_tokens_decoder
        typed = {*loaded.end_ids, *loaded.banned_ids}
        control = {t.content for i, t in added.items() if t.special or i in typed or t.content in {*extra}}
        wrapping = {*wrappers} - control
        self._words = sorted(word for word in control | wrapping if word)
        self._numbers = {word: i for i, word in enumerate(self._words)}
        self._ids = {token.content: i for i, token in added.items() if token.content in self._numbers}
        # letters that a vocabulary does not have become this one, and that controls nothing
        unknown = {loaded.tokenizer.unk_token_id} - typed
        self._guarded = frozenset(self._ids.values()) - unknown
        self._in_replies = _Finder([word for word in self._words if word in control])
        self._in_content = _Finder(self._words)
        self._live = re.compile(f"{_MARK}(?P<number>[0-9]{{{_DIGITS}}})|{any_of(self._words)}")
        self._apart: _SecretTokenizer | _PieceTokenizer | None = None
        self._encoded: BoundedCache[list[int]] = BoundedCache(CACHE_BYTES)

    def found_in(self, text: str) -> list[str]:
        """Return the words of control tokens that `text` spells, each once."""
        return sorted(set(self._in_content.pattern.findall(text)))

    def among(self, ids: Iterable[int]) -> list[int]:
        """Return the control tokens of a sequence, in order."""
        return [i for i in ids if i in self._guarded]

    def hide(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message for the chat template, its content under aliases."""
        finder = self._in_replies if message["role"] == "assistant" else self._in_content
        return {key: value if key == "role" else self._hidden(value, finder) for key, value in message.items()}

    def hide_all(self, value: Any) -> Any:
        """Return anything made of texts, lists and mappings, such as the schema of a tool, under aliases."""
        return self._hidden(value, self._in_content)

    def hide_reply(self, text: str, control_words: Sequence[str] = ()) -> str:
        """Return the text of a reply under aliases; the words `control_words` stay control tokens."""
        hidden: str = self._hidden(text, self._in_replies)
        for word in control_words:
            if word in self._numbers:
                hidden = hidden.replace(self._alias(word), word)
        return hidden

    def encode(self, text: str) -> list[int]:
        """Return the ids of what a template made of hidden content: its own words are control tokens, all else is
        letters.

        Raises EnvironmentFailure where the tokenizer makes a control token of letters all the same.
        """
        # a character takes up to 4 bytes, an id with its place in the list 40
        return list(self._encoded.get(text, lambda: self._encode(text), lambda ids: 4 * len(text) + 40 * len(ids)))

    def _encode(self, text: str) -> list[int]:
        if _MARK not in text:
            ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            expected = [self._ids[match[0]] for match in self._live.finditer(text)]
            if self.among(ids) == self.among(expected):
                return ids
        if self._apart is None:
            backend = getattr(self._tokenizer, "backend_tokenizer", None)
            self._apart = (
                _PieceTokenizer(self._tokenizer, self._words)
                if backend is None
                else _SecretTokenizer(backend, self._words)
            )
        for spread in (False, True):
            ids = self._apart.encode(self._named(text, spread=spread))
            if not self.among(ids):  # those that the template wrote are inverted
                return [~i if i < 0 else i for i in ids]
        raise EnvironmentFailure(
            f"content that spells a control token ({', '.join(self._words[:3])}, ...) becomes one in this tokenizer, "
            "however it is split; take the words out of what the environment shows"
        )

    def _hidden(self, value: Any, finder: _Finder) -> Any:
        if isinstance(value, str):
            text = finder.pattern.sub(lambda match: self._alias(match[0]), value)
            return finder.closed(text)
        if isinstance(value, Mapping):
            return {self._hidden(key, finder): self._hidden(item, finder) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._hidden(item, finder) for item in value]
        return value

    def _alias(self, word: str) -> str:
        return f"{_MARK}{self._numbers[word]:0{_DIGITS}}"

    def _named(self, text: str, *, spread: bool) -> str:
        """Return the text with control tokens under their secret names, and aliases as letters. `spread`: these with a
        break between any two."""

        def name(match: re.Match[str]) -> str:
            if match["number"] is None:
                return f"{_NAME}{self._numbers[match[0]]:0{_DIGITS}}"
            number = int(match["number"])
            word = self._words[number] if number < len(self._words) else ""
            return _NOTHING.join(("", *word, "")) if spread else word

        return self._live.sub(name, text)


class _Finder:
    """Finds some words in content, whole, and their halves at its ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self.pattern = re.compile(any_of(words))
        self._heads = frozenset(word[:n] for word in words for n in range(1, len(word)))
        self._tails = frozenset(word[n:] for word in words for n in range(1, len(word)))
        self._longest = max(map(len, words), default=0)

    def closed(self, text: str) -> str:
        """Return the text, kept apart from its neighbours where half a word stands at an end of it."""
        body = text.strip()
        if not body:
            return text
        begin = text.index(body[0])
        lengths = range(1, min(self._longest, len(body)) + 1)
        before = _NOTHING if any(body[:n] in self._tails for n in lengths) else ""
        after = _NOTHING if any(body[-n:] in self._heads for n in lengths) else ""
        if not before and not after:
            return text
        return text[:begin] + before + body + after + text[begin + len(body) :]


class _SecretTokenizer:
    """The model's tokenizer, knowing control tokens under secret names alone. It shares the vocabulary."""

    def __init__(self, backend: Any, words: Sequence[str]) -> None:
        from tokenizers import AddedToken, Tokenizer

        self._backend = Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(backend, part) is not None:
                setattr(self._backend, part, getattr(backend, part))
        names = {word: f"{_NAME}{i:0{_DIGITS}}" for i, word in enumerate(words)}
        real: dict[str, int] = {}
        tokens = []
        for i, token in sorted(backend.get_added_tokens_decoder().items()):
            name = names.get(token.content, token.content)
            flags = {key: getattr(token, key) for key in ("lstrip", "rstrip", "normalized", "special")}
            flags["single_word"] = token.single_word and name == token.content  # what the template wrote, it meant
            tokens.append(AddedToken(name, **flags))
            # a control token comes back as ~id, so that it is told from a piece of the vocabulary that spells it
            real[name] = ~i if token.content in names else i
        self._backend.add_tokens([*tokens, AddedToken(_NOTHING, normalized=False)])
        self._real = {self._backend.token_to_id(name): i for name, i in real.items()}
        self._break = self._backend.token_to_id(_NOTHING)

    def encode(self, text: str) -> list[int]:
        """Return the ids, those of control tokens inverted (`~id`)."""
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return [self._real.get(i, i) for i in encoding.ids if i != self._break]


class _PieceTokenizer:
    """The same for a tokenizer without a fast backend: every stretch between control tokens is encoded alone."""

    def __init__(self, tokenizer: Any, words: Sequence[str]) -> None:
        self._tokenizer, self._words = tokenizer, words
        self._split = re.compile(f"({_NAME}[0-9]{{{_DIGITS}}}|{_NOTHING})")

    def encode(self, text: str) -> list[int]:
        """Return the ids, those of control tokens inverted (`~id`)."""
        ids: list[int] = []
        for piece in filter(None, self._split.split(text)):
            if piece.startswith(_NAME):
                ids.append(~self._tokenizer.convert_tokens_to_ids(self._words[int(piece[len(_NAME) :])]))
            elif piece != _NOTHING:
                ids += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids
