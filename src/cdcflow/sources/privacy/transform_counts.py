"""What the settings' `tables` did to rows in this process, for metrics: rows, seconds and errors of each stage.

Stages are `row_rules` (conditions and expressions), `policies`, and each kind of function that a package brings. Like
other counts of a capture, they cover all attempts of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class StageCounts:
    """The counts of one stage. `errors`: how often it failed; each time its table failed too."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    errors: int = 0


@dataclass(slots=True)
class TransformCounts:
    """Counts by stage. Thread-safe."""

    _stages: dict[str, StageCounts] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, stage: str, counts: StageCounts) -> None:
        with self._lock:
            known = self._stages.setdefault(stage, StageCounts())
            known.rows_in += counts.rows_in
            known.rows_out += counts.rows_out
            known.seconds += counts.seconds
            known.errors += counts.errors

    def to_status(self) -> Mapping[str, Mapping[str, object]]:
        with self._lock:
            return {stage: asdict(counts) for stage, counts in self._stages.items()}


COUNTS = TransformCounts()
"""The counts of this process."""


@contextmanager
def counting(stage: str, rows: int) -> Iterator[StageCounts]:
    """Count the work of a stage on rows. The caller sets `rows_out`, if fewer leave."""
    counts, began = StageCounts(rows, rows), time.perf_counter()
    try:
        yield counts
    except BaseException:
        counts.rows_out, counts.errors = 0, 1
        raise
    finally:
        counts.seconds = time.perf_counter() - began
        COUNTS.add(stage, counts)
