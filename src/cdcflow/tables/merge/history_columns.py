"""The two ends of a version: the columns in mode `history` that record since when and until when a row had
its values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetNames:
    """The names of the columns with the first and the last offset of a version."""

    start: str = "_valid_from"
    end: str = "_valid_to"


AUTO_CDC = OffsetNames("__START_AT", "__END_AT")
"""The names that Spark's Auto CDC gives these two columns."""


def columns(names: OffsetNames) -> tuple[tuple[str, str], ...]:
    """Return the columns of a table in mode `history` in addition to the source's, with their types."""
    types = (("", "bigint"), ("_position", "string"), ("_time", "timestamp"), ("_exact", "boolean"))
    start = tuple((names.start if not part else f"_valid_from{part}", type_) for part, type_ in types)
    return start + tuple((names.end if not part else f"_valid_to{part}", type_) for part, type_ in types)
