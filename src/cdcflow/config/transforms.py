"""Columns that functions of packages compute: `tables.….computed`."""

from __future__ import annotations

from pydantic import field_validator

from cdcflow.config.base import Settings


class TransformSettings(Settings):
    """The settings that all transforms have. Each kind is brought by a package."""

    kind: str
    """The kind of the transform, which an installed package brings."""
    columns: tuple[str, ...]
    """The columns that the transform gets, by their names in the table at the source."""

    @field_validator("columns")
    @classmethod
    def _are_some(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if not columns or len({name.lower() for name in columns}) < len(columns):
            raise ValueError("must name at least one column, and none twice")
        return columns
