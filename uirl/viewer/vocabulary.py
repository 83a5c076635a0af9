"""Token ids as text, by the tokenizer that lies with a run's checkpoint or model."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.viewer.files import read_text

LARGEST = 256 << 20
"""Bytes of a tokenizer file that is read."""
WINDOW = 6
"""Tokens before a token that are decoded with it."""
LONGEST_CHARACTER = 4
"""Tokens of one character at most, that of a byte each."""


class Vocabulary:
    """The tokenizer of a run, looked for when it is first asked for, and again until there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def texts(self, context: Sequence[int], ids: Sequence[int]) -> list[str] | None:
        """Return the text of each of `ids`, which stand behind `context`; None: there is no tokenizer.

        A character that several tokens make stands with the last of them, and the others are empty. An id that the
        tokenizer does not know is empty too.
        """
        tokenizer = self._find()
        if tokenizer is None:
            return None
        known = tokenizer.get_vocab_size(with_added_tokens=True)
        # what stands before decides whether a word begins with a space
        before = [id for id in list(context)[-WINDOW:] if 0 <= id < known]
        told = [id if 0 <= id < known else None for id in ids]
        return _texts(tokenizer.decode, before, told)

    def _find(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = next((t for p in self._places() if (t := _read(p)) is not None), None)
            return self._tokenizer

    def _places(self) -> list[Path]:
        """Return the files that may hold it: of the newest checkpoint, of a run around this one (a round of `uirl
        evolve`), of the model that the config names."""
        folders = [self._folder, *self._folder.parents[:1]]
        places = []
        for folder in folders:
            steps = sorted((folder / "checkpoints").glob("step_*/policy/tokenizer.json"), reverse=True)
            places += steps[:2]
        return places + [Path(name) / "tokenizer.json" for folder in folders for name in _models_of(folder)]


def _models_of(folder: Path) -> list[str]:
    """Return the model folders that the config of a run names, as they can be reached from here."""
    try:
        text = read_text(folder / "config.yaml")
    except StorageError:
        return []
    names = re.findall(r"^  (?:local_path|model_name): ['\"]?([^'\"\n#]+?)['\"]?\s*$", text, re.MULTILINE)
    paths = [Path(name) for name in names if name not in ("null", "~")]
    found = [
        path if path.is_absolute() else base / path for path in paths for base in (Path.cwd(), *folder.parents[:2])
    ]
    return [str(path) for path in found]


def _read(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        if not 0 < path.stat().st_size <= LARGEST:
            return None
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing more exact for a file that is no tokenizer
        return None


def _texts(decode: Callable[..., str], before: Sequence[int], ids: Sequence[int | None]) -> list[str]:
    """Return what each of `ids` adds to the text of those before it."""
    window, texts = list(before), []
    begun = len(window)  # from here on tokens wait for the rest of their character
    for id in ids:
        if id is None:
            texts.append("")
            continue
        window.append(id)
        earlier = decode(window[:begun], skip_special_tokens=False)
        whole = decode(window, skip_special_tokens=False)
        added = whole[len(earlier) :]
        if added.endswith("\ufffd") and len(window) - begun < LONGEST_CHARACTER:
            texts.append("")
            continue
        texts.append(added)
        window = window[-WINDOW:]
        begun = len(window)
    return texts
