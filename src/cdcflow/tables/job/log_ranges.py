"""Find a range of a log as rows of one table, from manifests alone: its offsets, its files and its columns.

    given       from a cut, to a time        ──resolved──▶  offsets 1201 to 5000
    files       of the table in that range   ──brought───▶  the columns of its latest shape in there

Every end that is given must be sealed. Otherwise a range that does not fully exist yet would be read in part,
unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.read.alignment import align, default_of, defaults_of, in_force, sources
from cdcflow.log.read.feed import FEED_COLUMNS, check_in_feed, feed
from cdcflow.log.read.moments import (
    clock_of,
    offset_before,
    offset_of_cut,
    offset_of_position,
    sealed_checkpoint,
    time_text,
)
from cdcflow.log.read.reader import row_groups, table_shapes
from cdcflow.model.change import TRUNCATE
from cdcflow.model.position import Checkpoint
from cdcflow.model.sqltypes import stored_type, widens
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Identity, Table, TableId, table_from_json
from cdcflow.tables.segments import InputFile, Range, sealed_range, shapes_of

LOG, FEED = "log", "feed"
Time = str | datetime

_NO_OFFSET = 1 << 62


@dataclass(frozen=True, slots=True)
class Ends:
    """The beginning and the end of a range; each may be given in one way only. Offsets and times are inclusive. A cut
    and a position are points between two transactions: a range from one starts after it, a range to one ends before it.

    Without a beginning the range starts at the first offset in the log; without an end it reaches to the latest sealed
    cut. A time without a zone is UTC.
    """

    from_offset: int | None = None
    from_cut: int | None = None
    from_position: str | None = None
    from_time: Time | None = None
    to_offset: int | None = None
    to_cut: int | None = None
    to_position: str | None = None
    to_time: Time | None = None


@dataclass(frozen=True, slots=True)
class Shaped:
    """How the rows of a table are shown: as log rows or as the feed, in the columns of the shape `target`.

    `defaults`: see `alignment.defaults_of`. `shapes`: the shapes that are converted to `target`, oldest first.
    """

    target: Table
    shapes: tuple[Table, ...]
    defaults: Mapping[str, str]
    kind: str = LOG
    truncates_as_rows: bool = False

    def rows(self, rows: pa.Table, shape: Table) -> pa.Table:
        """Convert rows of the log, all of one shape, to the shown form.

        Raises:
            NotInFeed: the feed cannot represent one of them.
        """
        if self.kind == LOG:
            return align(rows, shape, self.target, self.defaults)
        return feed(rows, shape, self.target, self.defaults, truncates_as_rows=self.truncates_as_rows)


def bounds_of(layout: Layout, ends: Ends) -> tuple[int, int]:
    """Return the first and last offset of a range, both inclusive; the last one is lower than the first if the range is
    empty.

    Raises:
        ConfigurationError: two fields were given for one end, or an end is not sealed yet, or it cannot be determined.
        HistoryLost: its beginning has expired.
    """
    _one_each(layout, ends)
    newest = sealed_checkpoint(layout)
    first_left = max(layout.log_file().first_offset, next(iter(layout.segment_offsets()), (1, 0))[0])
    first = _first(layout, ends, newest, first_left)
    last = _last(layout, ends, newest)
    _check_end(layout, last, newest)
    if first < first_left:
        raise expiry_error(layout, first, first_left)
    if first > newest.next_offset:
        raise ConfigurationError(
            f"reading {layout.name} from offset {first}: the log is sealed up to offset {newest.next_offset - 1}",
            remedy=f"name offset {newest.next_offset}, at which the next row comes, or one before",
            runbook="log-range",
        )
    return first, max(last, first - 1)


def expiry_error(layout: Layout, first: int, first_left: int) -> HistoryLost:
    """Return the error for a range that begins at an offset which the log no longer has."""
    return HistoryLost(
        f"reading {layout.name} from offset {first}: that offset has expired; the first one left is {first_left}",
        remedy=f"read from offset {first_left}, after the current-state tables of a cut that is as new",
        runbook="log-expired",
    )


def table_named(layout: Layout, name: str) -> TableId:
    """Return a table of the log by its `schema.table` name.

    Raises:
        ConfigurationError: the log has no row of it.
    """
    found = tables_with(layout, name)
    if name not in found:
        raise ConfigurationError(
            f"reading {layout.name}: its sealed part has no row of a table {name or '(none was named)'}",
            remedy=f"{did_you_mean(name, found)}name one of: {', '.join(sorted(found)) or '(it has no rows yet)'}",
            runbook="table-not-found",
        )
    return found[name]


def tables_with(layout: Layout, name: str) -> dict[str, TableId]:
    """Return the tables that the log's sealed part has, keyed by name. The search stops once it has found `name`, so
    the result may lack other tables."""
    found = _tables(layout)
    return found if name in found else sealed_range(layout).tables()


def files_between(layout: Layout, table: TableId, first: int, last: int) -> list[InputFile]:
    """Return the files with rows of a table between two offsets, both inclusive, sorted by offset.

    Raises:
        HistoryLost: `first` has expired.
    """
    if last < first:
        return []
    log = sealed_range(layout, _NO_OFFSET)  # manifests are read below, as needed
    _check_there(layout, log, first, last)
    found = []
    for segment in log.segments.behind(first - 1):
        if segment.first_offset > last:
            break
        room = layout.segment(segment.first_offset, segment.last_offset).resolve()
        for file in segment.files:
            if file.table is None or (file.table["schema"], file.table["name"]) != (table.schema, table.name):
                continue
            if file.last_offset >= first and file.first_offset <= last:
                shape = table_from_json(file.table)
                found.append(InputFile(str(room / file.path), shape, file, segment, first - 1))
    return sorted(found, key=lambda f: f.file.first_offset)


def in_latest_shape(
    layout: Layout, table: TableId, files: Sequence[InputFile], kind: str = LOG, *, truncates_as_rows: bool = False
) -> Shaped:
    """Return how the rows in these files are shown: in the columns of their latest shape.

    Raises:
        ConfigurationError: a column of an older shape has values that the latest shape cannot hold; or, for a feed, the
            table was dropped and recreated. The message says where to split the range.
    """
    if kind not in (LOG, FEED):
        raise ConfigurationError(
            f"reading {table} of {layout.name} in shape {kind}", remedy="name shape log or feed", runbook="settings"
        )
    shapes = tuple(shapes_of(files)) or (_known_shape(layout, table),)
    target = target_of(shapes)
    if kind == FEED and (taken := sorted({c.name for c in target.columns} & set(FEED_COLUMNS))):
        raise ConfigurationError(
            f"reading the feed of {table}: the table itself has columns called {', '.join(taken)}",
            remedy="read it with shape log",
            runbook="table-not-followed",
        )
    for shape in shapes:
        if (why := _in_the_way(shape, target, kind)) is not None:
            raise split_error(table, why, max(f.file.last_offset for f in files if f.shape == shape))
    found = Shaped(target, shapes, defaults_of(shapes, target), kind, truncates_as_rows)
    for column in target.columns:
        stored_type(column.type.arrow)
        default_of(column, target, found.defaults)
    return found


def target_of(shapes: Sequence[Table]) -> Table:
    """Return the latest of these shapes, which are sorted oldest first; a column whose type was wider in an earlier
    shape keeps the wider type."""
    newest = in_force(shapes)
    columns = list(newest.columns)
    for shape in shapes:
        for at, own in enumerate(sources(shape, newest)):
            if own is not None and widens(stored_type(columns[at].type.arrow).table, stored_type(own.type.arrow).table):
                columns[at] = replace(columns[at], type=own.type)
    return replace(newest, columns=tuple(columns))


def split_error(table: TableId, why: str, last: int) -> ConfigurationError:
    """Return the error for a range that cannot be shown as one table. `last`: the offset after which it must
    be split."""
    return ConfigurationError(
        f"reading {table}: {why}",
        remedy=f"read up to offset {last}, and from offset {last + 1}, each by itself",
        runbook="table-not-followed",
    )


def check_feed(
    shown: Shaped, files: Sequence[InputFile], first: int, last: int, read: Callable[[InputFile], str]
) -> None:
    """Check that the feed can represent everything that these files contain in a range. Only files with a truncate or a
    partial row are read. `read` returns the path at which a file can be opened.

    Raises:
        NotInFeed: it names the first change that the feed cannot represent.
    """
    if shown.kind != FEED:
        return
    for file in files:
        has_truncates = bool(file.ops.get(TRUNCATE)) and not shown.truncates_as_rows
        if file.file.partial or has_truncates:
            columns = [OFFSET, OP, UNCHANGED, *([BEFORE] if file.shape.identity is Identity.FULL else [])]
            with pq.ParquetFile(read(file)) as parquet:
                for rows in row_groups(None, parquet, first, last, columns):
                    if BEFORE not in columns:
                        rows = rows.append_column(BEFORE, pa.nulls(rows.num_rows, file.shape.before_type))
                    check_in_feed(rows, file.shape, truncates_as_rows=shown.truncates_as_rows)


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _one_each(layout: Layout, ends: Ends) -> None:
    for end in ("from", "to"):
        given = [name for name in ("offset", "cut", "position", "time") if getattr(ends, f"{end}_{name}") is not None]
        if len(given) > 1:
            raise ConfigurationError(
                f"reading {layout.name}: the range has {len(given)} ends, {end} {' and '.join(given)}",
                remedy=f"name one of them: {end} offset, cut, position or time",
                runbook="log-range",
            )


def _first(layout: Layout, ends: Ends, newest: Checkpoint, first_left: int) -> int:
    if ends.from_offset is not None:
        return max(1, ends.from_offset)
    if ends.from_cut is not None:
        return offset_of_cut(layout, ends.from_cut) + 1
    if ends.from_position is not None:
        return offset_of_position(layout, ends.from_position) + 1
    if ends.from_time is not None:
        clock = _clock(layout, ends.from_time)
        if clock > newest.commit_clock + 1:
            raise ConfigurationError(
                f"reading {layout.name} since {time_text(clock)}: the log is sealed up to {_known_until(newest)}, and "
                "the next changes may be from before that time",
                remedy=f"name an earlier time, or offset {newest.next_offset}, at which the next row comes",
                runbook="log-range",
            )
        return offset_before(layout, clock) + 1
    return first_left


def _last(layout: Layout, ends: Ends, newest: Checkpoint) -> int:
    if ends.to_offset is not None:
        return ends.to_offset
    if ends.to_cut is not None:
        return offset_of_cut(layout, ends.to_cut)
    if ends.to_position is not None:
        return offset_of_position(layout, ends.to_position)
    if ends.to_time is not None:
        clock = _clock(layout, ends.to_time)
        if clock > newest.commit_clock:
            raise ConfigurationError(
                f"reading {layout.name} up to {time_text(clock)}: the log is sealed up to {_known_until(newest)}, and "
                "more changes from before that time may arrive",
                remedy="name an earlier time, or no end: then the range ends where the log is sealed",
                runbook="log-range",
            )
        return offset_before(layout, clock + 1)
    return newest.next_offset - 1


def _known_until(newest: Checkpoint) -> str:
    return time_text(newest.commit_clock) if newest.cut else "no time yet"


def _clock(layout: Layout, time: Time) -> int:
    try:
        return clock_of(time)
    except ValueError:
        raise ConfigurationError(
            f"reading {layout.name}: {time} is no time",
            remedy="write it as 2026-11-25T10:00:00Z",
            runbook="log-range",
        ) from None


def _check_end(layout: Layout, last: int, newest: Checkpoint) -> None:
    if last >= newest.next_offset:
        raise ConfigurationError(
            f"reading {layout.name} up to offset {last}: the log is sealed up to offset {newest.next_offset - 1}",
            remedy="name that offset or one before it, or no end: then the range ends where the log is sealed",
            runbook="log-range",
        )


def _check_there(layout: Layout, log: Range, first: int, last: int) -> None:
    if log.newest is None or log.newest.last_offset < last:
        end = 0 if log.newest is None else log.newest.last_offset
        raise InvariantViolated(
            f"reading {layout.name} up to offset {last}: the log ends at {end}, and had more before",
            remedy="an older copy of the log was restored; read from a log that has the offsets, or start again",
            runbook="other-log",
        )
    if first < (first_left := log.segments[0].first_offset):
        raise expiry_error(layout, first, first_left)


def _tables(layout: Layout) -> dict[str, TableId]:
    """Return the tables in the log's list of shapes, which has at least those of the latest segments. The cost does not
    depend on the number of segments."""
    text = layout.schemas_json()
    history = SchemaHistory() if text is None else SchemaHistory.from_json(text, str(layout.schemas))
    return {str(table): table for table in history.shapes()}


def _known_shape(layout: Layout, table: TableId) -> Table:
    """Return the latest shape of a table that has no row in a range."""
    shapes = table_shapes(layout).get(table)
    if shapes:
        return shapes[max(shapes)]
    return max(_every_file(layout, table), key=lambda f: f[0])[1]


def _every_file(layout: Layout, table: TableId) -> Iterator[tuple[int, Table]]:
    for segment in sealed_range(layout).segments:
        for file in segment.files:
            if file.table is not None and (file.table["schema"], file.table["name"]) == (table.schema, table.name):
                yield file.last_offset, table_from_json(file.table)


def _in_the_way(shape: Table, target: Table, kind: str) -> str | None:
    """Return why rows of `shape` cannot be shown together with those of the later shape `target`; `None` if
    they can."""
    if kind == FEED and shape.incarnation != target.incarnation:
        return "the table was dropped and recreated, and the log does not have the deleted rows"
    for column, own in zip(target.columns, sources(shape, target), strict=True):
        if own is None:
            continue
        old, new = stored_type(own.type.arrow).table, stored_type(column.type.arrow).table
        if old != new and not widens(old, new):
            return f"column {column.name} was {old} and is {new} later, which does not hold the old values"
    return None


__all__ = [
    "FEED",
    "LOG",
    "Ends",
    "Shaped",
    "bounds_of",
    "check_feed",
    "expiry_error",
    "files_between",
    "split_error",
    "in_latest_shape",
    "table_named",
    "target_of",
]
