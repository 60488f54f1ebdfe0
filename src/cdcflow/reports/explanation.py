"""What a version of a table contains, as text, and the origin of a row's values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdcflow.reports.readable import number, utc_time

if TYPE_CHECKING:
    from cdcflow.tables.job.explanation import Explained, ExplainedTransaction


def explanation_lines(found: Explained) -> Iterator[str]:
    """What a version consists of, and the origin of a row's values."""
    cuts = ", ".join(map(str, found.cuts[-5:]))
    yield f"{found.table}, version {found.version}, which cut {cuts} shows"
    yield f"  holds everything up to offset {found.offset}, {found.position}, committed {utc_time(found.commit_clock)}"
    since = "" if found.before is None else f" since version {found.before}"
    yield (
        f"  new{since}: {number(found.changes)} changes in {number(found.count)} transactions,"
        f" offsets {found.first} to {found.offset}"
    )
    if found.segments:
        shown = [*found.segments[:3], *(["…"] if len(found.segments) > 6 else []), *found.segments[3:][-3:]]
        yield f"  segments {', '.join(shown)}"
    for one in found.transactions:
        yield f"    {_transaction(one)}"
    if found.row_state:
        yield f"  the row is {found.row_state}" if found.row else f"  {found.row_state}"
    for origin in found.row:
        value = "NULL" if origin.value is None else origin.value
        yield f"    {origin.column}: {value}"
        yield f"      {origin.op} at offset {origin.offset}, {_transaction(origin.transaction)}"
    for column in found.unknown:
        yield f"    {column}: from before the oldest change that the log has"


def _transaction(one: ExplainedTransaction) -> str:
    what = "backfill" if one.kind == "read" else f"transaction {one.number} (id {one.xid})"
    return f"{what}, offsets {one.first_offset}-{one.last_offset}, {one.position}, {utc_time(one.commit_ts)}"
