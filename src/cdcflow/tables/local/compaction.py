"""Compaction of a table in two steps, so that merges can run while files are read and written.

    rewrite    read the rows of some files, and write them into new files; nothing is committed
    merges     may mark more rows of the old files as deleted, or replace some of these files
    finish     one commit: remove the old files, add the new ones, with the marks that merges have added to the old ones

Each row of a new file was at a known place in an old one, so a mark can follow it. If one of the old files was
replaced, or the columns changed, the new files are abandoned, like those of a process that died before its commit.
Merges of the same process do not replace such files (`table_files.HeldFiles`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.model.file_layout import SortColumn
from cdcflow.tables.local.columns_in_use import ColumnsInUse
from cdcflow.tables.local.scan import NONE, Numbers
from cdcflow.tables.local.table_files import File, NewFile, TableFiles

COMMIT = {"upkeep": "compact"}
"""The metadata of its commits. Such a commit changes no row."""

ROW = "_cdcflow_row"
"""The column that has the number of each row while rows are sorted."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file that was rewritten. `gone`: the rows that were deleted when it was read. `begin`: the number of remaining
    rows in the old files before it."""

    path: str
    gone: Numbers
    begin: int


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """New files that are written but not committed. `places`: for each row of the old files, in their order, its number
    among the rows of the new files. `others`: the paths of the table's other files at that time. `layout`: the layout
    of the table then."""

    old: Sequence[OldFile]
    others: Set[str]
    new: Sequence[tuple[NewFile, int]]
    places: Numbers
    layout: Hashable
    in_order: bool


def rewrite(
    table: TableFiles[File], files: Sequence[File], rows: pa.Table, order: Sequence[SortColumn]
) -> RewrittenFiles:
    """Write the rows of some files into new files, sorted if there is an order. `rows`: all of their rows that are not
    deleted, in the order of the files and of the rows in them."""
    old, begin = [], 0
    for file in files:
        gone = table.deleted_rows(file)
        old.append(OldFile(table.path_of(file), gone, begin))
        begin += table.row_count(file) - len(gone)
    sources = np.arange(len(rows))
    if order:
        sorted_rows = table.session.in_order(rows.append_column(ROW, pa.array(sources)), order)
        sources, rows = sorted_rows.column(ROW).to_numpy(), sorted_rows.drop_columns([ROW])
    new, written = [], [NONE]
    in_use = ColumnsInUse.of(table, files)
    for file, numbers in table.write_files(rows) if len(rows) else ():
        in_use.prepare(table, file, rows, numbers)
        new.append((file, len(numbers)))
        written.append(sources[numbers])
    places = np.empty(len(rows), np.int64)
    places[np.concatenate(written)] = np.arange(len(rows))
    others = {table.path_of(file) for file in table.files()} - {file.path for file in old}
    return RewrittenFiles(old, others, new, places, table.layout, bool(order))


def finish(table: TableFiles[File], done: RewrittenFiles) -> bool:
    """Commit rewritten files to the table's latest version. Return False, without a commit, if they no longer
    fit it."""
    files: dict[str, Any] = {table.path_of(file): file for file in table.files()}
    if table.layout != done.layout or any(old.path not in files for old in done.old):
        return False
    gone = [NONE]
    for old in done.old:
        now = table.deleted_rows(files[old.path])
        if len(np.setdiff1d(old.gone, now, assume_unique=True)):
            return False  # deleted rows have returned: another program has restored an older version
        later = np.setdiff1d(now, old.gone, assume_unique=True)
        gone.append(done.places[old.begin + later - np.searchsorted(old.gone, later)])
    marked = np.sort(np.concatenate(gone))
    if len(marked) and not table.marks_rows:
        return False
    table.swap([files[old.path] for old in done.old], _with_marks(done.new, marked), COMMIT)
    return True


def _with_marks(new: Sequence[tuple[NewFile, int]], marked: Numbers) -> list[tuple[NewFile, Numbers]]:
    """Return each new file with the rows to mark in it. `marked`: their numbers among the rows of all new files."""
    found, begin = [], 0
    for file, count in new:
        first, end = np.searchsorted(marked, [begin, begin + count])
        found.append((file, marked[first:end] - begin))
        begin += count
    return found
