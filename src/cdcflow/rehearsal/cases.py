"""The tests of a file: the changes that arrive, and the rows that the tables have after them. Pure.

    tables: {public.orders: {columns: {id: integer, amount: "numeric(12,2)"}, key: [id]}}
    tests:
      a claim about orders:
        before: {public.orders: [{id: 1, amount: 10.00}]}
        changes:
          - update: {public.orders: [{id: 1, amount: 12.00}]}
        tables: {public.orders: [{id: 1, amount: 12.00}]}

A mistake is reported with its line, and with the nearest name that is known there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdcflow.config.setting_paths import SettingPath
from cdcflow.errors import ConfigurationError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId

Locate = Callable[[SettingPath], str]
"""A function that returns a text for the place of a part of a document, for messages."""

RowChange = Literal["insert", "update", "delete", "truncate"]
ROW_CHANGES = ("insert", "update", "delete", "truncate")
ALTERATIONS = ("add", "drop", "rename", "type")
_TABLE = re.compile(r'("(?:[^"]|"")+"|[^".\s]+)\.("(?:[^"]|"")+"|[^".\s]+)')


@dataclass(frozen=True, slots=True)
class Declared:
    """A table as a file declares it: the type of each column as a text, and its key."""

    table: TableId
    columns: Mapping[str, str]
    key: tuple[str, ...]
    place: SettingPath


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One change of rows. `where`: the values by which rows are found; `values`: those that they get. `unchanged`:
    columns whose values the source's log does not repeat. `by_key`: `where` has only the columns of the table's key."""

    kind: RowChange
    table: TableId
    place: SettingPath
    values: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    by_key: bool = False


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of a table's columns. `kind` is one of ALTERATIONS; `value` is the new name, or a type."""

    kind: str
    table: TableId
    column: str
    value: str
    place: SettingPath


ChangeStep = tuple[RowWrite, ...] | Alteration
"""One step of a test: the changes of one transaction, or one statement."""


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """The expected content of a table. `columns`: all of its columns in order, if they are expected; `rows`: its rows,
    in any order; `None` if only the columns are expected."""

    columns: tuple[str, ...] | None
    rows: tuple[Mapping[str, Any], ...] | None
    place: SettingPath


