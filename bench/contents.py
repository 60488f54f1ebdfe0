"""Whether the log's rows equal the source's. A round whose log does not is no round.

The source's rows are read through COPY as CSV and Arrow's own reader, so that cdcflow's decoding is not on both sides.
The log's rows are folded by key: the last change of each key, without deletes.
"""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from bench.harness import Failed
from bench.server import Server
from bench.shapes import Shape
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import OFFSET, OP

_ARROW = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "date": pa.date32(),
    "timestamptz": pa.int64(),  # microseconds since 1970
}


def source_rows(server: Server, shape: Shape) -> pa.Table:
    """The table's rows, ascending by id. Times are microseconds, decimals their text."""
    listed = []
    types = {}
    for name, kind, _ in shape.columns:
        if kind == "timestamptz":
            listed.append(f"(extract(epoch FROM {name}) * 1000000)::bigint")
        elif kind == "boolean":
            listed.append(f"CASE WHEN {name} THEN 'true' ELSE 'false' END")
        else:
            listed.append(name)
        types[name] = _ARROW.get(kind, pa.string())
    content = io.BytesIO()
    with server.connect() as connection, connection.cursor() as cursor:
        statement = f"COPY (SELECT {', '.join(listed)} FROM {shape.name} ORDER BY id) TO STDOUT (FORMAT csv)"
        with cursor.copy(statement) as copy:
            for block in copy:
                content.write(block)
    if not content.tell():
        return pa.schema(types).empty_table()
    return csv.read_csv(
        pa.py_buffer(content.getbuffer()),
        read_options=csv.ReadOptions(column_names=list(types)),
        convert_options=csv.ConvertOptions(
            column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    ).combine_chunks()


def log_rows(log: LogReader, shape: Shape) -> pa.Table:
    """The log's rows of one table, folded: the source's current rows according to the log."""
    tables = [rows for table, _, rows in log.read_rows() if table.id.name == shape.name]
    names = [name for name, _, _ in shape.columns]
    if not tables:
        return pa.schema({name: pa.null() for name in names}).empty_table()
    changes = pa.concat_tables([t.select([OFFSET, OP, *names]) for t in tables])
    ids = changes.column("id")
    if pc.count_distinct(ids).as_py() != len(changes):
        last = changes.select([OFFSET, "id"]).group_by("id").aggregate([(OFFSET, "max")]).column(f"{OFFSET}_max")
        changes = changes.filter(pc.is_in(changes.column(OFFSET), value_set=last.combine_chunks()))
    changes = changes.filter(pc.not_equal(changes.column(OP), "d")).sort_by("id")
    return changes.select(names)


def same(log: pa.Table, source: pa.Table) -> bool:
    """Whether the rows are equal, value by value."""
    if len(log) != len(source):
        return False
    for name in source.column_names:
        ours, theirs = log.column(name), source.column(name)
        if pa.types.is_timestamp(ours.type):
            ours = ours.cast(pa.int64())
        elif pa.types.is_decimal(ours.type):
            theirs = theirs.cast(ours.type)
        elif ours.type != theirs.type:
            ours = ours.cast(theirs.type)
        if not ours.combine_chunks().equals(theirs.combine_chunks()):
            return False
    return True


def verify(log: Path | LogReader, shape: Shape, source: pa.Table, changes: int | None = None) -> None:
    """That a log is whole, has just these changes (None: however many), and folds to the table's rows.

    Raises:
        Failed: it is not; nothing may be printed of this run.
    """
    reader = FolderReader(log) if isinstance(log, Path) else log
    report = reader.check()
    if not report.is_whole:
        raise Failed(f"the log does not hold: {report.faults[:3]}")
    if changes is not None and report.rows != changes:
        raise Failed(f"the log has {report.rows} rows, the load committed {changes} changes")
    if not same(log_rows(reader, shape), source):
        raise Failed(f"the log does not fold to the rows that {shape.name} has")
