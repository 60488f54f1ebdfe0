"""A file's keys as a few ranges, and proof that each key occurs once, so that a first merge can skip deduplication
without reading the rows.

A backfill reads a table by ranges of its first key column, several of them in turn:

    rows    1 … 90, 501 … 580, 91 … 170, 581 … 700, …
    runs    [1, 170] [501, 700]

Each row begins as a separate run. Runs are sorted and compared with their neighbours: if two touch, a key occurred
twice. Then they are joined over the narrowest gaps until few are left. A run represents every key between its ends, so
a later row inside one may be new or not, and then nothing is known about the file. That is why the widest gaps stay
open: the rest of a range that is being read falls into them.

All of it works on columns: one sort of a batch that is nearly sorted, and one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RUNS_MAX = 64
"""The maximum number of runs of a file: several times the ranges that a backfill reads at once
(`source.backfill.ranges_at_once`, at most 16)."""

_Numbers = npt.NDArray[Any]  # integers of one width, that of the column


@dataclass(slots=True)
class KeyRuns:
    """The runs of one file's first key column, built as its rows arrive. `_ends` is None before the first row."""

    _ends: tuple[_Numbers, _Numbers] | None = None
    _type: pa.DataType | None = None
    _unknown: bool = False

    def add(self, keys: pa.Array) -> None:
        """Take the next rows' values, in any order."""
        if self._unknown:
            return
        numbers = _numbers(keys)
        if numbers is None:
            self.give_up()
            return
        known = (numbers[:0], numbers[:0]) if self._ends is None else self._ends
        first, last = (np.concatenate([ends, numbers]) for ends in known)
        order = np.argsort(first, kind="stable")  # fast if much of it is sorted already
        first, last = first[order], last[order]
        if not (last[:-1] < first[1:]).all():
            self.give_up()
            return
        behind = _widest(first[1:].astype(np.uint64) - last[:-1].astype(np.uint64))
        self._ends = first[np.append(0, behind + 1)], last[np.append(behind, len(last) - 1)]
        self._type = keys.type

    def give_up(self) -> None:
        """Stop recording: the runs of this file become unknown."""
        self._ends, self._unknown = None, True

    def text(self) -> tuple[tuple[str, str], ...] | None:
        """Return the first and last key of each run, ascending; `None` if they are unknown."""
        if self._ends is None or self._type is None:
            return None
        first, last = (pa.array(ends).view(self._type).cast(pa.string()).to_pylist() for ends in self._ends)
        return tuple(zip(first, last, strict=True))


def hold(runs: Sequence[tuple[str, str]], keys: pa.Array) -> bool:
    """Whether these runs are valid for a file with these keys."""
    numbers = _numbers(keys)
    first, last = (_numbers(pa.array(ends, pa.string()).cast(keys.type)) for ends in zip(*runs, strict=True))
    if numbers is None or first is None or last is None:
        return False
    numbers = np.sort(numbers)
    at = np.searchsorted(first, numbers, "right") - 1
    inside = (at >= 0) & (numbers <= last[at])
    return bool(inside.all() and (numbers[:-1] < numbers[1:]).all())


def _widest(gaps: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return the positions of the gaps that stay open, ascending. A gap of width 1 has no room for a key."""
    found = np.flatnonzero(gaps > 1)
    if len(found) < RUNS_MAX:
        return found
    kept = np.argpartition(gaps[found], -(RUNS_MAX - 1))[-(RUNS_MAX - 1) :]
    return np.sort(found[kept])


def _numbers(keys: pa.Array) -> _Numbers | None:
    """Return a column's values as integers in the column's own order; `None` if it has NULLs, or its type has no such
    order. Of the time types, only those that every engine keeps exactly are supported."""
    if keys.null_count:
        return None
    if keys.type == pa.date32():
        keys = keys.view(pa.int32())
    elif pa.types.is_timestamp(keys.type) and keys.type.unit == "us":
        keys = keys.view(pa.int64())
    elif not pa.types.is_integer(keys.type):
        return None
    found: _Numbers = keys.to_numpy()
    return found
