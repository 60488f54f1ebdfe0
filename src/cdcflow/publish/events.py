"""Turn rows of the change log into messages of a table's topic.

rows of one shape ──▶ each column converted and rendered ──▶ row ─┬▶ before  (deletes; updates from `_before`)
                                                                └▶ after   (all others)
transactions      ──▶ `source`, once a transaction ─────────────▶ repeated for its rows
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.change import DELETE, TRUNCATE, UPDATE, Int64s
from cdcflow.model.table import BEFORE, OFFSET, OP, TRANSACTION, UNCHANGED, Column, Identity, Table, TableId
from cdcflow.publish import envelope, mysql_columns, postgres_columns
from cdcflow.publish.columns import Encoding, Modes
from cdcflow.publish.connect import Schema
from cdcflow.publish.formats import Frame, MessageFormat
from cdcflow.publish.message_columns import NONE, render, repeat_cells
from cdcflow.publish.sources import HeaderBatch, SourceBlocks, SourcePosition

_COLLECTIONS = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))


Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one topic, in order. `keys` `None`: the table has no key.

    `headless` marks messages without a key although the table has one (truncates). Each message in `tombstones` is
    followed by a message without a value. `unchanged`: the columns that the source did not send, by message number.
    """

    topic: str
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    key_frame: Frame
    value_frame: Frame
    tombstones: list[bool] | None = None
    unchanged: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """Debezium's settings that are about events, not values."""

    modes: Modes = field(default_factory=Modes)
    tombstones: bool = True
    skipped: frozenset[str] = frozenset({TRUNCATE})
    transactions: bool = False


class TransactionGroup:
    """Consecutive whole transactions whose rows are being converted to messages."""

    def __init__(self, transactions: HeaderBatch, blocks: SourceBlocks, now_ns: int) -> None:
        self.transactions = transactions
        self.positions: list[SourcePosition] = blocks.positions(transactions)
        self.now_ns = now_ns
        self.counts: dict[int, dict[TableId, int]] = {}

    def orders(self, table: TableId, which: Int64s) -> Int64s:
        """Return the number of each row within its transaction and table, from 1. `which`: the transaction of each
        row, ascending. Call this only once for each row: it continues the count of the previous calls."""
        found, starts, counts = np.unique(which, return_index=True, return_counts=True)
        before = np.zeros(len(found), np.int64)
        for i, (transaction, count) in enumerate(zip(found.tolist(), counts.tolist(), strict=True)):
            tables = self.counts.setdefault(transaction, {})
            before[i] = tables.get(table, 0)
            tables[table] = int(before[i]) + count
        return np.arange(len(which)) - np.repeat(starts - before, counts) + 1


