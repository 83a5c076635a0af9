"""Built-in models whose weights come along with the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from uirl.errors import CheckpointError

SHIPPED = {"uirl/tiny-vlm-grounded": Path(__file__).parent / "tiny_vlm_grounded"}
"""Name -> folder as HF writes it, with a `card.json` that says how scripts/train_grounded.py made the weights."""


def shipped_folder(name: str) -> Path | None:
    """Return the folder of a model that comes along; None for any other name. Raises CheckpointError for weights that
    are not those of its card."""
    folder = SHIPPED.get(name)
    if folder is None:
        return None
    weights = folder / "model.safetensors"
    try:
        expected, found = card(name)["sha256"], hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{name}: cannot read {folder}: {error!r}; install uirl again") from error
    if found != expected:
        raise CheckpointError(
            f"{name}: {weights} has the SHA-256 {found}, and its card.json says {expected}; install uirl again"
        )
    return folder


def card(name: str) -> dict[str, Any]:
    """Return how the weights of a model that comes along were made: command, recipe, versions, hash, accuracy. Raises
    KeyError for another name, OSError and ValueError for a card that cannot be read."""
    return json.loads((SHIPPED[name] / "card.json").read_text(encoding="utf-8"))
