"""Choose the files of a table to rewrite. A change rewrites small files if there are many, and files with many deleted
rows. Maintenance has more time, and also rewrites files to make reading cheaper. The cost is bounded, whatever the
table's size; a file that has to wait keeps its marks.

Maintenance writes in portions of bounded size, one commit each. Kept cuts keep the old files, so a file is rewritten
only when enough rows were added or deleted to be worth another copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

SMALL_BYTES, SMALL_FILES_MAX = 4 << 20, 32
"""Each change leaves a small file. Once more than SMALL_FILES_MAX are smaller than SMALL_BYTES, they are merged."""

AGAIN_BYTES_MAX = 64 << 20
"""The maximum number of bytes of files that one change rewrites."""

TINY_BYTES = 64 << 10
"""A file below this size is rewritten instead of marked: this costs no more, and leaves one file less to read next
time. The replaced file stays until maintenance removes it: at 1 MB, a merge of a small table every 30 s left 16 GB a
week."""

DEAD_SHARE_MAX = 1 / 3
"""The share of deleted rows above which a file is rewritten."""

JOINED_BYTES = 32 << 20
"""In maintenance, files below this size are merged if there are several. Spark's maintenance has the same limit."""

JOINED_TIMES = 4
"""Rewrite a file only if the smaller files to merge into it add up to at least 1/4 of its size; this bounds write
amplification at 4."""

JOINED_MEMORY_MAX = 256 << 20
"""At most this many bytes of the files to merge are held in memory, which also limits the size of the merged file."""

WORN_SHARE_MAX = 1 / 20
"""The share of deleted rows above which maintenance rewrites a file. This is Delta's own threshold for OPTIMIZE …
PURGE (`optimize.maxDeletedRowsRatio`): a reader has to read a file's marks, however few there are."""

WORN_BYTES_MAX = 128 << 20
"""The maximum size of a file that is rewritten because of its deleted rows: it is held in memory for that. A larger
file keeps its marks."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A file with rows to delete: its bytes, its rows, and how many of them are deleted after the change."""

    size: int
    rows: int
    dead: int

    @property
    def share(self) -> float:
        return self.dead / self.rows if self.rows else 1.0

    @property
    def cost(self) -> float:
        """The bytes that rewriting the file writes."""
        return self.size * (1 - self.share)


def small(sizes: Sequence[int], partitions: Sequence[Hashable] = (), table: str = "") -> set[int]:
    """Return the indexes of a table's files, given their sizes, that are merged because they are small and many in
    their partition. `partitions`: of each file; if empty, all files are in the same one.

    Tables that are merged together get equally many new files. With the same limit all of them would merge their
    files in the same turn, which would take long. So the limit is up to a half higher for some, depending on the name
    `table`.
    """
    most = SMALL_FILES_MAX + zlib.crc32(table.encode()) % max(1, SMALL_FILES_MAX // 2)
    groups: dict[Hashable, list[tuple[int, int]]] = {}
    for n, size in enumerate(sizes):
        if size < SMALL_BYTES:
            groups.setdefault(partitions[n] if partitions else None, []).append((size, n))
    many = [sorted(group) for group in groups.values() if len(group) > most]
    chosen = [one for group in many for one in group]
    totals = accumulate(size for size, _ in chosen)
    return {n for (_, n), total in zip(chosen, totals, strict=True) if total <= AGAIN_BYTES_MAX}


def again(touched: Mapping[int, Touched], spent: int) -> set[int]:
    """Return the indexes of the touched files that a change rewrites, if it already spends `spent` bytes on other
    files."""
    due = sorted((f.cost, n) for n, f in touched.items() if f.share > DEAD_SHARE_MAX or f.size < TINY_BYTES)
    totals = accumulate((cost for cost, _ in due), initial=spent)
    next(totals)
    return {n for (_, n), total in zip(due, totals, strict=True) if total <= AGAIN_BYTES_MAX}


def files_to_join(sizes: Sequence[int], partitions: Sequence[Hashable] = ()) -> list[int]:
    """Return the indexes of the files, given their sizes, that maintenance merges, the smallest first; empty if there
    is nothing to merge. `partitions`: that of each file; only files of one partition are merged. If empty, all files
    are in the same one."""
    groups: dict[Hashable, list[tuple[int, int]]] = {}
    for n, size in enumerate(sizes):
        if size < JOINED_BYTES:
            groups.setdefault(partitions[n] if partitions else None, []).append((size, n))
    return next((found for group in groups.values() if (found := _to_join(group))), [])


def _to_join(files: Sequence[tuple[int, int]]) -> list[int]:
    group: list[int] = []
    total = 0
    for size, n in sorted(files):
        if total + size > AGAIN_BYTES_MAX:
            break
        if group and size > JOINED_TIMES * max(total, TINY_BYTES):
            if len(group) > 1:
                break
            group, total = [], 0
        group.append(n)
        total += size
    return group if len(group) > 1 else []


def files_to_rewrite(files: Sequence[Touched], bytes_max: int = WORN_BYTES_MAX) -> list[int]:
    """Return the indexes of the files that maintenance rewrites in one portion because many of their rows are deleted;
    empty if there are none. Files larger than `bytes_max` are skipped."""
    due = sorted((f.cost, n) for n, f in enumerate(files) if f.share > WORN_SHARE_MAX and f.size <= bytes_max)
    totals = accumulate(cost for cost, _ in due)
    portion = [n for (_, n), total in zip(due, totals, strict=True) if total <= AGAIN_BYTES_MAX]
    return portion or [n for _, n in due[:1]]
