"""Decides which changes of a table leave its source under a filter, and adds its computed columns.

A filter is true, or not, for the row before a change and for the row after it:

| before | after | what leaves |
| --- | --- | --- |
| yes | yes | the change |
| no | yes | an insert |
| yes | no | a delete |
| no | no | nothing |

The row before is known if the source sends old rows whole (`Identity.FULL`), or if the filter needs the key alone: an
update keeps it. Otherwise an update after which the filter holds leaves unchanged, and one after which it does not
leaves as a delete by key, which may delete a row that the copy never had. If a column that the filter needs was not
sent, it is unknown whether the filter holds: then the row's key leaves without any value (every other column
`unchanged`), and the row is read again by its key. The same applies to rows that may be new in the copy and arrived
without all of their columns, and to computed columns if only some of their inputs were sent.

Rows that are read by key, and for which the filter does not hold, leave as deletes: the copy may have them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import TableMisfit
from cdcflow.model.change import DELETE, INSERT, READ, TRUNCATE, UPDATE, ChangeBatch
from cdcflow.model.table import BEFORE, OP, UNCHANGED, Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.rows.compilation import ColumnFunction
from cdcflow.sources.rows.kernels import InputRows, as_array, where_true

Bools = npt.NDArray[np.bool_]
FIRST_NUMBER = 1 << 30
"""The numbers of computed columns begin here, above those of any source. They are hashes of the names."""
_TYPES = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp(6)",
    pa.timestamp("us", tz="UTC"): "timestamp(6) with time zone",
}
"""The names of computed columns' types, as servers write them. Other types have Arrow's names."""


def rows_misfit(table: TableId, why: str, remedy: str) -> TableMisfit:
    return TableMisfit(f"tables: {table}: {why}", remedy=remedy, runbook="row-rules")


@dataclass(frozen=True, slots=True)
class LeavingRows:
    """Changes that leave. `incomplete`: which of them have to be read again by key."""

    batch: ChangeBatch
    incomplete: Bools | None = None


@dataclass(frozen=True)
class RowRules:
    """The filter and the computed columns of one shape of a table. `table` includes the computed columns."""

    raw: Table
    table: Table
    where: ColumnFunction | None
    computed: Mapping[str, ColumnFunction]

    @classmethod
    def of(cls, raw: Table, where: ColumnFunction | None, computed: Mapping[str, ColumnFunction]) -> RowRules:
        """Create the rules of a table. Raises ConfigurationError if they cannot be exact for this table, or a name is
        taken."""
        if not raw.key:
            raise rows_misfit(
                raw.id,
                "it has no key, so a row that lacks columns could not be read again",
                "give the table a primary key, or take where and computed out",
            )
        columns = list(raw.columns)
        for name, one in computed.items():
            if any(c.name.lower() == name.lower() for c in columns):
                raise rows_misfit(raw.id, f"the computed column {name} is also a column of it", "give it another name")
            if one.arrow == pa.null():
                raise rows_misfit(raw.id, f"the computed column {name} is always NULL", "write CAST(NULL AS text)")
            numbers = {c.number for c in columns}
            first = FIRST_NUMBER | zlib.crc32(name.encode()) >> 4
            number = next(n for n in range(first, 1 << 31) if n not in numbers)
            columns.append(Column(name, number, ColumnType(_type_of(one.arrow), one.arrow)))
        if where is not None and where.arrow != pa.bool_():
            raise rows_misfit(raw.id, f"where is of type {where.arrow}, and not true or false", "write a condition")
        return cls(raw, replace(raw, columns=tuple(columns)), where, computed)

    # ── whole rows ───────────────────────────────────────────────────────────────────────────────

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return those whole rows (in the raw table's `row_schema`) for which the filter holds, with the computed
        columns."""
        if self.where is not None:
            rows = rows.filter(pa.array(self._holds(self.where, self._inputs(rows))))
        inputs = self._inputs(rows)
        columns = [*rows.columns, *(self._values(name, inputs) for name in self.computed)]
        return pa.RecordBatch.from_arrays(columns, schema=self.table.row_schema)

    def found_by_key(self, batch: ChangeBatch) -> tuple[ChangeBatch, int]:
        """Return a chunk's rows that were read by key, as they leave, and how many of them leave as deletes because of
        the filter. Deletes that the chunk has already are not counted."""
        if self.where is None:
            return self.changes(batch).batch, 0
        is_read = _is(batch.rows.column(OP), READ)
        goes = is_read & ~self._holds(self.where, self._inputs(batch.rows), is_read)
        changed = ChangeBatch(batch.table, batch.index, _as_deletes(self._without_values(batch.rows, goes), goes))
        return self._with_computed(changed).batch, int(goes.sum())

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────

    def changes(self, batch: ChangeBatch) -> LeavingRows:
        """Return changes as they leave; `index` lacks the rows that do not leave."""
        if self.where is None:
            return self._with_computed(batch)
        filtered = self._filter(batch, self.where)
        found = self._with_computed(filtered)
        unchanged = found.batch.rows.column(UNCHANGED)
        if unchanged.null_count == len(unchanged):
            return LeavingRows(found.batch)
        op, partial = found.batch.rows.column(OP), _bools(unchanged.is_valid())
        if not self._is_by_key:
            # Any row for which the filter now holds may be new in the copy, so a row without all columns must be read
            # again.
            return LeavingRows(found.batch, partial & ~_is(op, DELETE))
        entered = partial & _is(op, INSERT) & _bools(found.batch.rows.column(BEFORE).is_null())
        return LeavingRows(found.batch, entered if found.incomplete is None else entered | found.incomplete)

    @cached_property
    def _is_by_key(self) -> bool:
        """Whether the filter uses only columns of the key, so that its result changes only with the key."""
        return self.where is not None and self.where.columns <= set(self.raw.key)

    def _filter(self, batch: ChangeBatch, where: ColumnFunction) -> ChangeBatch:
        rows = batch.rows
        op = rows.column(OP)
        unknown = self._lists_any(rows.column(UNCHANGED), where.columns)
        deletes, truncates = _is(op, DELETE), _is(op, TRUNCATE)
        holds = self._holds(where, self._inputs(rows), ~(unknown | truncates))
        if self._is_by_key:
            held = self._holds_before(rows.column(BEFORE), where)
            left = _without_before(rows, holds & ~held & _bools(rows.column(BEFORE).is_valid()))
            return self._keep(ChangeBatch(batch.table, batch.index, left), holds | truncates)
        if self.raw.identity is Identity.FULL:
            return self._by_both_images(batch, where, holds, unknown, deletes, truncates)
        updates = _is(op, UPDATE)
        keep = holds | unknown | deletes | truncates | updates
        leaves = (deletes | updates & ~unknown) & ~holds
        return self._keep(batch, keep, leaves, unknown & ~deletes)

    def _by_both_images(
        self, batch: ChangeBatch, where: ColumnFunction, holds: Bools, unknown: Bools, deletes: Bools, truncates: Bools
    ) -> ChangeBatch:
        rows = batch.rows
        has_before, held = _bools(rows.column(BEFORE).is_valid()), self._holds_before(rows.column(BEFORE), where)
        updates = _is(rows.column(OP), UPDATE)
        leaves = updates & ~holds & ~unknown & (held | ~has_before)
        keep = holds | unknown | truncates | leaves
        enters = holds & has_before & ~held
        by_key = leaves & ~has_before
        if not (enters.any() or leaves.any()):
            return self._keep(batch, keep, by_key, unknown & ~deletes)
        rows = _with_op(self._as_old_rows(rows, leaves & has_before), enters & updates, INSERT)
        changed = ChangeBatch(batch.table, batch.index, _without_before(rows, enters))
        return self._keep(changed, keep, by_key, unknown & ~deletes)

    def _holds_before(self, before: pa.Array, where: ColumnFunction) -> Bools:
        """Return whether the filter held for each old row; false if the change has no old row."""
        there = _bools(before.is_valid())
        if not there.any():
            return there
        fields = dict(zip((f.name for f in before.type), before.flatten(), strict=True))
        return self._holds(where, InputRows(fields, len(before)), there)

    def _keep(
        self, batch: ChangeBatch, keep: Bools, deletes: Bools | None = None, hidden: Bools | None = None
    ) -> ChangeBatch:
        """Return the rows of `keep`: those in `deletes` as deletes by key, those in `hidden` with their keys alone."""
        if not keep.all():
            batch = ChangeBatch(batch.table, batch.index[keep], batch.rows.filter(pa.array(keep)))
        if deletes is None or hidden is None:
            return batch
        deletes, hidden = deletes[keep], hidden[keep]
        rows = self._without_values(batch.rows, deletes | hidden)
        return ChangeBatch(batch.table, batch.index, _as_deletes(rows, deletes))

    def _without_values(self, rows: pa.RecordBatch, which: Bools) -> pa.RecordBatch:
        """Return the rows, those in `which` with their keys alone and every other column unchanged."""
        others = [c.name for c in self.raw.columns if c.name not in self.raw.key]
        if not others or not which.any():
            return rows
        # NULL for the number of a row is a row of NULLs: one pass over all columns.
        left = rows.select(others).take(pa.array(np.arange(rows.num_rows), mask=which))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | dict(zip(others, left.columns, strict=True))
        columns[UNCHANGED] = _listing(rows.column(UNCHANGED), which, others)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)

    def _as_old_rows(self, rows: pa.RecordBatch, which: Bools) -> pa.RecordBatch:
        """Return the rows, those in `which` as deletes of their old rows."""
        if not which.any():
            return rows
        chosen = pa.array(which)
        before = rows.column(BEFORE)
        olds = dict(zip((f.name for f in before.type), before.flatten(), strict=True))
        columns = [
            pc.if_else(chosen, olds[name], column) if name in olds else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return _as_deletes(pa.RecordBatch.from_arrays(columns, schema=rows.schema), which)

    # ── computed columns ────────────────────────────────────────────────────────────────────────────────────

    def _with_computed(self, batch: ChangeBatch) -> LeavingRows:
        rows = batch.rows
        if not self.computed:
            return LeavingRows(ChangeBatch(self.table, batch.index, rows))
        unchanged = rows.column(UNCHANGED)
        truncates, deletes = (_is(rows.column(OP), op) for op in (TRUNCATE, DELETE))
        inputs = self._inputs(rows)
        values, added, mixed = [], list[tuple[str, Bools]](), np.zeros(rows.num_rows, np.bool_)
        for name, one in self.computed.items():
            lists = [self._lists_any(unchanged, frozenset([column])) for column in sorted(one.columns)]
            unsent = np.logical_or.reduce(lists) if lists else np.zeros(rows.num_rows, np.bool_)
            values.append(self._values(name, inputs, ~(unsent | truncates)))
            if unsent.any():
                added.append((name, unsent))
                mixed |= unsent & ~np.logical_and.reduce(lists)
        columns = [*rows.columns[: len(self.raw.columns)], *values, rows.column(OP), _with_names(unchanged, added)]
        columns.append(self._before(rows.column(BEFORE)))
        made = pa.RecordBatch.from_arrays(columns, schema=self.table.change_schema)
        incomplete = mixed & ~deletes
        return LeavingRows(ChangeBatch(self.table, batch.index, made), incomplete if incomplete.any() else None)

    def _before(self, olds: pa.Array) -> pa.Array:
        arrow = self.table.before_type
        if olds.type == arrow:
            return olds
        if olds.null_count == len(olds):
            return pa.nulls(len(olds), arrow)
        found = dict(zip((f.name for f in olds.type), olds.flatten(), strict=True))
        inputs, there = InputRows(found, len(olds)), _bools(olds.is_valid())
        children = [found[f.name] if f.name in found else self._values(f.name, inputs, there) for f in arrow]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=olds.is_null())

    # ── expressions ─────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def columns_used(self) -> frozenset[str]:
        compiled = [*self.computed.values(), *([] if self.where is None else [self.where])]
        return frozenset[str]().union(*(one.columns for one in compiled))

    @property
    def texts_compared(self) -> frozenset[str]:
        """The columns whose texts are compared byte by byte."""
        compiled = [*self.computed.values(), *([] if self.where is None else [self.where])]
        return frozenset[str]().union(*(one.compared for one in compiled))

    def _inputs(self, rows: pa.RecordBatch) -> InputRows:
        return InputRows({name: rows.column(name) for name in self.columns_used}, rows.num_rows)

    def _holds(self, where: ColumnFunction, inputs: InputRows, which: Bools | None = None) -> Bools:
        """Return whether the filter is true for each row; false except in the rows `which` (None: all)."""
        return _bools(pc.fill_null(self._evaluate("where", where, inputs, which), False))

    def _values(self, name: str, inputs: InputRows, which: Bools | None = None) -> pa.Array:
        """Return a computed column; NULL except in the rows `which` (None: all)."""
        return self._evaluate(f"the computed column {name}", self.computed[name], inputs, which)

    def _evaluate(self, what: str, one: ColumnFunction, inputs: InputRows, which: Bools | None) -> pa.Array:
        try:
            if which is None or which.all():
                return as_array(one.evaluate(inputs), inputs.count)
            if one.can_fail:
                return where_true(inputs, pa.array(which), one.evaluate)
            return pc.if_else(pa.array(which), as_array(one.evaluate(inputs), inputs.count), pa.scalar(None, one.arrow))
        except pa.ArrowException:  # a new message: Arrow's own may contain the value
            raise rows_misfit(
                self.raw.id,
                f"a row has a value to which {what} cannot be applied",
                "write the expression for such values, too, for example with CASE WHEN, then start again",
            ) from None

    def _lists_any(self, unchanged: pa.Array, names: frozenset[str]) -> Bools:
        """Return, for each row, whether one of these columns was not sent."""
        found = np.zeros(len(unchanged), np.bool_)
        if names and unchanged.null_count < len(unchanged):
            listed = pc.is_in(unchanged.flatten(), pa.array(sorted(names), pa.string()))
            found[pc.list_parent_indices(unchanged).filter(listed).to_numpy()] = True
        return found


