"""The tasks: a table of what is there, what is asked and what has to be there at the end; instances by a seed."""

from __future__ import annotations

import functools
import gzip
import io
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import yaml

from uirl.environments.desktop.x11 import Window
from uirl.runtime.assets import read_asset
from uirl.runtime.limits import shown

NAMESPACE = "{http://www.gnumeric.org/v10.dtd}"
LARGEST_SHEET = 8 << 20
"""Bytes of a sheet without its compression."""
_SHEET = """<?xml version="1.0" encoding="UTF-8"?>
<gnm:Workbook xmlns:gnm="http://www.gnumeric.org/v10.dtd"><gnm:SheetNameIndex>
<gnm:SheetName gnm:Cols="256" gnm:Rows="65536">Sheet1</gnm:SheetName></gnm:SheetNameIndex><gnm:Sheets><gnm:Sheet>
<gnm:Name>Sheet1</gnm:Name><gnm:Cells>{}</gnm:Cells></gnm:Sheet></gnm:Sheets></gnm:Workbook>
"""
DERIVED = {"sum", "difference", "product", "total", "times", "square"}
_PLACE = re.compile(r"\{(\w+)\}")
Cells = Mapping[str, str]
"""Name such as 'B3' -> number, text, or formula as it was typed."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A task with everything that the seed draws."""

    goal: str
    program: tuple[str, ...]
    """Name of the program, and paths in the home that it opens."""
    files: Mapping[str, str | Cells]
    """Path -> content at the beginning."""
    want: Mapping[str, str | Cells]
    """Path -> content at the end, of all files of the home that are not hidden."""
    display: str | None
    settings: Mapping[str, Mapping[str, str]]
    open: int | None
    script: tuple[str, ...]

    def content(self) -> dict[str, bytes]:
        """Return path -> bytes of the files at the beginning."""
        return {
            path: (content if isinstance(content, str) else write_sheet(content)).encode()
            for path, content in self.files.items()
        }

    def saves_at_close(self) -> bool:
        """Return whether what is judged is written only when the programs are closed."""
        return self.display is not None or bool(self.settings)

    def problem(self, home: Mapping[str, bytes | None], windows: Sequence[Window]) -> str | None:
        """Return what is wrong with the end of an episode, in words for the record; None: it is solved.

        `windows`: as they were before they were closed.
        """
        for window in windows:
            if window.dialog:
                return f"a dialog is open: {shown(window.title, 60)}"
            if window.title.startswith("*"):
                return f"work is not saved: {shown(window.title, 60)}"
        if self.open is not None and len(windows) != self.open:
            return f"{len(windows)} windows are open; expected {self.open}"
        seen = {path: content for path, content in home.items() if not path.startswith(".")}
        for path in sorted({*seen, *self.want}):
            if path not in seen or path not in self.want:
                return f"{shown(path, 80)} {'is missing' if path in self.want else 'should not be there'}"
            if not _equal(self.want[path], seen[path]):
                return f"{shown(path, 80)} does not hold what was asked for"
        if self.display is not None:
            if not any(window.title == "galculator" for window in windows):
                return "no calculator is open"
            value = _settings_in(home.get(".config/galculator/galculator.conf")).get("remembered_valuex", "")
            if value.strip('"') != self.display:
                return f"the calculator shows {shown(value, 40)}"
        for path, wanted in self.settings.items():
            found = _settings_in(home.get(path))
            for key, value in wanted.items():
                if found.get(key) != value:
                    return f"the setting {key} is {shown(found.get(key), 40)}"
        return None


@functools.cache
def _read() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(read_asset(__file__, "tasks.yaml"))


def table() -> dict[str, dict[str, Any]]:
    """Return the rows of tasks.yaml by their names."""
    return _read()["tasks"]


def draw(name: str, rng: random.Random) -> Instance:
    """Return an instance of a task."""
    row = table()[name]
    keys = {found for text in _texts(row) for found in _PLACE.findall(text)}
    pools = {pool: rng.sample(values, len(values)) for pool, values in _read()["pools"].items()}
    used = {"n", "m", "root", "digit"} if keys & DERIVED else set()
    values = {key: pools[pool].pop() for key in sorted(keys | used) if (pool := key.rstrip("0123456789")) in pools}
    if used:
        n, m, digit = values["n"], values["m"], values["digit"]
        values |= {
            "sum": n + m,
            "difference": n - m,
            "product": n * m,
            "total": n + m + digit,
            "times": (n + m) * digit,
        }
        values["square"] = values["root"] ** 2
    values |= dict(zip(("first", "middle", "last"), sorted(pools["word"][:3]), strict=True))
    others = {f"Documents/{pools['other'].pop()}.txt": f"{pools['word'][3]}\n", "Documents/Old/list.txt": "1\n"}

    def filled(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {filled(key): filled(value) for key, value in part.items()}
        if isinstance(part, list):
            return tuple(map(filled, part))
        return part if part is None else _PLACE.sub(lambda found: str(values[found[1]]), str(part))

    row = {key: part if key == "open" else filled(part) for key, part in row.items()}
    files = {**others, **row.get("files", {})}
    want = {path: content for path, content in {**files, **row.get("want", {})}.items() if content is not None}
    script = tuple(
        step for part in row["script"] for step in (map("@{}".format, part[2:]) if part.startswith("@@") else (part,))
    )
    settings, opened = row.get("settings", {}), row.get("open")
    return Instance(row["goal"], row["program"], files, want, row.get("display"), settings, opened, script)


def write_sheet(cells: Cells) -> str:
    """Return a file of gnumeric with one sheet."""
    written = []
    for name, value in cells.items():
        column, row = _place(name)
        kind = "" if value.startswith("=") else ' ValueType="40"' if _is_number(value) else ' ValueType="60"'
        written.append(f'<gnm:Cell Row="{row}" Col="{column}"{kind}>{value}</gnm:Cell>')
    return _SHEET.format("".join(written))


def read_sheet(content: bytes) -> dict[str, str]:
    """Return the cells of the first sheet of a file of gnumeric. Raises ValueError for what is none."""
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(LARGEST_SHEET)
        sheet = ElementTree.fromstring(content).find(f".//{NAMESPACE}Sheet")
        cells = [] if sheet is None else sheet.findall(f"{NAMESPACE}Cells/{NAMESPACE}Cell")
        return {_name(int(cell.get("Col", "")), int(cell.get("Row", ""))): cell.text or "" for cell in cells}
    except (ElementTree.ParseError, OSError, EOFError) as error:
        raise ValueError(f"no file of gnumeric: {error}") from error


def _equal(wanted: str | Cells, content: bytes | None) -> bool:
    if content is None:
        return False
    if isinstance(wanted, str):
        return content.decode("utf-8", "replace").rstrip("\n") == wanted.rstrip("\n")
    try:
        found = read_sheet(content)
    except ValueError:
        return False
    return found.keys() == wanted.keys() and all(_same(found[cell], wanted[cell]) for cell in wanted)


def _same(found: str, wanted: str) -> bool:
    if wanted.startswith("="):
        return found.replace(" ", "").upper() == wanted
    return float(found) == float(wanted) if _is_number(found) and _is_number(wanted) else found == wanted


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", text) is not None


def _place(name: str) -> tuple[int, int]:
    return ord(name[0]) - ord("A"), int(name[1:]) - 1


def _name(column: int, row: int) -> str:
    return f"{chr(ord('A') + column)}{row + 1}" if 0 <= column < 26 else f"{column},{row}"


def _settings_in(content: bytes | None) -> dict[str, str]:
    lines = (content or b"").decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _texts(part: Any) -> Iterable[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)
