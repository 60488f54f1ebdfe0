"""A few committed rows of a table as one digest: the first and the last by key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cdcflow.capture.ports.source import Sample

ROWS_EACH_END = 10


def both_ends(key: Sequence[str]) -> list[str]:
    """How a SELECT ends that returns the first rows by these columns (as SQL), and one that returns the last."""
    ends = (", ".join(f"{column} {way}" for column in key) for way in ("ASC", "DESC"))
    return [f"ORDER BY {end} LIMIT {ROWS_EACH_END}" for end in ends]


def sample_of(columns: str, digests: Iterable[object]) -> Sample:
    """`columns`: a text that differs if the columns do. `digests`: what the server computed of each row."""
    return Sample(columns, hashlib.sha256("".join(map(str, digests)).encode()).hexdigest())
