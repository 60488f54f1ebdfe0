"""Where tables go that are neither Delta nor Iceberg: `targets`."""

from __future__ import annotations

from pydantic import field_validator

from cdcflow.config.base import Settings
from cdcflow.config.sources import check_patterns
from cdcflow.config.units import Seconds


class TargetSettings(Settings):
    """The settings that all targets have. Each kind is brought by a package."""

    kind: str
    """`targets` maps a name to a target; this is its kind, which an installed package brings
    ([own-target.md](own-target.md))."""
    tables: tuple[str, ...] = ("*.*",)
    """The tables that the target gets, as patterns like those of `source.tables`."""
    every: Seconds = 10.0
    """How often `cdcflow deliver` applies what is new."""

    @field_validator("tables")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return check_patterns(patterns)
