"""The change log as a Spark data source, for batches and streams: `spark.read.format("cdcflow")`.

    options ─▶ planning process: manifests ─▶ range, shape, files ─▶ partitions
                                                                     │ names of files, and offsets in them
    executors ◀──────────────────────────────────────────────────────┘
       open the log's files in place ─▶ Arrow batches in the columns of the latest shape

Rows go from the files to Spark as Arrow columns; only manifests pass through the planning process, and for a feed the
few columns that decide whether it is possible. Every machine opens the log itself, with the same options: so it needs
the package cdcflow, and either sees the log under the same path or has the same settings file. No secret is in a plan.

If a segment was compacted after it was planned, its rows are found by their offsets, since a compacted segment has the
same rows under the same offsets.

A stream's offsets are offsets of the log at which sealed segments end, with the log's id. A batch has the rows after
one offset up to another, whenever it is requested. When Spark 4.1 requests the end of the next batch, it does not pass
the offset at which a restarted query continues; but such a query first requests the partitions of an empty range at
that offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.files.extents import TRIES_MAX
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import row_groups
from cdcflow.model.table import Table
from cdcflow.spark.log_source.log_options import (
    NAME,
    Options,
    PlannedQuery,
    again,
    columns_of,
    option_error,
    plan_query,
    schema_ddl,
)
from cdcflow.spark.log_source.log_pruning import Piece, Pieces, may_have, narrow_range, pack_files
from cdcflow.spark.runtime.arrow import for_spark
from cdcflow.tables.job.log_ranges import FEED, check_feed, files_between, split_error, target_of
from cdcflow.tables.segments import InputFile

LOOK_PAUSE_S = 1.0
"""Minimum pause between a poll that found nothing new and the next one."""

OpenSettings = Callable[[str], Layout]
"""Returns the sealed segments' layout for the log that a settings file names."""


