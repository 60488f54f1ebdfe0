"""A Spark session for merges: views over the log's files, and tables that statements change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcflow.errors import InvariantViolated
from cdcflow.model.file_layout import FileLayout
from cdcflow.model.sqltypes import DECIMAL_TEXT, DECIMAL_TEXTS, name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET, Table, TableId
from cdcflow.spark.runtime.verbatim import all_as_written, as_written, literal_path, read_parquet
from cdcflow.spark.runtime.views import name_view, new_name
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.acts import Act
from cdcflow.tables.merge.contract import Contract, ContractResult
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.reduce import TRANSACTIONS_READ, ColumnLayout, only_with, read_schema
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import NO_VALUES, CurrentTable, TableSnapshot
from cdcflow.tables.segments import InputFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdcflow.spark.contract_check import SparkContractCheck


class SparkSql:
    """Implements `cdcflow.tables.port.SqlSession`."""

    sorts_each_window = False
    takes_by_offset = False

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(
        self, what: str, files: Sequence[InputFile], shape: Table, where: str, columns: Sequence[str], *, moved: bool
    ) -> str:
        hidden = [f.path for f in files if Path(f.path).name[0] in "_."]
        if hidden:
            raise InvariantViolated(f"reading {hidden[0]}: Spark takes it for a hidden file and would read nothing")
        if any(DECIMAL_TEXT in column for column in columns):
            register_decimal_text(self._spark)
        rows = read_parquet(self._spark, read_schema(shape, moved=moved), [f.path for f in files], OFFSET)
        chosen = rows.where(as_written(self._spark, where))
        return name_view(chosen.selectExpr(*all_as_written(self._spark, columns)), what)

    def transactions(self, files: Sequence[InputFile], columns: Sequence[str]) -> str:
        rows = self._spark.read.schema(TRANSACTIONS_READ).parquet(*(literal_path(f.path) for f in files))
        return name_view(rows.selectExpr(*columns), "transactions")

    def view(self, what: str, sql: str) -> str:
        return name_view(self._execute(sql), what)

    def keep(self, what: str, sql: str) -> str:
        return name_view(self._execute(sql).localCheckpoint(), what)

    def hold(self, view: str) -> None:
        self._spark.catalog.cacheTable(view)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._execute(sql).collect()]

    def drop(self, views: Sequence[str]) -> None:
        for view in views:
            self._spark.catalog.dropTempView(view)

    def _execute(self, sql: str) -> DataFrame:
        return self._spark.sql(as_written(self._spark, sql))


class StatementTable(CurrentTable):
    """A table that is changed by SQL statements, each in a separate commit."""

    def __init__(self, spark: SparkSession, rules: Format, sql: str, location: str | None) -> None:
        """`sql`: the table's name in SQL. `location`: its path (`None`: its name implies the path)."""
        self._spark = spark
        self._rules = rules
        self.sql = sql
        self.location = location
        self.on_close: Callable[[], None] = lambda: None
        """A function that is called once, when the table's session is no longer needed."""
        self._check: SparkContractCheck | None = None

    @cached_property
    def session(self) -> SparkSql:
        return SparkSql(self._spark)

    @abstractmethod
    def commit(self, statement: str, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        """Run a statement that changes the table, in one commit that carries `metadata`. With `app` the commit also
        records the transaction (app, version); if the table has, or once had, that transaction already, nothing is
        done."""

    @abstractmethod
    def add_newest(
        self, row: str, column: str, least: int, metadata: Mapping[str, Any], app: str, version: int
    ) -> None:
        """Add the row of a query, unless a concurrent commit has added a row whose `column` is `least` or more: it then
        fails, or adds nothing. In other respects as `commit`."""

    @abstractmethod
    def why_lost(self, version: int) -> str | None:
        """Return why a version, older than the latest, can no longer be read; `None` if it can."""

    @abstractmethod
    def snapshot_at(self, version: int) -> TableSnapshot | None:
        """Return the table's description at a version; `None` if that version no longer exists."""

    @abstractmethod
    def rows_at(self, version: int) -> DataFrame:
        """Return the rows of a version."""

    def make(
        self,
        target: Target,
        source: str,
        begun: int,
        metadata: Mapping[str, Any],
        mode: ModeRules = CURRENT,
        *,
        wide: bool = False,
    ) -> None:
        rules = self._rules.making(target.columns, wide=wide)
        self.commit(statement.create(self.sql, rules, target, source, begun, self.location, mode), metadata)

    def arrange(self, layout: FileLayout, recorded: str, metadata: Mapping[str, Any]) -> None:
        self.commit(statement.record_layout(self.sql, recorded), metadata)

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        self.commit(statement.begin(self.sql, begun), metadata)

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        for sql in statement.alter(self.sql, self._rules, act):
            self.commit(sql, metadata, app, version)

    def standing(self, layout: ColumnLayout, changes: str, *, whole: bool = False) -> str:
        return self.sql

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._check is None:
            self._fold(folding, metadata, app, version)
            return
        with self._check.rows_to_write(folding, self.sql) as kept:
            self._fold(kept, metadata, app, version)

    def _fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Merge a range into the table, without a check of its contract."""
        self.commit(folding.sql(self.sql), metadata, app, version)

    def check_rows(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], CurrentTable],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        from cdcflow.spark.contract_check import SparkContractCheck  # only for tables that have one

        opened: Any = quarantine  # of this engine
        self._check = SparkContractCheck(self._spark, table, contract, mode, opened, result, metadata)

    def add_unknown(self, rows: DataFrame, columns: str, known: str, metadata: Mapping[str, Any]) -> int:
        """Add, in one commit, those of the rows whose value in the column `known` no row of the table has. Return how
        many were added. The table is created with `columns` (DDL) if it does not exist. The rows may be another
        session's."""
        if self.snapshot() is None:
            self.commit(statement.create_table(self.sql, self._rules, columns, {}, self.location), metadata)
        name = new_name("rows")
        rows.createGlobalTempView(name)
        try:
            new = f"global_temp.{name} n LEFT ANTI JOIN {self.sql} t ON n.{known} = t.{known}"
            ((count,),) = self.session.rows(f"SELECT count(*) FROM {new}")  # noqa: S608  cdcflow's own
            if count:
                listed = ", ".join(rows.columns)
                self.commit(f"INSERT INTO {self.sql} ({listed}) SELECT {listed} FROM {new}", metadata)  # noqa: S608  the same
            return int(count)
        finally:
            self._spark.catalog.dropGlobalTempView(name)

    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: Sequence[str] = (),
        assigned: str = "",
        only: Mapping[str, str] = NO_VALUES,
    ) -> None:
        self.commit(statement.sweep(self.sql, before, ended, assigned, only_with(only)), metadata, app, version)

    def rows_that_miss(
        self, ended: Sequence[str] = (), left: Collection[str] = (), only: Mapping[str, str] = NO_VALUES
    ) -> int:
        rows = self._spark.table(self.sql).where(f"{MISSING} IS NOT NULL")
        if only:
            rows = rows.where(as_written(self._spark, only_with(only)))
        if left:
            rows = rows.where(f"size(array_except({MISSING}, array({', '.join(map(text_sql, left))}))) > 0")
        if not ended:
            return rows.count()
        is_mark = rows.schema[ended[0]].dataType.simpleString() == "boolean"
        return rows.where(
            f"NOT {statement.is_ended('', ended)}" if is_mark else f"{name_sql(ended[0])} IS NULL"
        ).count()

    def forget(self) -> None:
        """Drop the session's caches about the table, because the next table may have the same name."""

    def close(self) -> None:
        try:
            self.forget()
        finally:
            self.on_close()


def register_decimal_text(spark: SparkSession) -> None:
    def text(content: bytes | None, scale: int) -> str | None:
        if content is None:
            return None
        number = int.from_bytes(content, "big", signed=True)
        digits = str(abs(number)).rjust(scale + 1, "0")
        whole, rest = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        return ("-" if number < 0 else "") + whole + (f".{rest}" if rest else "")

    def texts(contents: list[bytes | None] | None, scale: int) -> list[str | None] | None:
        return None if contents is None else [text(content, scale) for content in contents]

    spark.udf.register(DECIMAL_TEXT, text, "string")
    spark.udf.register(DECIMAL_TEXTS, texts, "array<string>")
