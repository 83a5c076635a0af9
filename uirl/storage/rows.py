"""The rows of a dataset: a file of JSON, JSON Lines, CSV or Parquet, or a name on the hub."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError

MOST_BYTES = 16 * 2**30
"""Of one Parquet file, unpacked."""


def read_rows(source: str) -> list[Any]:
    """Return the rows of a file, by its ending: `.json` (a list, or a mapping with the list as `tasks`), `.jsonl`,
    `.csv` or `.parquet`; or of a dataset on the hub, 'owner/name', 'owner/name:split' (train unless it says) or
    'owner/name/config:split', of which a file that is there goes first. Raises ConfigError."""
    path = Path(source)
    reader = READERS.get(path.suffix.lower())
    if reader is None and not path.exists() and source.count("/") in (1, 2):
        reader = _of_hub
    if reader is None:
        raise ConfigError(f"{source} is none of {', '.join(READERS)}, nor a dataset on the hub as 'owner/name:split'")
    try:
        rows = reader(source)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read tasks from {source}: {error}; expected {_EXPECTED.get(reader, 'rows')}"
        ) from error
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{source} holds no list of tasks; expected [{{'id': ..., 'goal': ...}}, ...]")
    return rows


def _of_json(source: str) -> Any:
    data = json.loads(Path(source).read_text(encoding="utf-8"))
    return data.get("tasks") if isinstance(data, dict) else data


def _of_json_lines(source: str) -> list[Any]:
    rows = []
    with Path(source).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
    return rows


def _of_csv(source: str) -> list[Any]:
    more: Any = object()
    with Path(source).open(encoding="utf-8-sig", newline="") as file:
        reader: Any = csv.DictReader(file, restkey=more, strict=True)
        try:
            rows = list(reader)
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    names = reader.fieldnames or []
    if len(set(names)) < len(names):
        raise ValueError(f"a name is there twice among {', '.join(names)}")
    for number, row in enumerate(rows, start=2):
        if more in row or None in row.values():
            raise ValueError(f"row {number} has not as many cells as the first")
    return rows


def parquet_rows(source: str) -> Iterator[Any]:
    """Yield the rows of a Parquet file, some hundred in memory at a time. Raises ConfigError without pyarrow, OSError,
    and ValueError for what is no such file or unpacks to more than `MOST_BYTES`."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(f"{source} needs pyarrow: pip install 'uirl[parquet]'") from error
    try:
        with ParquetFile(source) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
            if size > MOST_BYTES:
                raise ValueError(f"it unpacks to {size} bytes, and at most {MOST_BYTES} are read; split it")
            for batch in file.iter_batches(256):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _of_parquet(source: str) -> list[Any]:
    return list(parquet_rows(source))


def _of_hub(source: str) -> list[Any]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(f"{source} is no file, and as a dataset on the hub it needs: pip install datasets") from error
    name, _, split = source.partition(":")
    owner, dataset, *config = name.split("/")
    try:
        return list(load_dataset(f"{owner}/{dataset}", *config, split=split or "train"))
    except Exception as error:  # of the network, the hub, or the data
        raise ValueError(f"{type(error).__name__}: {error}") from error


READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": _of_json,
    ".jsonl": _of_json_lines,
    ".csv": _of_csv,
    ".parquet": _of_parquet,
}
_EXPECTED: Mapping[Callable[[str], Any], str] = {
    _of_json: "a JSON list",
    _of_json_lines: "a JSON value per line",
    _of_csv: "a line of names, then as many cells in each",
}
