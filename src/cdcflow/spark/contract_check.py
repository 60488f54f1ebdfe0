"""Check the rows that a merge by Spark would write against their table's contract, before the commit.

    rows to write ──▶ DuckDB in each task ──▶ how many rows break which promise ──▶ stop, warn
         │                                        │ rows go into quarantine
         └───────────▶ DuckDB in each task ◀──────┘
                            └──▶ these rows ──▶ <name>__quarantine ──▶ the range without them

Conditions are evaluated by the local engine's code (`tables.local.contract_rules`), over Arrow columns in the Python
processes of the tasks. SQL of another dialect would decide some rows differently. As in the local engine, rows are in
quarantine before the table's commit.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import OFFSET, TableId
from cdcflow.spark.matched_rows import BROADCAST_ROWS_MAX
from cdcflow.spark.runtime.verbatim import as_written
from cdcflow.spark.runtime.views import Views
from cdcflow.tables.merge import checked_rows
from cdcflow.tables.merge.contract import (
    REASON,
    ROW,
    Contract,
    ContractResult,
    check_unavailable,
    quarantine_name_taken,
)
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.statement import TARGET_PROPERTY, Folding
from cdcflow.tables.port import HandOver, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdcflow.tables.local.contract_rules import BrokenCounts, ContractRules

PORTION_ROWS = 65_536
"""At most about this many rows of a task are checked by one query."""

_QUARANTINE = f"{OFFSET} BIGINT, {REASON} STRING, {ROW} MAP<STRING, STRING>"
_COUNTS = "counts array<bigint>, firsts array<bigint>, failed int, why string"
_COUNTS_SCHEMA = pa.schema(
    [
        pa.field("counts", pa.list_(pa.int64())),
        pa.field("firsts", pa.list_(pa.int64())),
        pa.field("failed", pa.int32()),
        pa.field("why", pa.string()),
    ]
)
_LACKING = re.compile(r"No module named '([\w.]+)'")


class QuarantineTable(Protocol):
    """A table to which rows that break a promise are written."""

    def close(self) -> None: ...
    def drop_torn(self, published: int | None = None) -> None: ...
    def snapshot(self) -> TableSnapshot | None: ...
    def add_unknown(self, rows: DataFrame, columns: str, known: str, metadata: Mapping[str, Any]) -> int:
        """Add those rows whose value in the column `known` is new, as `spark.sql.StatementTable.add_unknown` does."""

    def sync(self, published: int | None) -> None: ...


class SparkContractCheck:
    """The check of one table in one merge. `quarantine` opens the table for rows that break a promise."""

    def __init__(
        self,
        spark: SparkSession,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], QuarantineTable],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        """Raises ContractBroken if DuckDB, which evaluates the conditions, is not installed."""
        try:
            importlib.import_module("cdcflow.tables.local.contract_rules")
        except ImportError as error:
            raise check_unavailable(table, f"{error.name} is not installed", where="") from error
        self._spark = spark
        self._table = table
        self._contract = contract
        self._mode = mode
        self._quarantine = quarantine
        self._result = result
        self._metadata = metadata

    @contextmanager
    def rows_to_write(self, folding: Folding, table: str) -> Iterator[Folding]:
        """Yield the range with only the rows that the table may show. `table`: the table's name in SQL.

        Raises:
            ContractBroken: rows break a promise that stops the table, or a condition cannot be used.
        """
        broadcast = folding.count <= BROADCAST_ROWS_MAX
        sql = checked_rows.rows_to_write(folding, table, broadcast=broadcast)
        rows = self._spark.sql(as_written(self._spark, sql))
        rules = self._rules(rows.columns)
        numbers = rules.judge(self._counts(rows, rules, folding.first), self._result) if rules.rules else []
        if not numbers:
            yield folding
            return
        with Views(self._spark) as views:
            kept_out = self._broken_rows(rows, rules, folding, numbers).persist()
            try:
                self._write(kept_out)
                yield checked_rows.without_rows(folding, views.of(kept_out, "kept_out"))
            finally:
                kept_out.unpersist()

    def _rules(self, columns: Sequence[str]) -> ContractRules:
        from cdcflow.tables.local.contract_rules import ContractRules
        from cdcflow.tables.local.session import DuckSession

        with closing(DuckSession()) as session:
            return ContractRules.of(self._table, self._contract, self._mode, session.parse, columns)

    def _counts(self, rows: DataFrame, rules: ContractRules, first: int) -> BrokenCounts:
        from cdcflow.tables.local.contract_rules import BrokenCounts, RuleFailed

        read = rows.select(*map(name_sql, rules.columns))
        task = _CountTask(rules, first, _schema_of(read))
        try:
            found = read.mapInArrow(task, _COUNTS).collect()
        except Exception as error:
            if (lacking := _LACKING.search(str(error))) is not None:
                raise check_unavailable(
                    self._table, f"{lacking[1]} is not installed", where=" of Spark's executors"
                ) from error
            raise
        if failed := min(((part.failed, part.why) for part in found if part.failed is not None), default=None):
            raise rules.refusal(RuleFailed(*failed))
        each = range(len(rules.rules))
        counts = tuple(sum(part.counts[n] for part in found) for n in each)
        first_of = (min((p.firsts[n] for p in found if p.firsts[n] is not None), default=None) for n in each)
        return BrokenCounts(counts, tuple(first_of))

    def _broken_rows(
        self, rows: DataFrame, rules: ContractRules, folding: Folding, numbers: Sequence[int]
    ) -> DataFrame:
        """Return the rows that break one of the rules with these numbers, in the columns of the quarantine, and in
        those that `checked_rows.without_rows` needs."""
        target = folding.layout.target
        identity = {f"c{i}": target.columns[i].name for i in checked_rows.identity_positions(folding)}
        types = [f"{name} {rows.schema[column].dataType.simpleString()}" for name, column in identity.items()]
        schema = ", ".join(["o bigint", f"{REASON} string", f"{ROW} map<string, string>", *types])
        task = _BrokenRowsTask(rules, folding.first, _schema_of(rows), tuple(numbers), identity)
        return rows.mapInArrow(task, schema)

    def _write(self, kept_out: DataFrame) -> None:
        columns = [f"o AS {OFFSET}", REASON, ROW]
        with closing(self._quarantine()) as there:
            there.drop_torn()
            known = there.snapshot()
            if known is not None and TARGET_PROPERTY in known.properties:
                raise quarantine_name_taken(self._table, self._contract)
            rows = kept_out.selectExpr(*columns)
            self._result.quarantined += there.add_unknown(rows, _QUARANTINE, OFFSET, self._metadata)
            there.sync(None if known is None else known.version)


@dataclass(frozen=True, slots=True)
class _CountTask:
    """A function for a task that counts the rows which break each rule. `schema`: that of the rows, with the local
    engine's types."""

    rules: ContractRules
    first: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from cdcflow.tables.local.contract_rules import RuleFailed
        from cdcflow.tables.local.session import DuckSession

        failed = False
        with closing(DuckSession()) as session:
            for rows in _portions(batches, self.schema):
                if failed:
                    continue  # Spark expects its rows to be read
                try:
                    counts = self.rules.count(self.rules.broken_rows(session, rows, self.first))
                except RuleFailed as fault:
                    failed = True
                    # A message of Spark's would have the stack of this process with it.
                    yield _one_row([None, None, fault.rule, fault.why])
                    continue
                yield _one_row([list(counts.rows), list(counts.first), None, None])


