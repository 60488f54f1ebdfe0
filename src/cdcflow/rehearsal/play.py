"""Play one test: write its rows into a scratch pipeline, and compare the rows of the tables with the expected ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.config import Config
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.model.types import ColumnType
from cdcflow.rehearsal.cases import (
    Alteration,
    Case,
    Cases,
    Declared,
    ExpectedTable,
    RowWrite,
    Stage,
    mistake,
    unknown_column,
)
from cdcflow.rehearsal.cells import comparable, text_of, value_of
from cdcflow.rehearsal.differences import CaseDifference, differences
from cdcflow.rehearsal.results import CaseResult
from cdcflow.rehearsal.scratch import ScratchPipeline
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.memory_database import MemoryTable, Transaction
from cdcflow.wiring.type_names import column_type


def play(config: Config, file: str, cases: Cases, case: Case) -> CaseResult:
    """Run a test of a file under the settings of a pipeline.

    Raises:
        ConfigurationError: the test names something that does not exist, or has an invalid value; with its place.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdcflow-test-") as folder:
        player = _Player(config, cases, ScratchPipeline(config, Path(folder), cases.tables))
        player.play(case)
        seconds = time.monotonic() - began
        return CaseResult(file, case.name, seconds, tuple(player.problems), tuple(player.differences))


