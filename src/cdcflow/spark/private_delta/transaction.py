"""Change a Delta table's rows in Delta's own transactions, without one of Delta's SQL commands around them.

    the table's keys ──join── changes ──▶ a bitmap for each file, stored ─┐
                                  └─────▶ files with the inserted rows ───┴─▶ one commit

Delta's MERGE does the same in three joins, each of which reads the table again, and plans some twenty Spark jobs. Each
of its commands also computes from the whole log which transactions a table has seen, although a version's checksum
contains them. The parts used here are Delta's (`OptimisticTransaction`, `DeletionVectorBitmapGenerator`), called as its
commands call them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcflow.model.file_layout import SortColumn
from cdcflow.model.sqltypes import name_sql
from cdcflow.spark import matched_rows
from cdcflow.spark.matched_rows import BROADCAST_ROWS_MAX
from cdcflow.spark.private_delta.classes import delta_jvm, is_fast
from cdcflow.spark.private_delta.files import MADE_BYTES, files_to_rewrite
from cdcflow.spark.runtime.verbatim import as_written
from cdcflow.spark.runtime.views import Views
from cdcflow.tables.merge import removed_and_added
from cdcflow.tables.merge.removed_and_added import FILE, ROW
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.port import Compacted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEATURES = frozenset({"deletionVectors", "columnMapping", "invariants", "appendOnly", "timestampNtz", "typeWidening"})
"""The table features that this module can handle. For a table with any other, cdcflow runs a MERGE."""

SMALL_ROWS = 100_000
"""Up to this many changes, the plan is fixed in advance, with one task after a shuffle. Otherwise Spark plans again
after each shuffle, in a separate job: for five tables of 1,000 changes 51 jobs instead of 31, and 20 % more CPU."""

FILE_ROWS = 500_000
"""How many inserted rows go into one file. Their number is estimated from the number of changes."""

_METRICS = "spark.databricks.delta.history.metricsEnabled"
"""The session setting for metrics of commits. It is off here: only Delta's own commands collect them, and without
them a commit that needs them fails."""


def may_change_rows(spark: SparkSession, snapshot: Any) -> bool:  # Any, as in `classes`
    """Return whether rows of this version of a table may be changed here. In addition to `may_write`, the table must
    use deletion vectors."""
    if not may_write(spark, snapshot):
        return False
    settings: Mapping[str, str] = delta_jvm(spark).content_of(snapshot.metadata())["configuration"]
    return settings.get("delta.enableDeletionVectors") == "true" and settings.get("delta.appendOnly") != "true"


def may_write(spark: SparkSession, snapshot: Any) -> bool:
    """Return whether this module can write correctly to this version of a table: it has no feature that
    requires more."""
    parts = delta_jvm(spark)
    if not is_fast(spark):
        return False
    metadata = parts.content_of(snapshot.metadata())
    settings = metadata["configuration"]
    return (
        FEATURES.issuperset(parts.content_of(snapshot.protocol().readerAndWriterFeatureNames()))
        and not settings.keys() & {"delta.enableChangeDataFeed", "delta.enableRowTracking"}
        and not metadata["partitionColumns"]
    )


class DeltaTransaction:
    """One change of the rows of one version of a table. Before it is created, the session must be the thread's active
    one with its commit settings set (see `formats.delta`), and the version must not have the transaction that the
    settings name."""

    def __init__(self, spark: SparkSession, log: Any, snapshot: Any) -> None:
        """`log` and `snapshot` are Delta's: the table's log, and the version from which the change was computed."""
        self._spark = spark
        self._parts = delta_jvm(spark)
        self._session: Any = spark._jsparkSession
        self._log = log
        self._snapshot = snapshot
        self._none = self._parts.nothing
        self._transaction = log.startTransaction(self._none, self._parts.some(snapshot))
        self._transaction.readWholeTable()  # any concurrent change of its rows is a conflict

    def append(self, rows: str) -> None:
        """Add the rows of a query, whose columns are named as the table's."""
        come = self._write_files(self._spark.sql(as_written(self._spark, rows)))
        self._commit(come, self._parts.write(self._parts.append, *[self._none] * 8))

    def fold(self, folding: Folding) -> None:
        """Merge a range by key (see `Folding.is_by_key`).

        Raises:
            NewerRows: rows of the table are newer than their changes; a MERGE does not touch those rows.
        """
        with _planned_for(self._spark, folding.count), Views(self._spark) as views:
            actions = self._worked_out(folding, views)
        nil = self._parts.as_scala([])
        self._commit(actions, self._parts.merge(*[self._none] * 4, nil, nil, nil))

    def cluster(self, order: Sequence[SortColumn]) -> Compacted:
        """Rewrite the files that are due (see `files`) into fewer ones, with their rows in this order."""
        files = self._snapshot.getAllFiles(True)
        told = self._parts.content_of(files)
        numbers = files_to_rewrite(told)
        if not numbers:
            return Compacted()
        known = self._parts.elements(files)
        old = [known[number] for number in numbers]
        count = 1 + sum(told[number]["size"] for number in numbers) // MADE_BYTES
        by = [_in_direction(one) for one in order]
        rows = self._frame(self._parts.as_scala(old)).repartitionByRange(count, *by).sortWithinPartitions(*by)
        made = [self._parts.without_data_change(file) for file in self._write_files(rows)]
        now_ms = time.time_ns() // 1_000_000
        gone = [file.removeWithTimestamp(now_ms, False) for file in old]
        nil = self._parts.as_scala([])
        self._commit([*gone, *made], self._parts.optimize(nil, nil, False, self._none, False))
        return Compacted(len(old), len(made), in_order=True)

    def _commit(self, actions: Sequence[Any], operation: Any) -> None:
        done = self._parts.commands.createSetTransaction(self._session, self._log, self._none)
        whole = [*actions, *([done.get()] if done.isDefined() else [])]
        self._spark.conf.set(_METRICS, "false")
        try:
            self._transaction.commit(self._parts.as_scala(whole), operation)
        finally:
            self._spark.conf.unset(_METRICS)

    def _worked_out(self, folding: Folding, views: Views) -> list[Any]:
        """Return the actions that delete and insert rows."""
        files = self._files(folding)
        if folding.replaced_rows is not None:
            # No value of the table's rows is kept: each inserted row is read once, when it is written.
            rows = views.of(self._rows(files, list(folding.replaced_rows.key)), "rows")
            broadcast = folding.count <= BROADCAST_ROWS_MAX
            matched = removed_and_added.matched_rows(
                folding.replaced_rows, rows, limits=folding.limits, broadcast=broadcast
            )
            gone = self._mark_deleted(self._spark.sql(matched), files)
            return [*gone, *self._come(folding, folding.rows())]
        target, families, ended = folding.layout.target, folding.families, folding.layout.ending_positions
        reduced, going = matched_rows.going(self._spark, views, folding, partial(self._rows, files))
        gone = self._mark_deleted(self._spark.table(going), files)
        return [*gone, *self._come(folding, removed_and_added.coming(target, families, reduced, going, ended))]

    def _come(self, folding: Folding, rows: str) -> list[Any]:
        """Write the inserted rows; return the actions that add their files."""
        return self._write_files(self._spark.sql(rows).coalesce(1 + folding.count // FILE_ROWS))

    def _files(self, folding: Folding) -> Any:
        """Return the files that may have rows of the range. A version's checksum lists all files if there are few."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            return checksum.get().allFiles().get()
        limits = folding.limits
        if limits is None:
            return self._snapshot.getAllFiles(True)
        column = folding.layout.target.columns[folding.layout.key[0]].name
        within = self._frame(self._parts.as_scala([])).where(limits.within(name_sql(column)))
        # Optimized: Delta compares bounds with constants only, and cdcflow's are casts of text before that.
        condition = within._jdf.queryExecution().optimizedPlan().condition()
        return self._snapshot.filesForScan(self._parts.as_scala([condition]), True).files()

    def _rows(self, files: Any, columns: Sequence[str]) -> DataFrame:
        """Return these columns of the rows of some files of the table, and the location of each row."""
        frame = self._frame(files)
        place = frame.metadataColumn("_metadata")  # not by its name, which could be a column of the table
        places = (place["file_path"].alias(FILE), place["row_index"].alias(ROW))
        return frame.select(*map(name_sql, columns), *places)

    def _frame(self, files: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        return DataFrame(self._log.createDataFrame(self._snapshot, files, False, self._none), self._spark)

    def _mark_deleted(self, going: DataFrame, files: Any) -> list[Any]:
        """Store a deletion vector for each file with deleted rows; return the actions that add it."""
        from pyspark.sql import functions

        found = self._parts.bitmaps.buildRowIndexSetsForFilesMatchingCondition(
            self._session,
            self._transaction,
            True,
            going._jdf,
            files,
            self._parts.always,
            self._parts.some(functions.col(FILE)._jc),
            self._parts.some(functions.col(ROW)._jc),
        )
        now_ms = time.time_ns() // 1_000_000
        by_path = self._parts.commands.generateCandidateFileMap(self._log.dataPath(), files)
        actions: list[Any] = []
        for file in self._parts.elements(
            self._parts.commands.findFilesWithMatchingRows(self._transaction, by_path, found)
        ):
            if file.isFullyReplaced():
                actions.append(file.fileLogEntry().removeWithTimestamp(now_ms, True))
            else:
                both = file.fileLogEntry().removeRows(file.newDeletionVector(), True, True)
                actions += [both._1(), both._2()]
        return actions

    def _write_files(self, rows: DataFrame) -> list[Any]:
        """Write rows into files of the table; return the actions that add them."""
        # With exactly the table's columns: Delta does not check them here.
        stored = self._frame(self._parts.as_scala([])).schema
        exact = rows.selectExpr(*(name_sql(field.name) for field in stored))
        if [f.dataType for f in exact.schema] != [f.dataType for f in stored]:
            exact = exact.select(*(exact[name_sql(field.name)].cast(field.dataType) for field in stored))
        return self._parts.elements(self._transaction.writeFiles(exact._jdf))


def _in_direction(one: SortColumn) -> Any:
    from pyspark.sql.functions import col

    column = col(name_sql(one.column))
    return column.desc_nulls_last() if one.descending else column.asc_nulls_first()


@contextmanager
def _planned_for(spark: SparkSession, changes: int) -> Iterator[None]:
    """Set the session so that the table's own rows are not shuffled for few changes: the changed keys are broadcast to
    them."""
    chosen = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    before = {key: str(spark.conf.get(key)) for key in chosen}
    if changes <= SMALL_ROWS:
        for key, value in chosen.items():
            spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
