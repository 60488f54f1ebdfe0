"""Comparing in this process: the live view reads a copy's rows, and DuckDB compares the rows of both sides.

Implements `cdcflow.tables.verify.port`.
"""

# ruff: noqa: S608 - names go through name_sql
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.log.files.layout import Layout
from cdcflow.model import digest
from cdcflow.model.sqltypes import name_sql, stored_type
from cdcflow.model.table import Table, TableId
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.live import LocalReader
from cdcflow.tables.local.session import DuckSession, read_type
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.verify.live_copy import CopyParts, ask_copy, check, matching
from cdcflow.tables.verify.port import COUNTED, At, Columns, NotComparable


class LocalCopy:
    """Implements `cdcflow.tables.verify.port.Copy`."""

    def __init__(
        self,
        layout: Layout,
        warehouse: Warehouse,
        engine: LocalEngine,
        *,
        of_log: bool,
        policies: Policies = DEFAULTS,
    ) -> None:
        """`of_log`: see `tables.verify.live_copy.CopyParts`."""
        self._reader = LocalReader(engine)
        self._shapes = LocalReader(engine, without_rows=True)
        self._place = CopyParts(layout, warehouse, of_log, policies)

    def describe(self, table: TableId) -> Target:
        return ask_copy(self._shapes, self._place, table, lambda _table, _query, target: target)[1]

    def digests(self, columns: Columns, buckets: digest.Buckets | None = None) -> tuple[At, pa.Table]:
        key = columns.key if columns.has_key else ()
        return self._arrow(columns, lambda query: digest.digests(f"({query})", key, columns.columns, buckets))

    def buckets(self, columns: Columns, buckets: digest.Buckets) -> tuple[At, pa.Table]:
        return self._arrow(columns, lambda query: digest.sums(f"({query})", buckets))

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        def ask(table: Any, query: str, target: Target) -> pa.Table:  # Any: a `LocalPastTable`
            check(columns, target)
            session: DuckSession = table.session
            wanted = session.view_of("wanted", keys)
            try:
                return session.arrow(matching(columns, f"({query})", wanted))
            finally:
                session.drop([wanted])

        return ask_copy(self._reader, self._place, columns.table, ask)

    def _arrow(self, columns: Columns, question: Callable[[str], str]) -> tuple[At, pa.Table]:
        def ask(table: Any, query: str, target: Target) -> pa.Table:  # Any: a `LocalPastTable`
            check(columns, target)
            session: DuckSession = table.session
            return session.arrow(question(query))

        return ask_copy(self._reader, self._place, columns.table, ask)


class DuckComparer:
    """Implements `cdcflow.tables.verify.port.Comparer`. `close` it."""

    def __init__(self) -> None:
        self._session = DuckSession()

    def close(self) -> None:
        self._session.close()

    def convert_rows(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
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
            f"{_to_table_type(types[name], name_sql(name), type_)} AS {name_sql(called)}"
            for name, type_, called in named
        ]
        return self._session.over(given, f"SELECT {', '.join(listed)} FROM {{}}")

    def digest_rows(self, columns: Columns, converted: pa.Table) -> pa.Table:
        key = columns.key if columns.has_key else ()
        return self._session.over(converted, digest.digests("{}", key, columns.columns))

    def differing(self, source: pa.Table, copy: pa.Table) -> pa.Table:
        session = self._session
        there, here = session.view_of("source", source), session.view_of("copy", copy)
        keys = [name for name in source.column_names if name != "d"] or ["d"]
        listed = ", ".join(keys)
        # Digests of several rows with the same key are added up as decimals, which are large enough for the sum.
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
        return self._join("ANTI", keys, others)

    def among(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        return self._join("SEMI", rows, keys)

    def _join(self, how: str, rows: pa.Table, keys: pa.Table) -> pa.Table:
        session = self._session
        left, right = session.view_of("rows", rows), session.view_of("keys", keys)
        same = " AND ".join(f"r.{n} <=> k.{n}" for n in keys.column_names if n == "d" or n.startswith("k"))
        try:
            return session.arrow(f"SELECT r.* FROM {left} r LEFT {how} JOIN {right} k ON {same}")
        finally:
            session.drop([left, right])

    def matching(self, columns: Columns, converted: pa.Table, keys: pa.Table) -> pa.Table:
        session = self._session
        rows, wanted = session.view_of("rows", converted), session.view_of("wanted", keys)
        try:
            return session.arrow(matching(columns, rows, wanted))
        finally:
            session.drop([rows, wanted])


def _read(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as DuckDB can read it. A decimal that is too wide for DuckDB becomes text."""
    if pa.types.is_decimal256(column.type):
        return pa.chunked_array([_decimal_text(chunk) for chunk in column.chunks], pa.string())
    if _is_list_of_wide(column.type):
        return pa.chunked_array([_decimal_texts(chunk) for chunk in column.chunks], pa.list_(pa.string()))
    if "decimal256" in str(column.type):
        raise NotComparable(f"a column is a {column.type}, which cannot be compared yet: its elements are too wide")
    return column.cast(read_type(column.type))


def _is_list_of_wide(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) and pa.types.is_decimal256(arrow.value_type))


def _to_table_type(arrow: pa.DataType, value: str, type_: str) -> str:
    """Return SQL that converts a value from `_read` to the table's type."""
    if "struct<" in type_:
        return value  # unchanged; DuckDB has another syntax for struct types
    is_text = pa.types.is_decimal256(arrow) or _is_list_of_wide(arrow)
    return f"CAST({value if is_text else stored_type(arrow).sql(value)} AS {type_})"


def _decimal_texts(array: pa.ListArray) -> pa.ListArray:
    """Convert a column of lists of decimals to lists of texts."""
    begin, end = (array.offsets[n].as_py() for n in (0, -1))
    offsets = pc.subtract(array.offsets, begin)
    empty = None if not array.null_count else array.is_null()
    return pa.ListArray.from_arrays(offsets, _decimal_text(array.values.slice(begin, end - begin)), mask=empty)


def _decimal_text(array: pa.Array) -> pa.Array:
    """Return each number as text with all of its digits and as many decimals as its type has. Arrow's own text uses
    exponents."""
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
