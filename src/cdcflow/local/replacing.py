"""Which files of a table are written again: beside a change small ones, where there are many, and those of which much
is dead; in an upkeep, which has more time, also those that cost readers less. What it costs is bounded, whatever the
table's size; a file whose turn does not come keeps its marks.

An upkeep writes in portions of so many bytes, a commit each. Kept cuts keep the files that were there before, so a file
is written again only when enough has come, or died, to be worth a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

SMALL_BYTES, SMALL_FILES_MAX = 4 << 20, 32
"""Where there are more files of less than so much, they become one: each change leaves one."""

AGAIN_BYTES_MAX = 64 << 20
"""So much at most is written again at one time."""

TINY_BYTES = 64 << 10
"""A file of less is written again rather than marked: it costs no more, and a file less has to be read next time. What
it replaces stays until upkeep removes it: at 1 MB, a merge each 30 s of a small table left 16 GB a week."""

DEAD_SHARE_MAX = 1 / 3
"""A file of which more is dead is written again."""

JOINED_BYTES = 32 << 20
"""In an upkeep several files of less become one. Spark's upkeep takes as many."""

JOINED_TIMES = 4
"""A file joins smaller ones that together have more than this part of its bytes: what is written again for them is
then at most so many times as much as they have."""

JOINED_MEMORY_MAX = 256 << 20
"""So much of them is held in memory. More may not become one file."""

WORN_SHARE_MAX = 1 / 20
"""In an upkeep a file of which more is dead is written again. Delta's own threshold, for OPTIMIZE … PURGE
(`optimize.maxDeletedRowsRatio`): readers look at marks, and pay for them, however few they are."""

WORN_BYTES_MAX = 128 << 20
"""A larger file keeps its marks: it is held in memory while it is written again."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A file of which rows go: its bytes, its rows, and how many of them are dead then."""

    size: int
    rows: int
    dead: int

    @property
    def share(self) -> float:
        return self.dead / self.rows if self.rows else 1.0

    @property
    def cost(self) -> float:
        """Bytes that are to be written of it again."""
        return self.size * (1 - self.share)


def small(sizes: Sequence[int]) -> set[int]:
    """Which of a table's files, of these sizes, become one because they are small and many."""
    found = sorted((size, n) for n, size in enumerate(sizes) if size < SMALL_BYTES)
    if len(found) <= SMALL_FILES_MAX:
        return set()
    totals = accumulate(size for size, _ in found)
    return {n for (_, n), total in zip(found, totals, strict=True) if total <= AGAIN_BYTES_MAX}


def again(touched: Mapping[int, Touched], spent: int) -> set[int]:
    """Which of the touched files are written again, where so many bytes are already spent on others."""
    due = sorted((f.cost, n) for n, f in touched.items() if f.share > DEAD_SHARE_MAX or f.size < TINY_BYTES)
    totals = accumulate((cost for cost, _ in due), initial=spent)
    next(totals)
    return {n for (_, n), total in zip(due, totals, strict=True) if total <= AGAIN_BYTES_MAX}


def joined(sizes: Sequence[int]) -> list[int]:
    """Which of a table's files, of these sizes, become one in an upkeep, the smallest first; none: none do."""
    group: list[int] = []
    total = 0
    for size, n in sorted((size, n) for n, size in enumerate(sizes) if size < JOINED_BYTES):
        if total + size > AGAIN_BYTES_MAX:
            break
        if group and size > JOINED_TIMES * max(total, TINY_BYTES):
            if len(group) > 1:
                break
            group, total = [], 0
        group.append(n)
        total += size
    return group if len(group) > 1 else []


def worn(files: Sequence[Touched], bytes_max: int = WORN_BYTES_MAX) -> list[int]:
    """Which of a table's files are written again in an upkeep because rows of them are dead, in one portion; none: of
    none are so many. Larger ones than `bytes_max` are left."""
    due = sorted((f.cost, n) for n, f in enumerate(files) if f.share > WORN_SHARE_MAX and f.size <= bytes_max)
    totals = accumulate(cost for cost, _ in due)
    portion = [n for (_, n), total in zip(due, totals, strict=True) if total <= AGAIN_BYTES_MAX]
    return portion or [n for _, n in due[:1]]
