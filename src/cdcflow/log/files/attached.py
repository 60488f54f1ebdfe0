"""Finds and reads rows that are stored next to a journal, in a spool or in a separate Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdcflow.log.files import rowfile
from cdcflow.log.files.layout import Layout
from cdcflow.log.format import spool
from cdcflow.log.format.journal import Attached, AttachedFile, AttachedSpool, Record
from cdcflow.log.format.rows import ShapeRows


def is_whole(layout: Layout, record: Attached) -> bool:
    """Return whether the attached file still exists, with the content it had when it was attached."""
    path = layout.spool(record.name)
    try:
        if isinstance(record, AttachedFile):
            return rowfile.is_whole(path, record)
        with path.open("rb") as file:
            return spool.is_whole(file, record)
    except FileNotFoundError:
        return False


def rows(layout: Layout, record: Attached) -> Iterator[ShapeRows]:
    """Yield the attached rows, with offsets in the log; shapes of a spool have no version.

    Raises:
        FileNotFoundError: the file no longer exists: a segment already has its rows, or it was deleted.
        InvariantViolated: the file does not have the rows that were attached.
    """
    path = layout.spool(record.name)
    if isinstance(record, AttachedFile):
        yield from rowfile.rows(path, record)
        return
    with path.open("rb") as file:
        yield from spool.rows(file, record)


def with_attached_rows(layout: Layout, found: Iterable[Record]) -> Iterator[Record]:
    """Yield a journal's records, with the attached rows in place of the records that attach them. Raises as `rows`."""
    for record in found:
        if isinstance(record, AttachedSpool | AttachedFile):
            yield from rows(layout, record)
        else:
            yield record
