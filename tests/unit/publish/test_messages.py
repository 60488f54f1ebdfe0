"""How rows of the log become messages: keys, envelope, placeholders, orders, without a broker."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.config import FormatName
from cdcflow.errors import ConfigurationError
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.publish.avro_writer import schema_text as avro_text
from cdcflow.publish.connect import INT32, Schema, struct
from cdcflow.publish.events import Messages, Rules, TableEvents, TransactionEvents, TransactionGroup
from cdcflow.publish.formats import format_of
from cdcflow.publish.protobuf_writer import schema_text as protobuf_text
from cdcflow.publish.sources import HeaderBatch, SourceBlocks

TABLE = Table(
    TableId("shop", "orders"),
    1,
    (
        Column("id", 1, ColumnType("bigint", pa.int64()), nullable=False),
        Column("note", 2, ColumnType("text", pa.string())),
        Column("count", 3, ColumnType("integer", pa.int32()), nullable=False),
    ),
    ("id",),
)
BLOCKS = SourceBlocks(SourceIdentity("postgres", "7301", "shop", "1"), "p")


def group(sizes: list[int], kinds: list[str] | None = None) -> TransactionGroup:
    """Transactions with the given numbers of rows, starting at offset 1."""
    ends = np.cumsum(sizes)
    count = len(sizes)
    columns = {
        "number": range(1, count + 1),
        "first_offset": [1, *(ends[:-1] + 1)],
        "last_offset": ends,
        "position": [f"0/{n:X}" for n in range(1, count + 1)],
        "xid": range(100, 100 + count),
        "commit_ts": [1_700_000_000_000_000] * count,
        "commit_clock": [1_700_000_000_000_000] * count,
        "kind": kinds or ["source"] * count,
        "origin": [None] * count,
    }
    arrays = [pa.array(list(columns[f.name]), f.type) for f in TRANSACTIONS_SCHEMA]
    return TransactionGroup(HeaderBatch(pa.Table.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)), BLOCKS, 0)


def batch(table: Table, *rows: dict[str, Any]) -> pa.RecordBatch:
    basic = {TRANSACTION: 1, COMMIT_TS: 1_700_000_000_000_000, OP: "c", UNCHANGED: None, BEFORE: None}
    full = [{**basic, OFFSET: n, **row} for n, row in enumerate(rows, 1)]
    columns = [pa.array([row.get(f.name) for row in full], f.type) for f in table.log_schema]
    return pa.RecordBatch.from_arrays(columns, schema=table.log_schema)


def told(
    rows: pa.RecordBatch, rules: Rules | None = None, of: TransactionGroup | None = None, table: Table = TABLE
) -> Messages:
    events = TableEvents(table, BLOCKS, rules or Rules(), format_of("json"))
    return events.messages(rows, of or group([rows.num_rows]))


def payloads(messages: Messages) -> list[Any]:
    return [json.loads(v or b"null") for v in messages.values]


def test_value_that_was_not_sent_is_never_silently_null() -> None:
    """NULL, unchanged and absent are three things; the envelope has two, so the header lists the columns."""
    messages = told(batch(TABLE, {"id": 1, OP: "u", UNCHANGED: ["note", "count"]}, {"id": 2, "note": None, "count": 0}))
    first, second = payloads(messages)
    assert first["after"] == {"id": 1, "note": "__debezium_unavailable_value", "count": 0}
    assert second["after"] == {"id": 2, "note": None, "count": 0}
    assert messages.unchanged == {0: b'["note", "count"]'}


def test_a_delete_is_followed_by_a_tombstone_with_its_key() -> None:
    """Compacted topics forget a row only by its tombstone."""
    rows = batch(TABLE, {"id": 1, OP: "d", UNCHANGED: ["note", "count"]}, {"id": 2, "count": 5})
    messages = told(rows)
    assert messages.keys == [b'{"id":1}', b'{"id":2}']
    assert messages.tombstones == [True, False]
    first = payloads(messages)[0]
    assert (first["op"], first["after"]) == ("d", None)
    assert first["before"] == {"id": 1, "note": None, "count": 0}
    assert messages.unchanged == {}
    assert told(rows, Rules(tombstones=False)).tombstones is None


def test_the_old_row_is_before_only_where_the_source_repeats_all_of_it() -> None:
    """Under DEFAULT the log's `_before` is an old key, which is not a row."""
    full = replace(TABLE, identity=Identity.FULL)
    old = {"id": 1, "note": "old", "count": 1}
    rows = batch(full, {"id": 1, "note": "new", "count": 2, OP: "u", BEFORE: old}, {"id": 3, "count": 0, BEFORE: old})
    first, second = payloads(told(rows, table=full))
    assert first["before"] == old
    assert second["before"] is None  # the creation after a key change: the deletion before it has the old row