@dataclass(frozen=True, slots=True)
class Stage:
    """Changes, a merge, and the expectations after it. `excluded`: tables that the merge excludes, each with a part of
    the reason. `stops`: a part of the error with which the capture stops instead ("" if it does not)."""

    changes: tuple[ChangeStep, ...]
    tables: Mapping[str, ExpectedTable]
    excluded: Mapping[str, str]
    stops: str
    place: SettingPath


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its claim, the rows that exist when the capture begins, and its stages."""

    name: str
    before: tuple[RowWrite, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Cases:
    """The tests of one file, and the tables that all of them have."""

    tables: Mapping[TableId, Declared]
    cases: tuple[Case, ...]
    locate: Locate


def read_cases(document: Any, locate: Locate) -> Cases:  # Any: a document of YAML, or dictionaries of a program
    """Return the tests of a document.

    Raises:
        ConfigurationError: the first mistake, with its place.
    """
    return _CaseReader(locate).file(document)


def table_id(text: str) -> TableId | None:
    """Return the table with a name as `schema.table`; `None` if it is not one."""
    found = _TABLE.fullmatch(text)
    return None if found is None else TableId(*(_plain(part) for part in found.groups()))


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


class _CaseReader:
    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._tables: dict[TableId, Declared] = {}

    def file(self, document: Any) -> Cases:
        top = self._mapping(document, (), ("tables", "tests"))
        for name, given in self._items(top.get("tables"), ("tables",)):
            declared = self._table_of(name, given, ("tables", name))
            self._tables[declared.table] = declared
        if not self._tables:
            raise self.mistake(("tables",), "tables is missing: the columns and keys of the source's tables")
        cases = tuple(
            self._case(name, given, ("tests", name)) for name, given in self._items(top.get("tests"), ("tests",))
        )
        if not cases:
            raise self.mistake(("tests",), "tests is missing: at least one claim")
        return Cases(self._tables, cases, self._locate)

    def mistake(self, place: SettingPath, text: str) -> ConfigurationError:
        return mistake(self._locate, place, text)

    # ── parts of a file ─────────────────────────────────────────────────────────────────────────────────────

    def _table_of(self, name: str, given: Any, place: SettingPath) -> Declared:
        table = table_id(name)
        if table is None:
            raise self.mistake(place, f"{name} is not the name of a table: write schema.table")
        parts = self._mapping(given, place, ("columns", "key"))
        columns = {
            column: self._text(type_, (*place, "columns", column))
            for column, type_ in self._items(parts.get("columns"), (*place, "columns"))
        }
        if not columns:
            raise self.mistake(place, f"{name} has no columns: write {{columns: {{id: integer}}, key: [id]}}")
        key = self._names(parts.get("key"), (*place, "key"))
        for column in key:
            if column not in columns:
                raise self.mistake((*place, "key"), f"key names {column}, {unknown_column(name, column, columns)}")
        return Declared(table, columns, key, place)

    def _case(self, name: str, given: Any, place: SettingPath) -> Case:
        parts = self._mapping(given, place, ("before", "changes", "tables", "excluded", "stops", "then"))
        before: list[RowWrite] = []
        for table, rows in self._items(parts.get("before"), (*place, "before")):
            before += self._writes("insert", table, rows, (*place, "before", table))
        stages = [self._stage({k: v for k, v in parts.items() if k not in ("before", "then")}, place)]
        for number, inner in enumerate(self._list(parts.get("then"), (*place, "then"))):
            stages.append(self._stage(inner, (*place, "then", number)))
        if all(not (s.tables or s.excluded or s.stops) for s in stages):
            raise self.mistake(place, "this test expects nothing: write tables, excluded or stops")
        return Case(name, tuple(before), tuple(stages))

    def _stage(self, given: Any, place: SettingPath) -> Stage:
        parts = self._mapping(given, place, ("changes", "tables", "excluded", "stops"))
        changes: list[ChangeStep] = []
        for number, one in enumerate(self._list(parts.get("changes"), (*place, "changes"))):
            changes += self._transaction(one, (*place, "changes", number))
        expected = {
            table: self._rows_of(inner, (*place, "tables", table))
            for table, inner in self._items(parts.get("tables"), (*place, "tables"))
        }
        excluded = {
            table: self._text(reason, (*place, "excluded", table))
            for table, reason in self._items(parts.get("excluded"), (*place, "excluded"))
        }
        stops = "" if parts.get("stops") is None else self._text(parts["stops"], (*place, "stops"))
        return Stage(tuple(changes), expected, excluded, stops, place)

    def _transaction(self, given: Any, place: SettingPath) -> Iterator[ChangeStep]:
        if isinstance(given, Mapping) and "alter" in given:
            for table, inner in self._items(self._mapping(given, place, ("alter",))["alter"], (*place, "alter")):
                yield from self._alterations(table, inner, (*place, "alter", table))
            return
        together: list[RowWrite] = []
        parts = given if isinstance(given, list) else [given]
        for number, part in enumerate(parts):
            at = (*place, number) if isinstance(given, list) else place
            for kind, tables in self._mapping(part, at, (*ROW_CHANGES, "alter")).items():
                if kind == "alter":
                    raise self.mistake((*at, kind), "alter is a statement alone: write it as a separate change")
                for table, rows in self._each(kind, tables, (*at, kind)):
                    together += self._writes(kind, table, rows, (*at, kind, table))
        if not together:
            raise self.mistake(place, f"a change is one of {', '.join(ROW_CHANGES)} or alter, with tables and rows")
        yield tuple(together)

    def _each(self, kind: str, given: Any, place: SettingPath) -> Iterator[tuple[str, Any]]:
        if kind == "truncate" and isinstance(given, list | tuple):
            yield from ((self._text(one, place), None) for one in given)
        elif kind == "truncate" and isinstance(given, str):
            yield given, None
        else:
            yield from self._items(given, place)

    def _writes(self, kind: Any, name: str, rows: Any, place: SettingPath) -> Iterator[RowWrite]:
        declared = self._table(name, place)
        if kind == "truncate":
            yield RowWrite("truncate", declared.table, place)
            return
        for number, row in enumerate(self._list(rows, place)):
            at = (*place, number)
            values = dict(self._items(row, at))
            if kind == "insert":
                yield RowWrite("insert", declared.table, at, values=values)
                continue
            if values.keys() <= {"where", "set", "unchanged"} and isinstance(values.get("where"), Mapping):
                allowed = ("where", "set", "unchanged") if kind == "update" else ("where",)
                parts = self._mapping(row, at, allowed)
                left = self._names(parts.get("unchanged"), (*at, "unchanged"))
                yield RowWrite(kind, declared.table, at, dict(parts.get("set") or {}), dict(parts["where"]), left)
                continue
            missing = [column for column in declared.key if column not in values]
            if not declared.key or missing:
                why = "the table has no key" if not declared.key else f"it lacks {', '.join(missing)} of the key"
                raise self.mistake(at, f"which row of {name} to {kind}: {why}; write {{where: {{…}}, set: {{…}}}}")
            where = {column: values[column] for column in declared.key}
            rest = {} if kind == "delete" else {k: v for k, v in values.items() if k not in where}
            yield RowWrite(kind, declared.table, at, rest, where, by_key=True)

    def _alterations(self, name: str, given: Any, place: SettingPath) -> Iterator[Alteration]:
        declared = self._table(name, place)
        for kind, inner in self._mapping(given, place, ALTERATIONS).items():
            at = (*place, kind)
            if kind == "drop":
                for column in self._names(inner, at):
                    yield Alteration(kind, declared.table, column, "", at)
                continue
            for column, value in self._items(inner, at):
                yield Alteration(kind, declared.table, column, self._text(value, (*at, column)), (*at, column))

    def _rows_of(self, given: Any, place: SettingPath) -> ExpectedTable:
        columns: tuple[str, ...] | None = None
        rows: Any = given
        at = place
        if isinstance(given, Mapping):
            parts = self._mapping(given, place, ("columns", "rows"))
            columns = None if "columns" not in parts else self._names(parts["columns"], (*place, "columns"))
            rows, at = parts.get("rows"), (*place, "rows")
            if columns is not None and "rows" not in parts:
                return ExpectedTable(columns, None, place)
        found = [dict(self._items(row, (*at, n))) for n, row in enumerate(self._list(rows, at))]
        names = list(found[0]) if found else []
        for number, row in enumerate(found):
            if set(row) != set(names):
                differing = sorted(set(row) ^ set(names))
                raise self.mistake(
                    (*at, number),
                    f"all expected rows of a table name the same columns, and {', '.join(differing)} is not in each:"
                    " write null for NULL",
                )
        return ExpectedTable(columns, tuple(found), place)

    def _table(self, name: str, place: SettingPath) -> Declared:
        found = table_id(name)
        if found is None or found not in self._tables:
            known = [str(table) for table in self._tables]
            raise self.mistake(
                place, f"unknown table {name}; {did_you_mean(name, known)}`tables` of this file has {', '.join(known)}"
            )
        return self._tables[found]

    # ── values ──────────────────────────────────────────────────────────────────────────────────────────────

    def _mapping(self, given: Any, place: SettingPath, names: Sequence[str]) -> Mapping[str, Any]:
        found = dict(self._items(given, place))
        for name in found:
            if name not in names:
                raise self.mistake(
                    (*place, name), f"unknown name {name}; {did_you_mean(name, names)}known here: {', '.join(names)}"
                )
        return found

    def _items(self, given: Any, place: SettingPath) -> Iterator[tuple[str, Any]]:
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise self.mistake(place, f"{_last(place)} must be a mapping: {{name: …}}")
        yield from given.items()

    def _list(self, given: Any, place: SettingPath) -> Sequence[Any]:
        if given is None:
            return ()
        if not isinstance(given, list | tuple):
            raise self.mistake(place, f"{_last(place)} must be a list: […]")
        return given

    def _names(self, given: Any, place: SettingPath) -> tuple[str, ...]:
        return tuple(self._text(one, place) for one in self._list(given, place))

    def _text(self, given: Any, place: SettingPath) -> str:
        if not isinstance(given, str):
            raise self.mistake(place, f"{_last(place)} must be a text")
        return given


def mistake(locate: Locate, place: SettingPath, text: str) -> ConfigurationError:
    """Return the error for a mistake in a file of tests, with its place."""
    return ConfigurationError(f"{locate(place)}: {text}", runbook="pipeline-tests")


def unknown_column(table: object, column: str, known: Iterable[str]) -> str:
    """Return the end of a message about a column that a table lacks."""
    names = list(known)
    return f"and {table} has no such column; {did_you_mean(column, names)}it has {', '.join(names)}"


def _last(place: SettingPath) -> str:
    names = [str(part) for part in place if isinstance(part, str)]
    return names[-1] if names else "this file"