class ChangeLogSource(DataSource):
    """The data source. `open_settings`: for the option `config` (see `cdcflow.spark.register`)."""

    open_settings: ClassVar[OpenSettings | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: PlannedQuery | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_ddl(self._planned_query().shown)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangeLogReader(self._planned_query(), self._open(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ChangeLogStream(self._planned_query(), self._open(), schema)

    def _planned_query(self) -> PlannedQuery:
        """Plan the query once: Spark keeps the source that returned the schema, and creates readers from it."""
        if self._plan is None:
            options = Options.of(dict(self.options))
            self._plan = plan_query(self._open()(options), options)
        return self._plan

    def _open(self) -> Callable[[Options], Layout]:
        settings = type(self).open_settings

        def open_layout(options: Options) -> Layout:
            if options.log is not None:
                return Layout.of(options.log)
            if settings is None:
                raise option_error(
                    "this session has no settings files",
                    "register the source with cdcflow.spark.register(spark, cdcflow.wiring.sealed_layout_of)",
                )
            return settings(str(options.config))

        return open_layout


@dataclass(frozen=True, slots=True)
class _PieceReader:
    """Reads pieces of files on an executor."""

    plan: PlannedQuery
    open_log: Callable[[Options], Layout]
    schema: StructType

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Pieces):
            return
        layout = self.open_log(self.plan.options)
        schema = to_arrow_schema(self.schema, timestamp_utc=True)
        for piece in partition.pieces:
            for rows, shape in self._log_rows(layout, piece):
                yield from for_spark(self.plan.shown.rows(rows, shape), schema)

    def _log_rows(self, layout: Layout, piece: Piece) -> Iterator[tuple[pa.Table, Table]]:
        opened = [(piece, self._open(layout, piece.file))]
        for _ in range(TRIES_MAX):
            if all(parquet is not None for _, parquet in opened):
                break
            # It was compacted: the segment that covers it has its rows.
            files = again(lambda: files_between(layout, self.plan.table, piece.first, piece.last))
            same = [file for file in files if file.shape == piece.file.shape]
            opened = [(Piece(file, piece.first, piece.last), self._open(layout, file)) for file in same]
        for part, parquet in opened:
            if parquet is None:
                raise InvariantViolated(
                    f"reading {layout.name}: the segment with offset {part.first} is missing", runbook="log-damaged"
                )
            with parquet:
                for rows in row_groups(part.file.shape, parquet, part.first, part.last):
                    yield rows, part.file.shape

    def _open(self, layout: Layout, file: InputFile) -> pq.ParquetFile | None:
        try:
            return pq.ParquetFile(layout.file(file.segment, file.file))
        except FileNotFoundError:
            return None

    def plan_tasks(self, layout: Layout, files: Sequence[InputFile], first: int, last: int) -> list[InputPartition]:
        """Return the tasks for a range of offsets.

        Raises:
            NotInFeed: the feed cannot represent one of its rows.
        """
        check_feed(self.plan.shown, files, first, last, lambda file: str(layout.file(file.segment, file.file)))
        return pack_files(files, first, last)


class ChangeLogReader(DataSourceReader):
    """The reader of a batch. It reports every filter as not handled: it only skips files without matching rows."""

    def __init__(self, plan: PlannedQuery, open_log: Callable[[Options], Layout], schema: StructType) -> None:
        _check_schema(plan, schema)
        self._rows = _PieceReader(plan, open_log, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        plan = self._rows.plan
        layout = self._rows.open_log(plan.options)

        def list_partitions() -> list[InputPartition]:
            first, last = narrow_range(plan.begin, plan.last, self._filters)
            files = files_between(layout, plan.table, first, last)
            kept = [file for file in files if may_have(file, plan.shown.target, self._filters)]
            return self._rows.plan_tasks(layout, kept, first, last)

        return again(list_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class ChangeLogStream(DataSourceStreamReader):
    """The reader of a stream. Its offsets are `{"log": the log's id, "offset": that of the last row that was read}`."""

    def __init__(self, plan: PlannedQuery, open_log: Callable[[Options], Layout], schema: StructType) -> None:
        _check_schema(plan, schema)
        ends = plan.options.ends
        if any(getattr(ends, f"to_{name}") is not None for name in ("offset", "cut", "position", "time")):
            raise option_error("a stream has no end, but one is named", "omit toOffset, toCut, toPosition and toTime")
        self._rows = _PieceReader(plan, open_log, schema)
        self._at: int | None = None
        self._looked_s = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(self._rows.plan.begin - 1)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        plan = self._rows.plan
        at = plan.begin - 1 if self._at is None else self._at
        layout = self._rows.open_log(plan.options)
        # Without a trigger Spark polls a hundred times a second, and a poll may be a request to a store.
        time.sleep(max(0.0, self._looked_s + LOOK_PAUSE_S - time.monotonic()))
        ends = [last for _, last in layout.segments_behind(at) if last > at]
        most = plan.options.offsets_max
        within = ends if most is None else ([last for last in ends if last <= at + most] or ends[:1])
        self._looked_s = 0.0 if within else time.monotonic()
        self._at = within[-1] if within else at
        return self._offset(self._at)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        plan = self._rows.plan
        layout = self._rows.open_log(plan.options)
        log_id = layout.log_file().log_id
        for known in (start["log"], end["log"]):
            if known != log_id:
                raise ConfigurationError(
                    f"streaming {plan.table} of {layout.name}: the checkpoint of this query belongs to another log"
                    f" ({known}, this one is {log_id})",
                    remedy="name the log with which the query began, or start again with a new checkpoint",
                    runbook="other-log",
                )
        self._at = int(end["offset"])
        first, last = int(start["offset"]) + 1, int(end["offset"])

        def list_partitions() -> list[InputPartition]:
            files = files_between(layout, plan.table, first, last)
            for file in files:
                _check_shape(plan, file, layout)
            return self._rows.plan_tasks(layout, files, first, last)

        return again(list_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"log": self._rows.plan.log_id, "offset": offset}


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_schema(plan: PlannedQuery, schema: StructType) -> None:
    if schema.names != columns_of(plan.shown).names:
        raise option_error("the query sets a schema", "omit .schema(…), and select columns instead")


def _check_shape(plan: PlannedQuery, file: InputFile, layout: Layout) -> None:
    """Check that a stream can show rows of a shape that is newer than the stream."""
    shown = plan.shown
    if file.shape in shown.shapes:
        return
    if file.shape.incarnation != shown.target.incarnation and shown.kind == FEED:
        raise split_error(
            plan.table,
            "the table was dropped and recreated, and the log does not have the deleted rows",
            file.file.first_offset - 1,
        )
    if target_of((*shown.shapes, file.shape)).log_schema.equals(shown.target.log_schema):
        return
    raise ConfigurationError(
        f"streaming {plan.table} of {layout.name}: since offset {file.file.first_offset} its columns differ from"
        " those when this query began",
        remedy="load the stream again and start it with the same checkpoint: it continues with the new columns",
        runbook="table-not-followed",
    )
