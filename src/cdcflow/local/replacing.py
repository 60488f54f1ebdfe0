"""Which files of a table are written again beside a change: small ones, where there are many, and those of which much
is dead. What it costs is bounded, whatever the table's size; a file whose turn does not come keeps its marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

SMALL_BYTES, SMALL_FILES_MAX = 4 << 20, 32
"""Where there are more files of less than so much, they become one: each change leaves one."""

AGAIN_BYTES_MAX = 64 << 20
"""So much at most is written again at one time."""

TINY_BYTES = 1 << 20
"""A file of less is written again rather than marked: it costs no more, and a file less has to be read next time."""

DEAD_SHARE_MAX = 1 / 3
"""A file of which more is dead is written again."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A file of which rows go: its bytes, its rows, and how many of them are dead then."""

    size: int
    rows: int
    dead: int

    @property
    def share(self) -> float:
        return self.dead / self.rows

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
