"""Files of a checkpoint that HF's `from_pretrained` reads otherwise than we need."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from uirl.errors import CheckpointError

_WEIGHTS = ("*.safetensors", "*.bin")


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


def gguf_of(path: str) -> tuple[str, str | None]:
    """Return (folder or HF id, name of the GGUF file that holds model and tokenizer); None: they lie in files of
    their own. Raises CheckpointError where the package that reads GGUF is missing, and for several such files."""
    given = Path(path)
    if given.suffix == ".gguf" and given.is_file():
        folder, found = given.parent, [given.name]
    else:
        folder, found = given, sorted(file.name for file in given.glob("*.gguf")) if given.is_dir() else []
        if (given / "config.json").is_file() and any(file for kind in _WEIGHTS for file in given.glob(kind)):
            found = []
    if not found:
        return path, None
    if len(found) > 1:
        raise CheckpointError(
            f"{path} holds {len(found)} GGUF files, {', '.join(found[:5])}; expected one model: name the file "
            f"(model.local_path={folder / found[0]})"
        )
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(
            f"{folder / found[0]} is a model in GGUF, which needs the package gguf: pip install gguf (its weights are "
            "read once, which takes a while; `uirl export --to hf` writes a trained one as safetensors)"
        )
    return str(folder), found[0]
