"""Which keys a file has, as a few runs, and that it has each of them once: so a first merge knows without a look at the
rows that nothing is to be reduced.

A backfill reads a table by ranges of its first key column, several of them in turn:

    rows    1 … 90, 501 … 580, 91 … 170, 581 … 700, …
    runs    [1, 170] [501, 700]

Each row begins as a run of its own. Runs are sorted and compared with their neighbours: where two touch, a key came
twice. Then they are joined over the narrowest gaps until few are left. A run stands for every key between its ends, so
a later row inside one may be new or not, and then the file says nothing. That is why the widest gaps stay open: the
rest of a range that is being read goes there.

All of it in columns: one sort of a batch that is nearly sorted, and one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RUNS_MAX = 64
"""Several times the ranges that a backfill reads at once (`source.backfill.ranges_at_once`, at most 16)."""

_Numbers = npt.NDArray[Any]  # integers of one width; which one is the column's


@dataclass(slots=True)
class KeyRuns:
    """The runs of one file's first key column, as its rows come. None of `_ends`: no row has come yet."""

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
        order = np.argsort(first, kind="stable")  # which finds what is sorted already
        first, last = first[order], last[order]
        if not (last[:-1] < first[1:]).all():
            self.give_up()
            return
        behind = _widest(first[1:].astype(np.uint64) - last[:-1].astype(np.uint64))
        self._ends = first[np.append(0, behind + 1)], last[np.append(behind, len(last) - 1)]
        self._type = keys.type

    def give_up(self) -> None:
        """Nothing can be said of this file any more."""
        self._ends, self._unknown = None, True

    def text(self) -> tuple[tuple[str, str], ...] | None:
        """First and last key of each run, ascending; None: nothing can be said."""
        if self._ends is None or self._type is None:
            return None
        first, last = (pa.array(ends).view(self._type).cast(pa.string()).to_pylist() for ends in self._ends)
        return tuple(zip(first, last, strict=True))


def hold(runs: Sequence[tuple[str, str]], keys: pa.Array) -> bool:
    """Whether a file with these keys may say that these are its runs."""
    numbers = _numbers(keys)
    first, last = (_numbers(pa.array(ends, pa.string()).cast(keys.type)) for ends in zip(*runs, strict=True))
    if numbers is None or first is None or last is None:
        return False
    numbers = np.sort(numbers)
    at = np.searchsorted(first, numbers, "right") - 1
    inside = (at >= 0) & (numbers <= last[at])
    return bool(inside.all() and (numbers[:-1] < numbers[1:]).all())


def _widest(gaps: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Where the gaps are that stay open, ascending. In one of width 1 there is no room for a key."""
    found = np.flatnonzero(gaps > 1)
    if len(found) < RUNS_MAX:
        return found
    kept = np.argpartition(gaps[found], -(RUNS_MAX - 1))[-(RUNS_MAX - 1) :]
    return np.sort(found[kept])


def _numbers(keys: pa.Array) -> _Numbers | None:
    """A column's values as integers in its own order; None where it has NULLs, or its type no such order. Of times only
    those that every engine keeps exactly."""
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


__all__ = ["RUNS_MAX", "KeyRuns", "hold"]