class TableEvents:
    """Builds the messages of one shape of a table."""

    def __init__(self, table: Table, blocks: SourceBlocks, rules: Rules, form: MessageFormat) -> None:
        self._table = table
        self._blocks = blocks
        self._rules = rules
        self._writer = form.writer
        self.topic = blocks.topic(table.id)
        self._encodings = [_encoding(table, c, blocks, rules.modes) for c in table.columns]
        fields = tuple((c.name, e.schema) for c, e in zip(table.columns, self._encodings, strict=True))
        self._row = envelope.value(self.topic, fields, blocks.schema)
        self._row_schema = self._row.fields[0][1]
        self._value_frame = form.frame(self.topic, "value", self._row)
        by_name = dict(fields)
        self._key = envelope.key(self.topic, tuple((name, by_name[name]) for name in table.key))
        self._key_frame = form.frame(self.topic, "key", self._key) if table.key else (b"", b"")

    def messages(self, rows: pa.RecordBatch, group: TransactionGroup) -> Messages:
        """Return the messages of these rows (`Table.log_schema`), in their order."""
        rows = self._without_skipped(rows)
        ops = rows.column(OP)
        deletes = pc.equal(ops, DELETE)
        cells = self._cells(rows, deletes)
        row = self._writer.record(cells, self._row_schema)
        truncates = pc.equal(ops, TRUNCATE)
        after = pc.if_else(pc.or_(deletes, truncates), NONE, row)
        parts = [self._before(rows, row, deletes), after, *self._about(rows, group)]
        values = self._writer.record(parts, self._row).to_pylist()
        return Messages(
            self.topic,
            self._keys(cells, truncates),
            values,
            self._key_frame,
            self._value_frame,
            deletes.to_pylist() if self._rules.tombstones and deletes.true_count else None,
            _unchanged_names(rows, deletes),
        )

    def _without_skipped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self._rules.skipped:
            return rows
        skipped = pc.is_in(rows.column(OP), pa.array(sorted(self._rules.skipped), pa.string()))
        return rows.filter(pc.invert(skipped)) if skipped.true_count else rows

    def _cells(self, rows: pa.RecordBatch, deletes: pa.BooleanArray) -> list[pa.Array]:
        """Return the table's own columns as rendered cells."""
        unsent = _unsent(rows, deletes)
        return [
            self._cell(rows.column(column.name), encoding, unsent.get(column.name))
            for column, encoding in zip(self._table.columns, self._encodings, strict=True)
        ]

    def _cell(self, values: pa.Array, encoding: Encoding, unsent: Bools | None = None) -> pa.Array:
        plain = encoding.convert(values)
        if unsent is not None and encoding.unavailable is not None:
            plain = _put(plain, unsent, encoding.unavailable)
        if plain.null_count and not encoding.schema.optional:
            plain = _put(plain, plain.is_null().to_numpy(zero_copy_only=False), encoding.neutral)
        return render(plain, encoding.schema, self._writer)

    def _before(self, rows: pa.RecordBatch, row: pa.Array, deletes: pa.BooleanArray) -> pa.Array | pa.Scalar:
        """Return the old rows: for a delete the values that the log holds, for an update the old row if the source
        repeats all of it."""
        shown = pc.if_else(deletes, row, NONE) if deletes.true_count else None
        old = rows.column(BEFORE)
        if self._table.identity is Identity.FULL and old.null_count < len(old):
            updates = pc.and_(pc.equal(rows.column(OP), UPDATE), old.is_valid())
            if updates.true_count:
                cells = [
                    self._cell(pc.struct_field(old, [c.name]), e)
                    for c, e in zip(self._table.columns, self._encodings, strict=True)
                ]
                whole = self._writer.record(cells, self._row_schema)
                shown = pc.if_else(updates, whole, NONE if shown is None else shown)
        return NONE if shown is None else shown

    def _about(self, rows: pa.RecordBatch, group: TransactionGroup) -> list[pa.Array | pa.Scalar]:
        """Return the fields `source`, `transaction`, `op` and the times."""
        numbers = rows.column(TRANSACTION).to_numpy()
        which = np.searchsorted(group.transactions.numbers, numbers)
        found, index = np.unique(which, return_inverse=True)
        writer, envelope_fields = self._writer, self._row.fields
        columns = self._blocks.columns(self._table.id, group.transactions, group.positions, found)
        inner = self._blocks.schema.fields
        rendered = [render(c, s, writer) for c, (_, s) in zip(columns, inner, strict=True)]
        source = repeat_cells(writer.record(rendered, self._blocks.schema), index)
        transaction: pa.Array | pa.Scalar = NONE
        if self._rules.transactions:
            transaction = self._transaction(rows, which, group)
        ops, *schemas = (schema for _, schema in envelope_fields[4:])
        # The same for all rows: rendered once, and joined as a constant.
        times = zip((1_000_000, 1000, 1), schemas, strict=True)
        said = (render(pa.array([group.now_ns // by]), schema, writer)[0] for by, schema in times)
        return [source, transaction, render(rows.column(OP), ops, writer), *said]

    def _transaction(self, rows: pa.RecordBatch, which: Int64s, group: TransactionGroup) -> pa.Array:
        is_read = group.transactions.is_read[which]
        total = rows.column(OFFSET).to_numpy() - group.transactions.first_offsets[which] + 1
        orders = group.orders(self._table.id, which)
        ids = pa.array([p.id for p in group.positions], pa.string()).take(pa.array(which))
        parts = (ids, pa.array(total), pa.array(orders))
        fields = envelope.TRANSACTION.fields
        cells = [render(c, s, self._writer) for c, (_, s) in zip(parts, fields, strict=True)]
        whole = self._writer.record(cells, envelope.TRANSACTION)
        return pc.if_else(pa.array(is_read), NONE, whole) if is_read.any() else whole

    def _keys(self, cells: Sequence[pa.Array], truncates: pa.BooleanArray) -> list[bytes | None] | None:
        if not self._table.key:
            return None
        indices = {c.name: i for i, c in enumerate(self._table.columns)}
        keys = self._writer.record([cells[indices[name]] for name in self._table.key], self._key)
        if truncates.true_count:
            keys = pc.if_else(truncates, NONE, keys)
        found: list[bytes | None] = keys.to_pylist()
        return found


def field_types(table: Table, blocks: SourceBlocks, modes: Modes) -> dict[str, str]:
    """Return the fields that messages of a table with this shape have for its columns, each with a text for its
    type."""
    return {column.name: _type_text(_encoding(table, column, blocks, modes).schema) for column in table.columns}


def _type_text(schema: Schema) -> str:
    """Return a text for a schema's type and its meaning, with the parameters that this depends on."""
    about = ", ".join(filter(None, (schema.name or "", *(f"{k} {v}" for k, v in schema.parameters))))
    return f"{schema.type} ({about})" if about else schema.type


def _encoding(table: Table, column: Column, blocks: SourceBlocks, modes: Modes) -> Encoding:
    if blocks.is_postgres:
        return postgres_columns.encoding(column, modes)
    return mysql_columns.encoding(f"{table.id}.{column.name}", column, modes)


def _put(values: pa.Array, where: Bools, value: object) -> pa.Array:
    """Return the values with `value` in place of those at `where`."""
    if not pa.types.is_nested(values.type):
        return pc.if_else(pa.array(where), pa.scalar(value, values.type), values)
    # Arrow's choice between nested values needs both as arrays: append the value, and take it from there.
    index = np.where(where, len(values), np.arange(len(values)))
    return pa.concat_arrays([values, pa.array([value], values.type)]).take(pa.array(index))


def _unsent(rows: pa.RecordBatch, deletes: pa.BooleanArray) -> dict[str, Bools]:
    """Return, for each column, which rows lack its value because the source did not send it. Deletes do not count."""
    lists = rows.column(UNCHANGED)
    if lists.null_count == len(lists):
        return {}
    names, parents = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    there = ~deletes.to_numpy(zero_copy_only=False)
    found: dict[str, Bools] = {}
    for name in pc.unique(names).to_pylist():
        mask = np.zeros(rows.num_rows, bool)
        mask[parents[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
        if (mask & there).any():
            found[name] = mask & there
    return found


def _unchanged_names(rows: pa.RecordBatch, deletes: pa.BooleanArray) -> dict[int, bytes]:
    lists = rows.column(UNCHANGED)
    if lists.null_count == len(lists):
        return {}
    there = pc.and_(lists.is_valid(), pc.invert(deletes))
    rows_there = np.flatnonzero(there.to_numpy(zero_copy_only=False))
    said = lists.take(pa.array(rows_there)).to_pylist()
    return {int(i): json.dumps(names).encode() for i, names in zip(rows_there, said, strict=True)}


class TransactionEvents:
    """Makes the messages of the transaction topic: BEGIN and END of each transaction."""

    def __init__(self, prefix: str, form: MessageFormat) -> None:
        self.topic = envelope.topic_name(prefix, "transaction")
        self._writer = form.writer
        self._key_frame = form.frame(self.topic, "key", envelope.TRANSACTION_KEY)
        self._value_frame = form.frame(self.topic, "value", envelope.TRANSACTION_VALUE)

    def messages(self, group: TransactionGroup) -> Messages:
        """Return the messages of the transactions that have an event, in order.

        Backfill chunks have none, because they are not transactions of the source.
        """
        transactions = group.transactions
        read = transactions.is_read
        found = [i for i in sorted(group.counts) if not read[i]]
        ms = transactions.commit_us // 1000
        rows: list[tuple[str, str, int | None, list[dict[str, object]] | None, int]] = []
        for i in found:
            name, when = group.positions[i].id, int(ms[i])
            counts = group.counts[i]
            tables = [{"data_collection": str(t), "event_count": n} for t, n in counts.items()]
            rows.append(("BEGIN", name, None, None, when))
            rows.append(("END", name, sum(counts.values()), tables, when))
        status, names, event_counts, collections, times = zip(*rows, strict=True) if rows else ((),) * 5
        ids = pa.array(names, pa.string())
        columns = [
            pa.array(status, pa.string()),
            ids,
            pa.array(event_counts, pa.int64()),
            pa.array(collections, _COLLECTIONS),
            pa.array(times, pa.int64()),
        ]
        return Messages(
            self.topic,
            self._record([ids], envelope.TRANSACTION_KEY),
            self._record(columns, envelope.TRANSACTION_VALUE),
            self._key_frame,
            self._value_frame,
        )

    def _record(self, columns: list[pa.Array], schema: Schema) -> list[bytes | None]:
        cells = [render(c, s, self._writer) for c, (_, s) in zip(columns, schema.fields, strict=True)]
        found: list[bytes | None] = self._writer.record(cells, schema).to_pylist()
        return found
