"""Tables made of files that are replaced as wholes: their rows are changed by SQL in memory, then the files are.

    plan     the files that may have rows with one of the range's keys, by the bounds that the table's format keeps
    stand    their rows, without what deletes took away, as a table in DuckDB
    fold     the statement that Spark would say, on that table
    commit   new files instead of those of which a row changed or went, in one commit with our position

A commit names the version that it was worked out from: if somebody else's came first, it fails and is done again from
what is there then. Each format says how its files are found, read and replaced (`iceberg`, `delta`).
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.local.session import DuckSession
from cdcflow.merge import statement
from cdcflow.merge.evolution import Act, Add, Describe, Rename, Target, Widen
from cdcflow.merge.format import Format
from cdcflow.merge.reduce import Layout
from cdcflow.merge.types import name_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.warehouse.port import HandOver, Snapshot

FILE = "_cdcflow_file"
"""Which file a row was in, while it stands in memory."""

SMALL_BYTES, SMALL_FILES_MAX = 4 << 20, 32
JOINED_BYTES_MAX = 64 << 20
"""So much at most is made one file at a time, beside what changes."""

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Arrow's types by Spark's text of them."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

_File = TypeVar("_File")
Ends = tuple[Any, Any]
"""A column's least and greatest value in a file: numbers (of days or microseconds, too) or texts."""


