"""The folder of one round: what of it is finished, and where its files are."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.runtime.files import storage_errors, write_atomically
from uirl.runtime.folders import MANIFEST

STEPS = ("collect", "verify", "select", "fine_tune", "evaluate")
"""What a round does, in this order."""


class RoundFolder:
    """`round_01/` and so on. A step that is finished stands in `round.json`, with what it found; after a kill the round
    goes on with the first step that does not."""

    def __init__(self, run: Path, number: int) -> None:
        self.number, self.path = number, run / f"round_{number:02d}"
        self.episodes = self.path / "episodes.sqlite"
        self.selection = self.path / "selection.json"
        self.examples = self.path / "sft.jsonl"
        self.parquet = self.path / "sft.parquet"
        self.card = self.path / "data_card.json"
        self.checkpoints = self.path / "checkpoints"
        """Of the fine-tuning under way."""
        with storage_errors(f"cannot create {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what each finished step found. Raises StorageError where the file is damaged."""
        found = self.read(self.path / "round.json")
        return {} if found is None else dict(found)

    def has(self, step: str) -> bool:
        """Return whether a step is finished."""
        return step in self.facts()

    def finish(self, step: str, started: float, **facts: Any) -> None:
        """Note that a step, which began at `started` (`time.monotonic`), is finished, and what it found."""
        facts["seconds"] = round(time.monotonic() - started, 3)
        self.write(self.path / "round.json", {**self.facts(), step: facts})

    def read(self, path: Path) -> Any:
        """Return the JSON in a file; None: there is none. Raises StorageError where it is damaged."""
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}; remove the folder {self.path} to play it again"
            ) from None

    def write(self, path: Path, data: Any) -> None:
        """Replace a file by this, whole or not at all."""
        write_atomically(path, json.dumps(data, indent=2, allow_nan=False) + "\n")

    def hashes(self) -> dict[str, str]:
        """Return name -> SHA-256 of the files with data."""
        files = [path for path in (self.selection, self.examples, self.parquet) if path.is_file()]
        return {path.name: hash_of(path) for path in files}


def hash_of_weights(checkpoint: Path) -> str:
    """Return the SHA-256 of the names and hashes of a checkpoint's weights, as its manifest has them: equal weights
    have an equal one, wherever they were saved."""
    with storage_errors(f"cannot read {checkpoint / MANIFEST}"):
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
    weights = sorted((name, entry["sha256"]) for name, entry in files.items() if name.endswith(".safetensors"))
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with storage_errors(f"cannot read {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
