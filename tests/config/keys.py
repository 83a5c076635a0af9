"""The keys of a config, as overrides write them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """`section.key` of every key that holds no further section."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name
