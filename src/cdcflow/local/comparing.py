"""Comparing in this process: a copy's rows by the live view, and both sides' rows in DuckDB.

Implements `cdcflow.verify.port`.
"""

# ruff: noqa: S608 - names go through name_sql
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.changelog.layout import Layout
from cdcflow.local.engine import LocalEngine
from cdcflow.local.live import LocalPastTable, LocalReader
from cdcflow.local.session import DuckSession, read_type
from cdcflow.merge import digest
from cdcflow.merge.policy import DEFAULTS, Policies
from cdcflow.merge.target import Target
from cdcflow.merge.types import name_sql, stored
from cdcflow.model.table import Table, TableId
from cdcflow.verify.port import COUNTED, At, Columns, NotComparable
from cdcflow.warehouse import live
from cdcflow.warehouse.cut import Cut
from cdcflow.warehouse.live import Live, NewestCut
from cdcflow.warehouse.paths import Warehouse
from cdcflow.warehouse.port import Snapshot

Ask = Callable[[DuckSession, str, Target], Any]
"""What is asked of a table's rows: a query in a session, and what its columns are."""


class LocalCopy:
    """Implements `cdcflow.verify.port.Copy`."""

    def __init__(
        self,
        layout: Layout,
        warehouse: Warehouse,
        engine: LocalEngine,
        *,
        of_log: bool,
        policies: Policies = DEFAULTS,
    ) -> None:
        """`of_log`: the log alone is the copy, and what is merged already is not looked at."""
        self._layout = layout
        self._warehouse = warehouse
        self._engine = engine
        self._of_log = of_log
        self._policies = policies

    def describe(self, table: TableId) -> Target:
        found: Target = self._asked(table, lambda _session, _query, target: target)[1]
        return found

    def digests(self, columns: Columns, buckets: digest.Buckets | None = None) -> tuple[At, pa.Table]:
        key = columns.key if columns.has_key else ()

        def ask(session: DuckSession, query: str, target: Target) -> pa.Table:
            _check(columns, target)
            return session.arrow(digest.digests(f"({query})", key, columns.columns, buckets))

        return self._asked(columns.table, ask)

    def buckets(self, columns: Columns, buckets: digest.Buckets) -> tuple[At, pa.Table]:
        def ask(session: DuckSession, query: str, target: Target) -> pa.Table:
            _check(columns, target)
            return session.arrow(digest.sums(f"({query})", buckets))

        return self._asked(columns.table, ask)

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        def ask(session: DuckSession, query: str, target: Target) -> pa.Table:
            _check(columns, target)
            wanted = session.given("wanted", keys)
            try:
                return session.arrow(_matching(columns, f"({query})", wanted))
            finally:
                session.drop([wanted])

        return self._asked(columns.table, ask)

    def _asked(self, table: TableId, ask: Ask) -> tuple[At, Any]:
        reader = _AskingReader(LocalReader(self._engine), ask, of_log=self._of_log)
        name = str(table)
        found: Live[Any] = live.read(reader, self._layout, self._warehouse, [name], policies=self._policies)
        if name in found.left_out:
            raise NotComparable(found.left_out[name])
        if name not in found:
            state = found.incomplete.get(name, "not read")
            raise NotComparable(f"its existing rows are not all in the log (state: {state})")
        return At(found.cut, found.offset), found[name]


def _matching(columns: Columns, rows: str, wanted: str) -> str:
    """A query: the rows whose key is wanted; of a table without a key those whose digest is."""
    names = [name_sql(name) for name, _ in columns.columns]
    listed = ", ".join(f"r.{name}" for name in names)
    if not columns.has_key:
        number = digest.digest(digest.row_text([(f"r.{name_sql(n)}", type_) for n, type_ in columns.columns]))
        return f"SELECT {listed} FROM {rows} r LEFT SEMI JOIN {wanted} w ON {number} = w.d"
    same = " AND ".join(f"r.{name_sql(name)} <=> w.k{i}" for i, name in enumerate(columns.key))
    return f"SELECT {listed} FROM {rows} r LEFT SEMI JOIN {wanted} w ON {same}"


def _check(columns: Columns, target: Target) -> None:
    types = {c.name: c.type for c in target.columns}
    if any(types.get(name) != type_ for name, type_ in columns.columns):
        raise NotComparable("its columns were changed while it was compared; compare it again")


class _AskingReader:
    """A reader of which a table's rows are what was asked of them. Implements `warehouse.live.Reader`."""

    def __init__(self, reader: LocalReader, ask: Ask, *, of_log: bool) -> None:
        self.reader = reader
        self.ask = ask
        self.of_log = of_log
        self.remedy = reader.remedy
        self.rules = reader.rules

    def cuts(self) -> NewestCut:
        return _NoCuts() if self.of_log else self.reader.cuts()

    def table(self, path: Sequence[str]) -> _AskedTable:
        return _AskedTable(self.reader.table(path), self.ask)

    def located(self, layout: Layout, files: Sequence[Any], room: Path) -> list[Any]:
        return self.reader.located(layout, files, room)

    def declines(self, files: Sequence[Any]) -> str | None:
        return self.reader.declines(files)

    def is_gone(self, error: BaseException) -> bool:
        return self.reader.is_gone(error)


