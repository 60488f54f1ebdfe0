"""A table's changes as a plan over Spark's own Parquet reader: the same rows as in `change_log`, in SQL.

    files of shape 1 ─▶ scan ─▶ where _offset … ─▶ columns of the latest shape ─┐
    files of shape 2 ─▶ scan ─▶ where _offset … ─▶                              ┴─ UNION ALL

Spark reads only the columns that a query needs, and filters reach its scan. The plan names the files that existed when
it was built: if one has been compacted since, Spark reports that a file does not exist, and the caller must build a new
plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.alignment import sources
from cdcflow.log.read.feed import AFTER_UPDATE, BEFORE_UPDATE, DELETED, INSERTED, TRUNCATED
from cdcflow.log.tier import Tier
from cdcflow.model.sqltypes import DECIMAL_TEXT, literal, name_sql, stored_type, text_sql
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Column, Identity, Table
from cdcflow.spark.engine import readable_files
from cdcflow.spark.live import lasting_room
from cdcflow.spark.log_source.log_options import Options, PlannedQuery, again, plan_query, schema_ddl
from cdcflow.spark.runtime.arrow import ddl_of
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.verbatim import all_as_written, read_parquet
from cdcflow.spark.sql import register_decimal_text
from cdcflow.tables.job.log_ranges import LOG, Ends, Shaped, check_feed, files_between
from cdcflow.tables.segments import InputFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IS_OLD = "__cdcflow_is_old"


def read_log(
    spark: SparkSession,
    log: Layout | Tier | Path | str,
    table: str,
    *,
    shape: str = LOG,
    truncates: str = "stop",
    **ends: int | str | datetime | None,
) -> DataFrame:
    """Return a table's changes in the sealed part of a log, lazily.

    `log`: as for `merge_stream`; `table`: a `schema.table`. `ends`: `from_offset`, `from_cut`, `from_position`,
    `from_time`, and the same with `to_` (see `cdcflow.tables.job.log_ranges.Ends`). `shape`: "log" or "feed";
    `truncates` (for a feed): "stop" or "row".

    Raises:
        ConfigurationError: the log has no such table, an end is not sealed yet, the rows have no common columns, or the
            session is Spark Connect's.
        HistoryLost: the beginning of the range has expired.
        NotInFeed: the feed cannot represent all of the range.
    """
    refuse_connect(spark)
    layout = Layout.of(log) if isinstance(log, Layout | Path | str) else log.layout
    options = Options(str(layout.root), None, table, shape, truncates == "row", Ends(**ends))  # type: ignore[arg-type]

    def plan() -> tuple[PlannedQuery, list[InputFile]]:
        found = plan_query(layout, options)
        files = files_between(layout, found.table, found.begin, found.last)
        check_feed(found.shown, files, found.begin, found.last, lambda f: str(layout.file(f.segment, f.file)))
        hidden = any(Path(file.path).name[0] in "_." for file in files)
        return found, readable_files(spark, layout, files, lasting_room() if hidden else layout.root)

    found, files = again(plan)
    parts = [_part(spark, found, shape_, [f for f in files if f.shape == shape_]) for shape_ in found.shown.shapes]
    whole = [part for part in parts if part is not None]
    if not whole:
        return spark.createDataFrame([], schema_ddl(found.shown))
    frame = whole[0]
    for part in whole[1:]:
        frame = frame.unionAll(part)
    return frame


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _part(spark: SparkSession, plan: PlannedQuery, shape: Table, files: Sequence[InputFile]) -> DataFrame | None:
    """Return the rows of one shape, in the common columns."""
    if not files:
        return None
    shown = plan.shown
    columns = list(_log_columns(shown, shape) if shown.kind == LOG else _feed_columns(shown, shape))
    if any(DECIMAL_TEXT in column for column in columns):
        register_decimal_text(spark)
    rows = read_parquet(spark, _read_ddl(shape), [f.path for f in files], OFFSET)
    if any(f.file.first_offset < plan.first or f.file.last_offset > plan.last for f in files):
        rows = rows.where(f"{OFFSET} BETWEEN {plan.first} AND {plan.last}")
    if shown.kind != LOG:
        is_update = f"{OP} = 'u' AND {BEFORE} IS NOT NULL"
        twice = f"CASE WHEN {is_update} THEN array(true, false) ELSE array(false) END"
        rows = rows.selectExpr("*", f"{f'explode({twice})' if _is_full(shape) else 'false'} AS {_IS_OLD}")
    return rows.selectExpr(*all_as_written(spark, columns))


def _read_ddl(shape: Table) -> str:
    own = [f"{name_sql(c.name)} {stored_type(c.type.arrow).read}" for c in shape.columns]
    before = ", ".join(f"{name_sql(f.name)}: {stored_type(f.type).read}" for f in shape.before_type)
    ours = [f"{OFFSET} bigint", f"{TRANSACTION} bigint", f"{COMMIT_TS} timestamp"]
    return ", ".join([*ours, *own, f"{OP} string", f"{UNCHANGED} array<string>", f"{BEFORE} struct<{before}>"])


def _log_columns(shown: Shaped, shape: Table) -> Iterator[str]:
    if shape.columns == shown.target.columns and shape.before_type == shown.target.before_type and not _converts(shape):
        yield from map(name_sql, shown.target.log_schema.names)
        return
    yield from (OFFSET, TRANSACTION, COMMIT_TS)
    pairs = list(zip(shown.target.columns, sources(shape, shown.target), strict=True))
    for column, own in pairs:
        value = _default(shown, column, _is_whole(shape)) if own is None else _cast(name_sql(own.name), own, column)
        yield f"{value} AS {name_sql(column.name)}"
    yield OP
    yield f"{_unchanged_columns(pairs)} AS {UNCHANGED}"
    yield f"{_before(shown.target, shape, pairs)} AS {BEFORE}"


def _feed_columns(shown: Shaped, shape: Table) -> Iterator[str]:
    for column, own in zip(shown.target.columns, sources(shape, shown.target), strict=True):
        if own is None:
            value = _default(shown, column, _is_whole(shape))
        elif _is_full(shape):
            name = name_sql(own.name)
            left = f"{OP} IN ('c', 'u', 'r') AND array_contains({UNCHANGED}, {text_sql(own.name)})"
            old = f"{_IS_OLD} OR coalesce({left}, false)"
            value = _cast(f"(CASE WHEN {old} THEN {BEFORE}.{name} ELSE {name} END)", own, column)
        else:
            value = _cast(name_sql(own.name), own, column)
        yield f"{value} AS {name_sql(column.name)}"
    yield (
        f"CASE WHEN {_IS_OLD} THEN '{BEFORE_UPDATE}' WHEN {OP} = 'u' THEN '{AFTER_UPDATE}' WHEN {OP} = 'd' THEN"
        f" '{DELETED}' WHEN {OP} = 't' THEN '{TRUNCATED}' ELSE '{INSERTED}' END AS _change_type"
    )
    yield f"{TRANSACTION} AS _commit_version"
    yield f"{COMMIT_TS} AS _commit_timestamp"
    yield OFFSET


def _is_full(shape: Table) -> bool:
    return shape.identity is Identity.FULL


def _converts(shape: Table) -> bool:
    """Return whether a column is shown in another type than it has in its file."""
    return any(stored_type(column.type.arrow).convert is not None for column in shape.columns)


def _is_whole(shape: Table) -> str:
    """Return the SQL condition that a change has the whole row (see `alignment.aligned_columns`)."""
    lives = f"{OP} IN ('c', 'u', 'r')"
    return f"({lives} OR {OP} = 'd' AND {UNCHANGED} IS NULL)" if _is_full(shape) else lives


def _cast(value: str, own: Column, column: Column) -> str:
    return f"CAST({stored_type(own.type.arrow).sql(value)} AS {ddl_of(column.type.arrow)})"


def _default(shown: Shaped, column: Column, is_whole: str) -> str:
    type_ = ddl_of(column.type.arrow)
    text = shown.defaults.get(column.name)
    if text is None:
        return f"CAST(NULL AS {type_})"
    found = literal(text, type_)
    if found is None:
        raise ConfigurationError(
            f"reading {shown.target.id}: column {column.name} ({column.type.source}) was added with a default for the"
            " existing rows, and cdcflow cannot write a constant of that type",
            remedy="read from the offset of the first row that has the column on",
            runbook="table-not-followed",
        )
    return f"CAST(CASE WHEN {is_whole} THEN {found} END AS {type_})"


def _unchanged_columns(pairs: Sequence[tuple[Column, Column | None]]) -> str:
    if all(own is None or own.name == column.name for column, own in pairs):
        known = [text_sql(own.name) for _, own in pairs if own is not None]
        names = f"filter({UNCHANGED}, x -> x IN ({', '.join(known)}))" if known else "array()"
    else:
        named = ", ".join(f"{text_sql(own.name)}, {text_sql(c.name)}" for c, own in pairs if own is not None)
        names = f"filter(transform({UNCHANGED}, x -> try_element_at(map({named}), x)), x -> x IS NOT NULL)"
    return f"CASE WHEN size({names}) > 0 THEN {names} END"


def _before(target: Table, shape: Table, pairs: Sequence[tuple[Column, Column | None]]) -> str:
    own_of = {column.name: (column, own) for column, own in pairs}
    there = {field.name for field in shape.before_type}
    parts = []
    for field in target.before_type:
        column, own = own_of[field.name]
        known = own is not None and own.name in there
        value = _cast(f"{BEFORE}.{name_sql(own.name)}", own, column) if known and own is not None else _null(field)
        parts.append(f"{text_sql(field.name)}, {value}")
    return f"CASE WHEN {BEFORE} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _null(field: pa.Field) -> str:
    return f"CAST(NULL AS {ddl_of(field.type)})"