class Tables(Protocol):
    """The tables of one format in a warehouse. `close` it."""

    def table(self, path: Sequence[str]) -> FileTable[Any]:
        """The table at a path (schema, name)."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a commit failed because somebody else's came first."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Standing(Generic[_File]):
    """Rows of a table in memory: those of `files`, each with the number of its file. The files with the numbers
    `again` are written again in any case."""

    name: str
    files: Sequence[_File]
    rows: Mapping[int, int]
    again: frozenset[int]


class FileTable(ABC, Generic[_File]):
    """Implements `cdcflow.warehouse.port.CurrentTable`, as far as that is the same in every format. `close` it."""

    rules: Format

    def __init__(self, name: str, bytes_max: int | None) -> None:
        """`name`: for messages. `bytes_max`: what more bytes of files would have to be read for is handed over."""
        self._name = name
        self._bytes_max = bytes_max
        self._standing: _Standing[_File] | None = None

    @cached_property
    def session(self) -> DuckSession:
        return DuckSession()

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.close()

    # ── what a format says ──────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def snapshot(self) -> Snapshot | None:
        """See `CurrentTable.snapshot`. What is asked and done after it is of that version."""

    @abstractmethod
    def newest_commit(self) -> Mapping[str, Any] | None:
        """See `CurrentTable.newest_commit`."""

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Those of now: in a folder of one machine nobody commits out of turn."""
        found = self.snapshot()
        return {} if found is None else found.transactions

    @abstractmethod
    def edits_since(self, version: int) -> list[str]:
        """See `CurrentTable.edits_since`."""

    @abstractmethod
    def pin(self, version: int, cut: int) -> None:
        """See `CurrentTable.pin`."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def create(self, columns: pa.Schema, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Create it, also where what is left of another one of its name is in the way."""

    @abstractmethod
    def add(self, columns: pa.Schema, metadata: Mapping[str, Any]) -> None:
        """Add columns, behind those that are there."""

    @abstractmethod
    def describe(self, properties: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
        """Set properties."""

    @abstractmethod
    def rename(self, old: str, new: str, metadata: Mapping[str, Any]) -> None:
        """Give a column another name."""

    @abstractmethod
    def widen(self, name: str, type_: pa.DataType, metadata: Mapping[str, Any]) -> None:
        """Give a column a type that holds every value of its own."""

    @abstractmethod
    def append(self, rows: pa.Table, metadata: Mapping[str, Any], app: str, version: int, keep: int) -> None:
        """Add rows in one commit, to a table of which only the newest `keep` versions are needed. Rows have the
        table's schema."""

    @abstractmethod
    def _has(self, app: str, version: int) -> bool:
        """Whether the table recorded this transaction, or a newer one of it."""

    @abstractmethod
    def _files(self) -> Sequence[_File]:
        """Its files. HandOver: only Spark reads or writes this table."""

    @abstractmethod
    def _size(self, file: _File) -> int:
        """In bytes."""

    @abstractmethod
    def _read(self, file: _File, columns: Sequence[str]) -> pa.Table:
        """These columns of a file's rows that are not deleted, with the table's types."""

    @abstractmethod
    def _ends(self, files: Sequence[_File], column: str) -> Sequence[Ends | None]:
        """A column's bounds in each file; None where the format does not keep them, or their order is not SQL's."""

    @abstractmethod
    def _replace(
        self, old: Sequence[_File], new: pa.Table | None, metadata: Mapping[str, Any], app: str, version: int
    ) -> None:
        """One commit: without the files `old`, with the rows `new`, and with what we say of it."""

    # ── the same for all ────────────────────────────────────────────────────────────────────────────────────

    def make(self, target: Target, source: str, begun: int, metadata: Mapping[str, Any]) -> None:
        columns = [(c.name, type_of(c.type)) for c in target.columns]
        columns += [(OFFSET, pa.int64()), (MISSING, pa.list_(pa.string()))]
        self.create(pa.schema(columns), statement.properties(target, source, begun), metadata)

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        self.describe({statement.BEGUN_PROPERTY: str(begun)}, metadata)

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        if app and self._has(app, version):
            return
        match act:
            case Describe(target):
                self.describe({statement.TARGET_PROPERTY: target.to_json()}, metadata)
            case Add(column):
                self.add(pa.schema([(column.name, type_of(column.type))]), metadata)
            case Rename(old, new):
                self.rename(old, new, metadata)
            case Widen(name, type_):
                self.widen(name, type_of(type_), metadata)
            case _:
                self._update(act, metadata, app, version)

    def standing(self, layout: Layout, changes: str) -> str:
        if self._standing is None:
            self._standing = self._stand(self._with_keys(layout, changes) if layout.target.key else None)
        return self._standing.name

    def fold(self, folding: statement.Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._has(app, version):
            return
        layout = folding.layout
        if folding.sweep_before:
            self._standing = self._stand(None)  # whatever the keys are
        name = self.standing(layout, folding.changes)
        ((first,),) = self.session.rows(f"SELECT min(o) FROM {folding.changes}")  # noqa: S608  a name of ours
        self.session.rows(folding.sql(name))
        key = [name_sql(layout.target.columns[i].name) for i in layout.key] if layout.target.key else []
        self._commit(metadata, app, version, first, key)

    def sweep(self, before: int, metadata: Mapping[str, Any], app: str, version: int) -> None:
        if self._has(app, version):
            return
        self._standing = self._stand(None)
        self.session.rows(statement.sweep(self._standing.name, before))
        self._commit(metadata, app, version, None, [])

    def rows_that_miss(self) -> int:
        if self.snapshot() is None:
            return 0
        found = [self._read(file, [MISSING]).column(MISSING) for file in self._files()]
        return sum(len(column) - column.null_count for column in found)

    def rows(self) -> pa.Table:
        """Everything that is in the table, which must be small."""
        names = self.schema.names
        return pa.concat_tables([self.schema.empty_table(), *(self._read(file, names) for file in self._files())])

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _with_keys(self, layout: Layout, changes: str) -> Callable[[Sequence[_File]], Collection[int]]:
        """The numbers of those files that may have a row with one of the keys of a range."""
        at = layout.key[0]
        name = layout.target.columns[at].name

        def chosen(files: Sequence[_File]) -> Collection[int]:
            if len(files) < 2:
                return range(len(files))
            ends = self._ends(files, name)
            known = {n: found for n, found in enumerate(ends) if found is not None}
            if not known:
                return range(len(files))
            bounds = self.session.take("bounds", _bounds_table(known, self.schema.field(name).type))
            inside = f"c.c{at} >= b.least AND c.c{at} <= b.greatest"
            sql = f"SELECT n FROM {bounds} b WHERE EXISTS (SELECT 1 FROM {changes} c WHERE {inside})"  # noqa: S608  ours
            hit = {n for (n,) in self.session.rows(sql)}
            return [n for n in range(len(files)) if n not in known or n in hit]

        return chosen

    def _stand(self, choose: Callable[[Sequence[_File]], Collection[int]] | None) -> _Standing[_File]:
        schema = self.schema
        if FILE in schema.names:
            raise HandOver(f"it has a column called {FILE}")
        there = self._files()
        small = self._small(there)
        chosen = list(range(len(there)) if choose is None else choose(there))
        size = sum(self._size(there[n]) for n in chosen)
        if self._bytes_max is not None and size > self._bytes_max:
            raise HandOver(f"{size >> 20} MB of its files would have to be read")
        numbers = [*chosen, *sorted(small - set(chosen))]
        parts = [schema.empty_table().append_column(FILE, pa.array([], pa.int32()))]
        for number, n in enumerate(numbers):
            rows = self._read(there[n], schema.names)
            parts.append(rows.append_column(FILE, pa.array([number] * len(rows), pa.int32())))
        name = self.session.take("standing", pa.concat_tables(parts))
        again = frozenset(number for number, n in enumerate(numbers) if n in small)
        files = [there[n] for n in numbers]
        return _Standing(name, files, {n: len(rows) for n, rows in enumerate(parts[1:])}, again)

    def _small(self, files: Sequence[_File]) -> set[int]:
        """Small files to make one of, where there are many: each cycle that only adds rows leaves one."""
        sizes = sorted((self._size(file), n) for n, file in enumerate(files) if self._size(file) < SMALL_BYTES)
        if len(sizes) <= SMALL_FILES_MAX:
            return set()
        totals = itertools.accumulate(size for size, _ in sizes)
        return {n for (_, n), total in zip(sizes, totals, strict=True) if total <= JOINED_BYTES_MAX}

    def _update(self, act: Act, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """An act that changes rows."""
        self._standing = standing = self._stand(None)
        changed = 0
        for sql in statement.alter(standing.name, self.rules, act):
            ((count,),) = self.session.rows(sql)
            changed += count
        if changed:
            self._replace(standing.files, self._rows(standing.name, "true", []), metadata, app, version)
        elif app:
            self._replace([], None, metadata, app, version)
        self._standing = None

    def _commit(
        self, metadata: Mapping[str, Any], app: str, version: int, first: int | None, key: Sequence[str]
    ) -> None:
        """Write what has changed of the rows that stand in memory: `first` is the least offset of a changed row."""
        standing = self._standing
        if standing is None:
            raise InvariantViolated(f"changing {self._name}: its rows were not read")
        sql = f"SELECT {FILE}, count(*), max({OFFSET}) FROM {standing.name} WHERE {FILE} IS NOT NULL GROUP BY {FILE}"  # noqa: S608  names of ours
        left = {number: (count, newest) for number, count, newest in self.session.rows(sql)}
        touched = [
            number
            for number, count in standing.rows.items()
            if number in standing.again
            or left.get(number, (0, None))[0] != count
            or (first is not None and count and left[number][1] is not None and left[number][1] >= first)
        ]
        listed = ", ".join(map(str, touched)) or "NULL"
        rows = self._rows(standing.name, f"{FILE} IS NULL OR {FILE} IN ({listed})", key)
        self._replace([standing.files[number] for number in touched], rows, metadata, app, version)
        self._standing = None

    def _rows(self, name: str, where: str, key: Sequence[str]) -> pa.Table:
        order = f" ORDER BY {', '.join(key)}" if key else ""
        listed = ", ".join(map(name_sql, self.schema.names))
        found = self.session.arrow(f"SELECT {listed} FROM {name} WHERE {where}{order}")  # noqa: S608  quoted
        return found.cast(self.schema)


def type_of(text: str) -> pa.DataType:
    """Arrow's type from Spark's text of it. HandOver: there is none here."""
    if text in TYPES:
        return TYPES[text]
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.startswith("array<"):
        return pa.list_(type_of(text[len("array<") : -1]))
    raise HandOver(f"it has a column of type {text}")


def _bounds_table(known: Mapping[int, Ends], wanted: pa.DataType) -> pa.Table:
    is_text = all(isinstance(end, str) for pair in known.values() for end in pair)
    held = pa.string() if is_text else pa.int32() if pa.types.is_date(wanted) else pa.int64()
    ends = [pa.array([pair[i] for pair in known.values()], held).cast(wanted) for i in (0, 1)]
    return pa.table([pa.array(list(known), pa.int32()), *ends], names=["n", "least", "greatest"])