def _type_of(arrow: pa.DataType) -> str:
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return _TYPES.get(arrow, str(arrow))


def _is(ops: pa.Array, op: str) -> Bools:
    return _bools(pc.equal(ops, op))


def _bools(values: pa.Array) -> Bools:
    found: Bools = values.to_numpy(zero_copy_only=False)
    return found


def _as_deletes(rows: pa.RecordBatch, which: Bools) -> pa.RecordBatch:
    return _without_before(_with_op(rows, which, DELETE), which) if which.any() else rows


def _with_op(rows: pa.RecordBatch, which: Bools, op: str) -> pa.RecordBatch:
    changed = pc.if_else(pa.array(which), pa.scalar(op), rows.column(OP))
    return rows.set_column(rows.schema.get_field_index(OP), rows.schema.field(OP), changed)


def _without_before(rows: pa.RecordBatch, which: Bools) -> pa.RecordBatch:
    before = rows.column(BEFORE)
    if not which.any() or before.null_count == len(before):
        return rows
    left = pc.if_else(pa.array(which), pa.scalar(None, before.type), before)
    return rows.set_column(rows.schema.get_field_index(BEFORE), rows.schema.field(BEFORE), left)


def _listing(lists: pa.Array, which: Bools, names: list[str]) -> pa.Array:
    """Replace the lists of these rows by one with these names."""
    if lists.null_count == len(lists):
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(which, dtype=np.int32) * np.int32(len(names))])
        items = pa.array(names).take(pa.array(np.tile(np.arange(len(names)), int(which.sum()))))
        return pa.ListArray.from_arrays(pa.array(ends), items, type=lists.type, mask=pa.array(~which))
    both = pa.concat_arrays([lists, pa.array([names], lists.type)])
    return both.take(pa.array(np.where(which, len(lists), np.arange(len(lists)))))


def _with_names(lists: pa.Array, added: list[tuple[str, Bools]]) -> pa.Array:
    """Return the lists with more names, added at the end of the lists of the rows that each mask marks; all of these
    have a list."""
    if not added:
        return lists
    parents = [pc.list_parent_indices(lists).to_numpy(), *(np.flatnonzero(rows) for _, rows in added)]
    texts = [lists.flatten(), *(pa.repeat(pa.scalar(name), int(rows.sum())) for name, rows in added)]
    owner = np.concatenate(parents)
    order = np.argsort(owner, kind="stable")
    values = pa.concat_arrays(texts).take(pa.array(order))
    return lists_of(values, np.bincount(owner, minlength=len(lists)), lists)


def lists_of(items: pa.Array, counts: npt.NDArray[np.int64], like: pa.Array) -> pa.Array:
    """Return lists with these numbers of items, NULL where `like` is, and of its type."""
    ends = np.zeros(len(like) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), items, type=like.type, mask=like.is_null())
