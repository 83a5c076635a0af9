"""What an app is, as data: its packages, its store, its pages, and the entities that tasks are made of."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import ConfigDict, Field, model_validator

from uirl.config.section import Count, Section
from uirl.environments.options import Names
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.limits import in_words

SHIPPED = ("django",)
"""Apps that come with the package."""
HERE = Path(__file__).parent


class _Frozen(Section):
    model_config = ConfigDict(frozen=True)


class Column(_Frozen):
    """One field of an entity: a column of its table."""

    kind: Literal["text", "integer", "decimal", "date", "flag", "choice", "reference"]
    words: Names = ()
    """Of a text: keys of the app's `words`, one word of each."""
    low: int = 0
    high: int = 999
    """Of a number: the least and the largest value."""
    choices: Names = ()
    """Of a choice: its values."""
    to: str = ""
    """Of a reference: the entity."""
    optional: bool = False
    """It may be left empty."""
    guessable: bool = False
    """Many records have the same value: it is never asked for."""
    column: str = ""
    """Name in the table; empty: that of the field, and with `_id` that of a reference."""


class Entity(_Frozen):
    """One kind of record. Its first field is its name: no two records have the same."""

    fields: dict[str, Column] = Field(min_length=1)
    table: str = ""
    """Empty: `group_name`."""
    primary: str = "id"
    """The column of the primary key."""
    referred: bool = False
    """Records of a table that is no entity refer to it: none is removed, as those would go too."""
    held_out: bool = False
    """Its tasks are for evaluation alone."""


class Pages(_Frozen):
    """Where a demonstrator does what, as addresses with {group}, {name} and {key}. Empty: there is no demonstrator."""

    home: str = ""
    list: str = ""
    add: str = ""
    edit: str = ""
    delete: str = ""
    submit: str = ""
    """CSS selector of the button that sends a form."""


class App(_Frozen):
    """A web app with a store in SQLite."""

    about: str = ""
    packages: Names = ()
    """Exact versions that pip brings, into a folder of the app's own."""
    program: str = ""
    """Module that makes a WSGI app of a store; empty: `command` starts a server."""
    command: Names = ()
    """With {port} and {store}; also {folder}, that of the session, {app}, that of this file, and {python}. It
    is started for every episode."""
    shown: Names = ()
    """Files and folders that the app reads beside the folder of this file, from which relative ones start, and those
    of the system."""
    store: str = "app.sqlite"
    """Name of the SQLite file, in the folder of a session."""
    start: str = "/"
    """Path of the first page."""
    rows: Count | None = None
    """Records of each entity, drawn by the seed of an episode; None: those that are in the store."""
    pages: Pages = Pages()
    own: dict[str, Names] = Field(default_factory=dict)
    """Table -> columns that the app writes by itself; no columns: all of the table."""
    words: dict[str, Names] = Field(default_factory=dict)
    entities: Annotated[dict[str, Entity], Field(min_length=1)]
    """`group.name` -> what it is."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.program) == bool(self.command):
            raise ConfigError("an app has a program or a command; got " + ("both" if self.program else "neither"))
        for package in self.packages:
            if "==" not in package:
                raise ConfigError(f"packages: {package!r} has no exact version; expected name==version")
        for name, entity in self.entities.items():
            if name.count(".") != 1:
                raise ConfigError(f"entities: {name!r}; expected group.name")
            for field, column in entity.fields.items():
                if column.kind == "reference" and column.to not in self.entities:
                    raise ConfigError(
                        f"{name}.{field} refers to {column.to!r}; {did_you_mean(column.to, self.entities)}"
                    )
                if column.kind == "choice" and len(column.choices) < 2:
                    raise ConfigError(f"{name}.{field} has {len(column.choices)} choices; expected at least two")
                for key in column.words:
                    if key not in self.words:
                        raise ConfigError(f"{name}.{field}: no words {key!r}; {did_you_mean(key, self.words)}")
        return self

    def table(self, entity: str) -> str:
        """Return the table of an entity."""
        return self.entities[entity].table or entity.replace(".", "_")

    def column(self, entity: str, field: str) -> str:
        """Return the column of a field."""
        one = self.entities[entity].fields[field]
        return one.column or (f"{field}_id" if one.kind == "reference" else field)

    def page(self, kind: str, entity: str, key: object = "") -> str:
        """Return the path of a page of an entity; `kind`: a field of `Pages`."""
        group, name = entity.split(".")
        return str(getattr(self.pages, kind)).format(group=group, name=name, key=key)


@cache
def read_app(name: str) -> tuple[App, Path]:
    """Return an app, and the folder of its file: one that comes with the package, or a folder with an `app.yaml`.

    Raises ConfigError for a file that is not there or says no app.
    """
    file = HERE / f"{name}.yaml" if name in SHIPPED else Path(name) / "app.yaml"
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"no app {name!r}: {in_words(error)}; expected one of {', '.join(SHIPPED)}, or a folder with an app.yaml, "
            "as `uirl apps add` writes it"
        ) from error
    return App.build(values), file.parent.resolve()
