"""What HF's `from_pretrained` does otherwise than we need with the files of a checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def token_ids_alone(path: str, hf_config: Any) -> Any:
    """Return the generation config of a checkpoint, of the ids of tokens alone: a policy is sampled as the run says,
    and HF refuses to write many of those that it reads (`do_sample=false` beside a temperature)."""
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME, cached_file

    try:
        file = cached_file(path, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False)
        said = None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict):
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        parts = (hf_config, hf_config.get_text_config())
        said = {n: ids for c in parts for n in names if (ids := getattr(c, n, None)) is not None}
    return GenerationConfig(**{name: ids for name, ids in said.items() if name.endswith("_token_id") and _are_ids(ids)})


def _are_ids(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return bool(ids) and all(type(token) is int and token >= 0 for token in ids)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Return a context without the progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
