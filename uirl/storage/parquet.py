"""An export for fine-tuning as one Parquet file with its pictures, which `datasets.load_dataset` reads as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError, StorageError
from uirl.runtime.files import storage_errors

ROWS = 64
"""Examples in memory at a time, and in a row group: a long one of large screenshots takes tens of megabytes."""
_TEXT = {"dtype": "string", "_type": "Value"}


def to_parquet(examples: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the examples of a file that `export_sft` wrote to `path`, each picture with its bytes; return how many.

    Columns are the fields of the lines. Where there are pictures, `images` holds {bytes, path}, and the file says in
    the way of datasets that they are of the type Image. Raises StorageError where the file is empty or a picture is
    missing, and ConfigError without pyarrow.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install pyarrow (or uirl[parquet])") from error
    source, target = Path(examples), Path(path)
    with storage_errors(f"cannot read {source}"), source.open(encoding="utf-8") as lines:
        first = lines.readline()
        if not first:
            return _none(target)
        schema = _schema(pa, json.loads(first))
        lines.seek(0)
        rows = (_with_pictures(json.loads(line), source.parent) for line in lines)
        written, aside = 0, target.with_name(f".{target.name}.writing")
        with storage_errors(f"cannot write {target}"):
            with pq.ParquetWriter(aside, schema) as writer:
                while chunk := list(islice(rows, ROWS)):
                    writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
                    written += len(chunk)
            os.replace(aside, target)
    return written


def _none(target: Path) -> int:
    """Leave no file of an earlier export where there is nothing to write: an empty one would have no columns."""
    with storage_errors(f"cannot remove {target}"):
        target.unlink(missing_ok=True)
    return 0


def _schema(pa: Any, line: dict[str, Any]) -> Any:
    """Return the schema of lines like this one; in all lines of an export a field has the same type."""
    fields, features = [], {}
    for name, value in line.items():
        kind, features[name] = _type_of(pa, name, value)
        fields.append(pa.field(name, kind))
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _type_of(pa: Any, name: str, value: Any) -> tuple[Any, Any]:
    if name == "images":
        return pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), [{"_type": "Image"}]
    if isinstance(value, list):  # of messages
        if value and isinstance(value[0]["content"], list):
            part = pa.struct([("type", pa.string()), ("text", pa.string())])
            content, feature = pa.list_(part), [{"type": _TEXT, "text": _TEXT}]
        else:
            content, feature = pa.string(), _TEXT  # type: ignore[assignment]
        return pa.list_(pa.struct([("role", pa.string()), ("content", content)])), [{"role": _TEXT, "content": feature}]
    if isinstance(value, float):
        return pa.float64(), {"dtype": "float64", "_type": "Value"}
    return pa.string(), _TEXT


def _with_pictures(line: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "images" not in line:
        return line
    return line | {"images": list(_pictures(line["images"], folder))}


def _pictures(paths: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield {"bytes": (folder / path).read_bytes(), "path": Path(path).name}
        except OSError as error:
            raise StorageError(f"{folder / path} is missing: {error}; export the episodes again") from error