class _Player:
    def __init__(self, config: Config, cases: Cases, pipeline: ScratchPipeline) -> None:
        self._config = config
        self._cases = cases
        self._pipeline = pipeline
        self._database = pipeline.database
        self.problems: list[str] = []
        self.differences: list[CaseDifference] = []

    def play(self, case: Case) -> None:
        selection = Selection.parse(self._config.database.tables)
        for declared in self._cases.tables.values():
            self._check_captured(declared, selection)
            types = {name: self._type(declared.table, name, text, declared) for name, text in declared.columns.items()}
            self._database.create(declared.table, types, declared.key)
        if case.before:
            self._write(case.before)
        for number, stage in enumerate(case.stages):
            if not self._stage(stage, f"in stage {number}: " if number else ""):
                return

    def _stage(self, stage: Stage, where: str) -> bool:
        """Play a stage. Return whether the next one can follow."""
        mistakes: list[ConfigurationError] = []

        def change() -> None:
            try:
                for step in stage.changes:
                    self._alter(step) if isinstance(step, Alteration) else self._write(step)
            except ConfigurationError as error:
                mistakes.append(error)
                raise

        try:
            self._pipeline.run(change)
        except CdcflowError as error:
            if mistakes:
                raise
            if not stage.stops or stage.stops not in str(error):
                wanted = f", and not with {stage.stops!r}" if stage.stops else ""
                self.problems.append(f"{where}the pipeline stopped with {type(error).__name__}{wanted}: {error}")
            return False
        if stage.stops:
            self.problems.append(f"{where}the pipeline did not stop, and {stage.stops!r} was expected")
        self._check_excluded(stage, where)
        found = self._pipeline.tables() if stage.tables else {}
        for name, expected in stage.tables.items():
            if name not in self._pipeline.exclusions:
                self._compare(name, expected, found, where)
        return True

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────

    def _check_captured(self, declared: Declared, selection: Selection) -> None:
        if not selection.selects(declared.table):
            patterns = ", ".join(self._config.database.tables)
            raise self._mistake(
                declared.place, f"{declared.table} is not captured with these settings: source.tables is {patterns}"
            )

    def _type(self, table: TableId, column: str, text: str, declared: Declared) -> ColumnType:
        try:
            return column_type(self._config, table, column, text)
        except ValueError as error:
            raise self._mistake((*declared.place, "columns", column), f"column {column}: {error}") from None

    def _write(self, writes: Iterable[RowWrite]) -> None:
        transaction = self._database.begin()
        for write in writes:
            self._write_row(transaction, write)
        transaction.commit()

    def _write_row(self, transaction: Transaction, write: RowWrite) -> None:
        table = self._database.tables[write.table]
        if write.kind == "truncate":
            transaction.truncate(write.table)
            return
        values, where = self._values(table, write.values, write), self._values(table, write.where, write)
        for column in write.unchanged:
            self._check_column(table, column, write)

        def matches(row: Mapping[str, Any]) -> bool:
            return all(comparable(row[column]) == comparable(value) for column, value in where.items())

        if write.kind == "insert":
            row = {**dict.fromkeys(c.name for c in table.columns), **values}
            for column in table.key:
                if row[column] is None:
                    raise self._mistake(write.place, f"a row of {write.table} needs a value for {column}, its key")
            transaction.insert(write.table, row)
            return
        count = (
            transaction.delete(write.table, matches)
            if write.kind == "delete"
            else transaction.update(write.table, values, matches, write.unchanged)
        )
        if count == 0:
            sought = ", ".join(f"{column}={text_of(value)}" for column, value in where.items())
            raise self._mistake(write.place, f"{write.table} has no row with {sought} to {write.kind}")

    def _values(self, table: MemoryTable, given: Mapping[str, Any], write: RowWrite) -> dict[str, Any]:
        types = {c.name: c.type.arrow for c in table.columns}
        values = {}
        for column, cell in given.items():
            self._check_column(table, column, write)
            try:
                values[column] = value_of(cell, types[column])
            except ValueError as error:
                raise self._mistake((*write.place, column), f"{write.table}.{column}: {cell!r} {error}") from None
        return values

    def _check_column(self, table: MemoryTable, column: str, write: RowWrite) -> None:
        names = [c.name for c in table.columns]
        if column not in names:
            raise self._mistake(
                (*write.place, column), f"a row names {column}, {unknown_column(table.id, column, names)}"
            )

    def _alter(self, step: Alteration) -> None:
        table, declared = self._database.tables[step.table], self._cases.tables[step.table]
        names = [c.name for c in table.columns]
        if (step.kind == "add") == (step.column in names):
            why = (
                f"{step.table} already has a column {step.column}"
                if step.kind == "add"
                else f"alter names {step.column}, {unknown_column(step.table, step.column, names)}"
            )
            raise self._mistake(step.place, why)
        match step.kind:
            case "add":
                self._database.add_column(step.table, step.column, self._altered_type(step))
            case "drop":
                if step.column in table.key:
                    raise self._mistake(step.place, f"{step.column} is part of the key of {declared.table}")
                self._database.drop_column(step.table, step.column)
            case "rename":
                self._database.rename_column(step.table, step.column, step.value)
            case _:
                type_ = self._altered_type(step)
                self._database.retype(
                    step.table, step.column, type_, lambda value: self._as_type(step, value, type_.arrow)
                )

    def _altered_type(self, step: Alteration) -> ColumnType:
        try:
            return column_type(self._config, step.table, step.column, step.value)
        except ValueError as error:
            raise self._mistake(step.place, f"column {step.column}: {error}") from None

    def _as_type(self, step: Alteration, value: Any, arrow: pa.DataType) -> Any:
        try:
            return None if value is None else value_of(text_of(value), arrow)
        except ValueError as error:
            raise self._mistake(step.place, f"{step.table}.{step.column}: a row's value {error}") from None

    # ── results ──────────────────────────────────────────────────────────────────────────────────

    def _check_excluded(self, stage: Stage, where: str) -> None:
        excluded = self._pipeline.exclusions
        for name, reason in stage.excluded.items():
            if name not in excluded:
                self.problems.append(f"{where}table {name} was merged, and should be excluded: {reason!r}")
            elif reason not in excluded[name]:
                self.problems.append(f"{where}table {name} was excluded without {reason!r}: {excluded[name]}")
        for name, reason in excluded.items():
            if name not in stage.excluded:
                self.problems.append(f"{where}table {name} was excluded: {reason}")

    def _compare(self, name: str, expected: ExpectedTable, tables: Mapping[str, pa.Table], where: str) -> None:
        rows = tables.get(name)
        if rows is None:
            raise self._mistake(
                expected.place,
                f"there is no table {name} after the merge; {did_you_mean(name, tables)}"
                f"tables are {', '.join(sorted(tables)) or '(none)'}",
            )
        own = [column for column in rows.column_names if not column.startswith("_")]
        if expected.columns is not None and list(expected.columns) != own:
            wanted = ", ".join(expected.columns)
            self.problems.append(f"{where}table {name} has columns {', '.join(own)}; expected were {wanted}")
        if expected.rows is not None:
            self.differences += self._row_differences(name, expected, expected.rows, rows)

    def _row_differences(
        self, name: str, expected: ExpectedTable, wanted: Sequence[Mapping[str, Any]], rows: pa.Table
    ) -> list[CaseDifference]:
        names = list(wanted[0]) if wanted else [c for c in rows.column_names if not c.startswith("_")]
        for column in names:
            if column not in rows.column_names:
                place = (*expected.place, 0, column) if expected.columns is None else (*expected.place, "rows")
                raise self._mistake(
                    place, f"an expected row names {column}, {unknown_column(name, column, rows.column_names)}"
                )
        key = next((d.key for table, d in self._cases.tables.items() if str(table) == name), ())
        values = [self._expected_row(name, expected, row, rows.schema) for row in wanted]
        return differences(name, key, names, values, rows.select(names).to_pylist())

    def _expected_row(
        self, name: str, expected: ExpectedTable, row: Mapping[str, Any], schema: pa.Schema
    ) -> dict[str, Any]:
        found = {}
        for column, cell in row.items():
            try:
                found[column] = value_of(cell, schema.field(column).type)
            except ValueError as error:
                raise self._mistake(expected.place, f"{name}.{column}: {cell!r} {error}") from None
        return found

    def _mistake(self, place: tuple[str | int, ...], text: str) -> ConfigurationError:
        return mistake(self._cases.locate, place, text)