@dataclass(frozen=True, slots=True)
class _AskedTable:
    """Implements `warehouse.live.PastTable`."""

    table: LocalPastTable
    ask: Ask

    @property
    def session(self) -> DuckSession:
        return self.table.session

    def as_of(self, version: int) -> Snapshot:
        return self.table.as_of(version)

    def base(self) -> str:
        return self.table.base()

    def result(self, query: str, target: Target) -> Any:
        return self.ask(self.session, query, target)

    def close(self) -> None:
        self.table.close()


class _NoCuts:
    """Of a log that nothing was merged of."""

    def newest(self) -> Cut | None:
        return None


class DuckComparer:
    """Implements `cdcflow.verify.port.Comparer`. `close` it."""

    def __init__(self) -> None:
        self._session = DuckSession()

    def close(self) -> None:
        self._session.close()

    def converted(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        types = {c.name: c.type.arrow for c in shape.columns}
        names = [name for name, _ in columns.columns]
        return self._as_stored(rows, types, [(n, columns.type_of(n), n) for n in names])

    def keys(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        types = {c.name: c.type.arrow for c in shape.columns}
        named = [(name, columns.type_of(name), f"k{i}") for i, name in enumerate(columns.key)]
        found = self._as_stored(rows, types, named)
        return self._session.over(found, "SELECT DISTINCT * FROM {}")

    def _as_stored(
        self, rows: pa.Table, types: dict[str, pa.DataType], named: Sequence[tuple[str, str, str]]
    ) -> pa.Table:
        given = pa.table({name: _read(rows.column(name)) for name, _, _ in named})
        listed = [
            f"CAST({_kept(types[name], name_sql(name))} AS {type_}) AS {name_sql(called)}"
            for name, type_, called in named
        ]
        return self._session.over(given, f"SELECT {', '.join(listed)} FROM {{}}")

    def digested(self, columns: Columns, converted: pa.Table) -> pa.Table:
        key = columns.key if columns.has_key else ()
        return self._session.over(converted, digest.digests("{}", key, columns.columns))

    def differing(self, source: pa.Table, copy: pa.Table) -> pa.Table:
        session = self._session
        there, here = session.given("source", source), session.given("copy", copy)
        keys = [name for name in source.column_names if name != "d"] or ["d"]
        listed = ", ".join(keys)
        # Digests of several rows of a key are added up: decimal, which has room for all of them.
        counted = f"SELECT {listed}, count(*) AS n, sum(CAST(d AS decimal(38,0))) AS t FROM {{}} GROUP BY {listed}"
        same = " AND ".join(f"a.{k} <=> b.{k}" for k in keys)
        either = ", ".join(f"coalesce(a.{k}, b.{k}) AS {k}" for k in keys)
        try:
            return session.arrow(
                f"SELECT {either}, coalesce(a.n, 0) AS {COUNTED[0]}, coalesce(b.n, 0) AS {COUNTED[1]}"
                f" FROM ({counted.format(there)}) a FULL JOIN ({counted.format(here)}) b ON {same}"
                f" WHERE NOT a.n <=> b.n OR NOT a.t <=> b.t"
            )
        finally:
            session.drop([there, here])

    def outside(self, keys: pa.Table, others: pa.Table) -> pa.Table:
        return self._joined("ANTI", keys, others)

    def among(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        return self._joined("SEMI", rows, keys)

    def _joined(self, how: str, rows: pa.Table, keys: pa.Table) -> pa.Table:
        session = self._session
        left, right = session.given("rows", rows), session.given("keys", keys)
        same = " AND ".join(f"r.{n} <=> k.{n}" for n in keys.column_names if n == "d" or n.startswith("k"))
        try:
            return session.arrow(f"SELECT r.* FROM {left} r LEFT {how} JOIN {right} k ON {same}")
        finally:
            session.drop([left, right])

    def matching(self, columns: Columns, converted: pa.Table, keys: pa.Table) -> pa.Table:
        session = self._session
        rows, wanted = session.given("rows", converted), session.given("wanted", keys)
        try:
            return session.arrow(_matching(columns, rows, wanted))
        finally:
            session.drop([rows, wanted])


def _read(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as DuckDB reads it. A decimal that is too wide for it becomes its text."""
    if pa.types.is_decimal256(column.type):
        return pa.chunked_array([_decimal_text(chunk) for chunk in column.chunks], pa.string())
    if "decimal256" in str(column.type):
        raise NotComparable(f"a column is a {column.type}, which cannot be compared yet: its elements are too wide")
    return column.cast(read_type(column.type))


def _kept(arrow: pa.DataType, value: str) -> str:
    """SQL of a value that `_read` gave, as a table keeps it."""
    return value if pa.types.is_decimal256(arrow) else stored(arrow).sql(value)


def _decimal_text(array: pa.Array) -> pa.Array:
    """All digits of each number, as many behind the point as its type says. Arrow's own text has exponents."""
    scale = array.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal256(array.type.precision, 0), len(array), array.buffers(), array.null_count, array.offset
    ).cast(pa.string())
    if not scale:
        return whole
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    before, behind = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")
