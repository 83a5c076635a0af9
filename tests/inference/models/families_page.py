"""The tables of docs/models.md, of models that the tests build: `python -m tests.inference.models.families_page`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.inference.models.picture_families import FAMILIES, saved
from tests.inference.models.refused_families import REFUSED
from tests.inference.own_templates import TOOLS, templates_table
from uirl.config import ModelConfig
from uirl.inference import LoadedModel, load_model
from uirl.inference.embedded.runner import proven_spans
from uirl.inference.models.shared_prompts import prompts_can_be_shared

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def families_table(built: Callable[[str], LoadedModel]) -> str:
    """What was found of each family that works; `built`: a model of it, by its name."""
    rows = [
        "| family | known as | processor | chat template | position axes | layers see | prompts shared |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, built(name)) for name in FAMILIES),
    ]
    return "\n".join(rows) + "\n"


def refused_table() -> str:
    """Which families are refused, and why."""
    rows = [f"| {name} | {each.reason} | {each.by} |" for name, each in REFUSED.items()]
    return "\n".join(["| family | why | where |", "|---|---|---|", *rows]) + "\n"


def _row(name: str, loaded: LoadedModel) -> str:
    assert loaded.vision is not None
    spans = proven_spans(loaded)
    kinds = ["all" if size is None else kind.split("_")[0] for kind, size in spans.sizes.items()]
    sees = " and ".join(sorted(kinds)) + (", pictures in both directions" if spans.both_ways else "")
    processor = loaded.vision.front.name
    shared = "yes" if prompts_can_be_shared(loaded) else "no"
    template = "its own" if FAMILIES[name].own else "one of ours"
    return f"| {name} | {FAMILIES[name].checkpoints} | `{processor}` | {template} | {loaded.axes} | {sees} | {shared} |"


def _write(table: str) -> None:
    """Put a table in the place of the one on the page that has the same header."""
    page = PAGE.read_text()
    before, after = page.split(table.partition("\n")[0])
    _, blank, rest = after.partition("\n\n")
    PAGE.write_text(before + table + (blank and "\n") + rest)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        _write(families_table(lambda name: saved(name, Path(folder) / name.replace(" ", "_"))))
    _write(refused_table())
    _write(templates_table(load_model(ModelConfig(model_name="uirl/tiny-lm", device="cpu")), TOOLS))