@dataclass(frozen=True, slots=True)
class _BrokenRowsTask:
    """A function for a task that finds the rows which break one of some rules. `identity`: columns that identify a row,
    by the name that each has in the result."""

    rules: ContractRules
    first: int
    schema: pa.Schema
    numbers: tuple[int, ...]
    identity: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from cdcflow.tables.local.contract_rules import NUMBER, any_of, row_texts
        from cdcflow.tables.local.session import DuckSession

        with closing(DuckSession()) as session:
            for rows in _portions(batches, self.schema):
                found = self.rules.broken_rows(session, rows, self.first)
                chosen = found.filter(any_of(found, self.numbers))
                broken = rows.take(chosen.column(NUMBER))
                parts = {
                    "o": broken.column(OFFSET),
                    REASON: self.rules.reasons(chosen, self.numbers),
                    ROW: row_texts(broken, self.rules.mode.own),
                    **{name: broken.column(column) for name, column in self.identity.items()},
                }
                yield from pa.table(parts).combine_chunks().to_batches()


def _one_row(values: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _COUNTS_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_SCHEMA)


def _portions(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a task with these types, some batches at a time."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= PORTION_ROWS:
            yield pa.Table.from_batches(waiting).cast(schema)
            waiting, count = [], 0
    if count:
        yield pa.Table.from_batches(waiting).cast(schema)


def _schema_of(rows: DataFrame) -> pa.Schema:
    """Return the Arrow schema that the local engine would use for these rows."""
    from pyspark.sql.pandas.types import to_arrow_type

    from cdcflow.tables.local.arrow_types import type_of

    fields = []
    for field in rows.schema:
        try:
            type_ = type_of(field.dataType.simpleString())
        except HandOver:
            type_ = to_arrow_type(field.dataType)
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)
