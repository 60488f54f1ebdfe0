"""Where tables go that are neither Delta nor Iceberg: `targets`."""

from __future__ import annotations

from pydantic import field_validator

from cdcflow.config.base import Settings
from cdcflow.config.sources import check_patterns
from cdcflow.config.units import Bytes, Seconds


class TargetSettings(Settings):
    """The settings that all targets have. Each kind is brought by a package."""

    kind: str
    """`targets` maps a name to a target; this is its kind, which an installed package brings
    ([own-target.md](own-target.md))."""
    tables: tuple[str, ...] = ("*.*",)
    """The tables that the target gets, as patterns like those of `source.tables`."""
    every: Seconds | None = 10.0
    """How often `cdcflow run` applies what is new, in a separate process for each target
    ([own-target.md](own-target.md#with-the-capture)). `null`: only `cdcflow deliver` does, every 10 s."""
    memory_max: Bytes | None = None
    """How much memory the target's process of `cdcflow run` may have. A process that has more is ended, and replaced.
    Default: a quarter of the machine's, or of its container's."""
    progress_timeout: Seconds = 600.0
    """The target's process of `cdcflow run` is ended if it makes no progress for this long, for example at one table;
    the next try gets twice the time. A shorter time than `15s` counts as `15s`."""

    @field_validator("tables")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return check_patterns(patterns)
