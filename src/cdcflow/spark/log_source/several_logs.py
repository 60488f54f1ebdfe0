"""Several logs with Spark: merge them into one warehouse (see `cdcflow.tables.job.several_logs`), or read a table's
changes in all of them as one plan, up to the commit clock that all have reached.

    shop   log_plan ─▶ rows up to its last transaction at or before T ─▶ join transactions on _txn ─┐
    crm    log_plan ─▶ …                                                                            ┴─ UNION BY NAME

`ORDER BY _commit_clock, _log, _offset` is the common order (`cdcflow.log.read.commit_order` explains why it is final
up to T).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.commit_order import COMMIT_CLOCK, LOG
from cdcflow.log.read.moments import offset_before
from cdcflow.log.tier import Tier
from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import TRANSACTION, Table, TableId
from cdcflow.spark.engine import SparkEngine, readable_files
from cdcflow.spark.kafka import log_to_merge
from cdcflow.spark.log_source.log_options import again
from cdcflow.spark.log_source.log_plan import read_log
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.verbatim import all_as_written, literal_path
from cdcflow.tables.formats import format_for
from cdcflow.tables.job import several_logs
from cdcflow.tables.job.common_clock import common_clock
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.log_ranges import tables_with
from cdcflow.tables.job.reports import SeveralReport
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.segments import InputFile, sealed_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBER = "__cdcflow_number"
_HEADERS = "number bigint, commit_clock timestamp"
_NO_OFFSET = 1 << 62


def read_logs(
    spark: SparkSession,
    logs: Mapping[str, Layout | Tier | Path | str],
    table: str,
    *,
    to: str | datetime | int | None = None,
    start: Mapping[str, int] | None = None,
) -> DataFrame:
    """Return a table's changes in the sealed parts of several logs, lazily, with the columns of `read_log` and two in
    front: `_log`, the name of the row's log, and `_commit_clock`, that of its transaction.

    `logs`: each as for `read_log`, by its name. `table`: a `schema.table`, read from every log that has it, or
    `log:schema.table` from one log; columns that only some have are NULL in the others. `to`: up to this commit time or
    clock (µs since 1970), inclusive; `None`: the latest that all logs have reached. `start`: the first offset for some
    logs; the others are read from their beginning.

    Raises:
        ConfigurationError: no log has such a table, a log has not reached that time, or has nothing sealed.
        HistoryLost: the requested beginning has expired.
    """
    refuse_connect(spark)
    layouts = {
        name: Layout.of(log) if isinstance(log, Layout | Path | str) else log.layout
        for name, log in sorted(logs.items())
    }
    clock = common_clock(layouts, to)
    parts = [
        _part(spark, name, layouts[name], named, offset_before(layouts[name], clock + 1), (start or {}).get(name))
        for name, named in _logs_with(layouts, table)
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def merge_logs(
    spark: SparkSession,
    logs: Mapping[str, Layout | Tier | Path | str],
    warehouse: Warehouse | Path | str,
    *,
    without: Collection[str] = (),
    table_format: str | None = None,
    policies: Policies = DEFAULTS,
) -> SeveralReport:
    """Bring the tables of several logs, keyed by name, to a time that all of them have reached, then publish one cut.

    `logs`: a log in Kafka is given as its tier (`cdcflow.wiring.tier(config)`); `spark` then needs Kafka's jars.
    `table_format`: as in `merge`; everything else, including errors, is as in
    `cdcflow.tables.job.several_logs.merge_logs`.
    """
    place = Warehouse.of(warehouse)
    engines = Engines(SparkEngine(spark, place, format_for(place, table_format)))
    listed = [
        several_logs.Merged(name, Layout.of(log), policies)
        if isinstance(log, Layout | Path | str)
        else log_to_merge(spark, name, log, policies)
        for name, log in logs.items()
    ]
    return several_logs.merge_logs(engines, listed, place, without=without)


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _logs_with(logs: Mapping[str, Layout], table: str) -> Sequence[tuple[str, str]]:
    """Return the logs that have a table, and its name in each."""
    log, colon, rest = table.partition(":")
    if colon and log in logs:
        return [(log, rest)]
    found = [(name, table) for name, layout in logs.items() if table in tables_with(layout, table)]
    if not found:
        raise ConfigurationError(
            f"reading several logs: the sealed part of none of {', '.join(logs)} has a row of a table {table}",
            remedy="name it as schema.table, or as log:schema.table",
            runbook="table-not-found",
        )
    return found


def _part(spark: SparkSession, name: str, layout: Layout, table: str, last: int, first: int | None) -> DataFrame:
    """Return one log's rows, with their clocks."""
    rows = read_log(spark, layout, table, from_offset=first, to_offset=last)
    clocks = again(lambda: _headers(spark, layout, first or 1, last))
    joined = rows.join(clocks, rows[TRANSACTION] == clocks[_NUMBER])
    listed = (f"{text_sql(name)} AS {LOG}", COMMIT_CLOCK, *map(name_sql, rows.columns))
    return joined.selectExpr(*all_as_written(spark, listed))


def _headers(spark: SparkSession, layout: Layout, first: int, last: int) -> DataFrame:
    """Return the number and the clock of each transaction between two offsets, and perhaps of more transactions."""
    unseen = Table(TableId("", "transactions"), 0, (), ())
    found = []
    for segment in sealed_range(layout, _NO_OFFSET).segments.behind(first - 1):
        if segment.first_offset > last:
            break
        room = layout.segment(segment.first_offset, segment.last_offset).resolve()
        file = segment.transactions_file
        found.append(InputFile(str(room / file.path), unseen, file, segment))
    paths = [literal_path(file.path) for file in readable_files(spark, layout, found, layout.root)]
    read = spark.read.schema(_HEADERS).parquet(*paths) if paths else spark.createDataFrame([], _HEADERS)
    return read.selectExpr(f"number AS {_NUMBER}", f"commit_clock AS {COMMIT_CLOCK}")
