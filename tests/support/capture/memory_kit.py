"""A `SourceKit` of a database in memory, which implements the SQL that the suite uses."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from cdcflow.model.table import TableId
from cdcflow.sources.memory import MemoryDatabase, MemorySource, Transaction
from cdcflow.sources.memory_database import INTEGER, TEXT, RewritesKnownBy, Row
from cdcflow.testing.sources import Act

COLUMNS = {"id": INTEGER, "name": TEXT}
SPOOL_ROWS = 500


class MemoryKit:
    """`rewrites_known_by`: how a statement that changes rows is detected."""

    cannot: ClassVar[Mapping[Act, str]] = {}

    def __init__(self, rewrites_known_by: RewritesKnownBy = "log") -> None:
        self.database = MemoryDatabase(rewrites_known_by=rewrites_known_by)
        self.table = self.named("items")
        self.create("items")
        self.create("others")

    def named(self, name: str) -> TableId:
        return TableId("public", name)

    def open_source(self) -> MemorySource:
        tables = ("public.items*", "public.others*", "public.bare*")
        return MemorySource(self.database, tables, spool_rows=SPOOL_ROWS, wait_s=1.0)

    def open_reader(self) -> MemorySource:
        return self.open_source()

    def execute(self, *statements: str) -> None:
        transaction = self.database.begin()
        for statement in statements:
            if statement == "ROLLBACK":
                return
            self._run(transaction, statement)
        transaction.commit()

    def execute_unlogged(self, *statements: str) -> None:
        own, append = threading.get_ident(), self.database.append

        def append_of_others(*given: Any, **named: Any) -> Any:
            """A mark that a chunk writes in the meantime is logged."""
            return append(*given, **named) if threading.get_ident() != own else mock.DEFAULT

        with mock.patch.object(self.database, "append", side_effect=append_of_others):
            self.execute(*statements)

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        return [dict(row) for row in self.database.tables[self.named(name)].rows.values()]

    def create(self, name: str, *, keyed: bool = True) -> None:
        self.database.create(self.named(name), COLUMNS, ("id",) if keyed else ())

    def add_column_with_values(self, name: str, column: str) -> None:
        self.database.add_column(self.named(name), column, INTEGER, lambda row: row["id"] * 7)

    def retype(self, name: str, column: str) -> None:
        self.database.retype(self.named(name), column, INTEGER, lambda text: None if text is None else int(text))

    def rename(self, *pairs: tuple[str, str]) -> None:
        names: dict[str, str] = {}  # the first name of each table, by the one it has now
        for old, new in pairs:
            names[new] = names.pop(old, old)
        self.database.rename(*((self.named(old), self.named(new)) for new, old in names.items()))

    def truncate(self, name: str) -> None:
        transaction = self.database.begin()
        transaction.truncate(self.named(name))
        transaction.commit()

    @contextmanager
    def hold_commit(self, statement: str) -> Iterator[Callable[[], None]]:
        transaction = self.database.begin()
        self._run(transaction, statement)
        release = transaction.commit(hold=True)
        try:
            yield release
        finally:
            release()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        with self.database.lock(self.named(name)):
            yield

    def revoke_select(self, name: str) -> None:
        self.database.unreadable.add(self.named(name))

    def grant_select(self, name: str) -> None:
        self.database.unreadable.discard(self.named(name))

    def copied(self) -> Callable[[], None]:
        return self.database.save_state()

    # ── SQL ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, transaction: Transaction, statement: str) -> None:
        for pattern, act in _STATEMENTS.items():
            if found := re.fullmatch(pattern, statement, re.DOTALL):
                act(self, transaction, **found.groupdict())
                return
        raise ValueError(f"the kit in memory does not understand {statement!r}")

    def _insert(self, transaction: Transaction, table: str, columns: str | None, values: str) -> None:
        shape = self.database.tables[self.named(table)].shape
        names = columns.split(", ") if columns else [c.name for c in shape.columns]
        rows = ast.literal_eval("[" + re.sub(r"\bNULL\b", "None", values) + "]")
        whole: dict[str, Any] = {c.name: None for c in shape.columns}
        given = ({**whole, **dict(zip(names, row, strict=True))} for row in rows)
        numbers = [c.name for c in shape.columns if c.type == INTEGER]
        transaction.insert(self.named(table), *({**row, **{n: _number(row[n]) for n in numbers}} for row in given))

    def _update(self, transaction: Transaction, table: str, values: str, id: str) -> None:  # noqa: A002  the column
        sets = ast.literal_eval("{" + re.sub(r"(\w+) = ('[^']*'|-?\d+)", r"'\1': \2", values) + "}")
        transaction.update(self.named(table), sets, _has_id(id))

    def _delete(self, transaction: Transaction, table: str, id: str) -> None:  # noqa: A002  the column
        transaction.delete(self.named(table), _has_id(id))

    def _savepoint(self, transaction: Transaction, name: str) -> None:
        transaction.savepoint(name)

    def _rollback_to(self, transaction: Transaction, name: str) -> None:
        transaction.rollback_to(name)

    def _drop(self, transaction: Transaction, table: str) -> None:
        self.database.drop(self.named(table))

    def _add_column(self, transaction: Transaction, table: str, column: str, type_: str) -> None:
        self.database.add_column(self.named(table), column, INTEGER if type_ == "integer" else TEXT)

    def _drop_column(self, transaction: Transaction, table: str, column: str) -> None:
        self.database.drop_column(self.named(table), column)


_STATEMENTS: dict[str, Callable[..., None]] = {
    r"INSERT INTO (?P<table>\w+)(?: \((?P<columns>[^)]*)\))? VALUES (?P<values>.*)": MemoryKit._insert,
    r"UPDATE (?P<table>\w+) SET (?P<values>.*) WHERE id = (?P<id>-?\d+)": MemoryKit._update,
    r"DELETE FROM (?P<table>\w+) WHERE id = (?P<id>-?\d+)": MemoryKit._delete,
    r"SAVEPOINT (?P<name>\w+)": MemoryKit._savepoint,
    r"ROLLBACK TO SAVEPOINT (?P<name>\w+)": MemoryKit._rollback_to,
    r"DROP TABLE (?P<table>\w+)": MemoryKit._drop,
    r"ALTER TABLE (?P<table>\w+) ADD COLUMN (?P<column>\w+) (?P<type_>\w+).*": MemoryKit._add_column,
    r"ALTER TABLE (?P<table>\w+) DROP COLUMN (?P<column>\w+)": MemoryKit._drop_column,
}


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _has_id(text: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["id"] == int(text))
