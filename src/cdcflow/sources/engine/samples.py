"""A digest of a few committed rows of a table: the first and the last by key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cdcflow.capture.ports.source import Sample

ROWS_EACH_END = 10


def both_ends(key: Sequence[str]) -> list[str]:
    """Return the SQL ends of two SELECTs: one returns the first rows by these columns (as SQL), the other the last."""
    ends = (", ".join(f"{column} {way}" for column in key) for way in ("ASC", "DESC"))
    return [f"ORDER BY {end} LIMIT {ROWS_EACH_END}" for end in ends]


def sample_of(columns: str, digests: Iterable[object]) -> Sample:
    """Return the sample. `columns`: a text that differs if the columns do. `digests`: the server's digest of
    each row."""
    return Sample(columns, hashlib.sha256("".join(map(str, digests)).encode()).hexdigest())