def test_truncates_are_skipped_unless_they_are_requested() -> None:
    """As in Debezium: few consumers expect a message without a key."""
    rows = batch(TABLE, {"id": 1, "count": 0}, {OP: "t"})
    assert len(told(rows).values) == 1
    messages = told(rows, Rules(skipped=frozenset()))
    assert messages.keys == [b'{"id":1}', None]
    assert [payloads(messages)[1][name] for name in ("op", "before", "after")] == ["t", None, None]


def test_orders_count_through_batches_tables_and_transactions() -> None:
    """A consumer reassembles a transaction by them, and by the counts in END."""
    other = replace(TABLE, id=TableId("shop", "items"))
    both = group([3, 2])
    rules = Rules(transactions=True)
    found = []
    for table, offsets in ((TABLE, [1]), (TABLE, [3, 4]), (other, [2, 5])):
        rows = batch(table, *({"id": n, "count": 0, OFFSET: n, TRANSACTION: 1 if n <= 3 else 2} for n in offsets))
        found += [p["transaction"] for p in payloads(told(rows, rules, both, table))]
    assert [(t["id"], t["total_order"], t["data_collection_order"]) for t in found] == [
        ("100:1", 1, 1),
        ("100:1", 3, 2),
        ("101:2", 1, 1),
        ("100:1", 2, 1),
        ("101:2", 2, 1),
    ]
    ends = payloads(TransactionEvents("p", format_of("json")).messages(both))
    assert [(e["status"], e["id"], e["event_count"]) for e in ends] == [
        ("BEGIN", "100:1", None),
        ("END", "100:1", 3),
        ("BEGIN", "101:2", None),
        ("END", "101:2", 2),
    ]
    counts = [{"data_collection": "shop.orders", "event_count": 2}, {"data_collection": "shop.items", "event_count": 1}]
    assert ends[1]["data_collections"] == counts


def test_rows_of_a_backfill_belong_to_no_transaction() -> None:
    """They report what existed, not what changed: an incremental snapshot, in Debezium's words."""
    reads = group([1], ["read"])
    messages = told(batch(TABLE, {"id": 1, "count": 0, OP: "r"}), Rules(transactions=True), reads)
    [payload] = payloads(messages)
    assert payload["transaction"] is None
    assert (payload["source"]["snapshot"], payload["source"]["txId"]) == ("incremental", None)
    assert TransactionEvents("p", format_of("json")).messages(reads).values == []


def test_the_place_of_the_commit_before_is_in_the_sequence() -> None:
    """Consumers order by it across restarts, so it must continue where the last group ended."""
    first = group([1, 1])
    rows = batch(TABLE, {"id": 1, "count": 0}, {"id": 2, "count": 0, TRANSACTION: 2})
    assert [p["source"]["sequence"] for p in payloads(told(rows, of=first))] == ['[null,"1"]', '["1","2"]']
    later = TransactionGroup(HeaderBatch(first.transactions.headers, "0/A"), BLOCKS, 0)
    assert payloads(told(rows, of=later))[0]["source"]["sequence"] == '["10","1"]'


@pytest.mark.parametrize("text", ["", '"', "\\", 'a"b\\c\n\x00\x1f', "Zoë \U0001f600", "\\u0041"])
def test_any_text_is_the_same_text_again(text: str) -> None:
    """Escaping is done one column at a time, and each character must survive it."""
    rows = batch(TABLE, *[{"id": 1, "note": text, "count": 0}] * 2)
    assert [p["after"]["note"] for p in payloads(told(rows))] == [text] * 2


@pytest.mark.parametrize("form", ["json", "json-schema", "avro", "protobuf"])
@pytest.mark.parametrize("op", ["c", "u", "d", "t"])
def test_every_format_represents_every_operation(form: FormatName, op: str) -> None:
    """A column that is NULL in all rows of a batch is no longer in it, which every format must handle."""
    events = TableEvents(TABLE, BLOCKS, Rules(skipped=frozenset()), format_of(form, lambda subject, kind, text: 1))
    messages = events.messages(batch(TABLE, {"id": 1, "count": 5, OP: op}), group([1]))
    assert len(messages.values) == 1
    assert messages.values[0]


@pytest.mark.parametrize("describe", [avro_text, protobuf_text])
def test_two_columns_with_one_name_in_a_format_are_refused(describe: Any) -> None:
    """Otherwise one of them would be read as the other."""
    row: Schema = struct(("a-b", INT32), ("a_b", INT32), name="p.shop.t.Value")
    with pytest.raises(ConfigurationError, match="same name"):
        describe(row)
