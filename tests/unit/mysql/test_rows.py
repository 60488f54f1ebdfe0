"""Row images as changes: what is new, what is old, what was not sent. Every test runs with both decoders."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.mysql.values import WAYS, bitmap, column, image, joined, table

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.engine.changes import truncation
from cdcflow.sources.mysql.rows import DecodedRows, RowKind
from cdcflow.sources.mysql.tables import DescribedTable, describe
from cdcflow.sources.mysql.types.columns import Policy, TypeCode

ORDERS = table(
    column("id", TypeCode.LONG, nullable=False),
    column("state", TypeCode.VARCHAR, 80, collation=45),
    column("note", TypeCode.BLOB, 2, collation=45),
)
ALL = (True, True, True)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param][0]


def key(number: int) -> bytes:
    return struct.pack("<i", number)


def row(number: int, state: bytes | None, note: bytes | None) -> bytes:
    return image(ORDERS, [key(number), state, note])


def of(
    way: Any,
    kind: RowKind,
    events: Sequence[bytes],
    before: Sequence[bool] = ALL,
    after: Sequence[bool] = ALL,
    shape: DescribedTable = ORDERS,
) -> DecodedRows:
    data, extents = joined(events)
    found: DecodedRows = way(shape, data, extents, kind, bitmap(before), bitmap(after))
    assert found.rows.schema.equals(shape.table.change_schema)
    found.rows.validate(full=True)
    return found


def listed(found: DecodedRows) -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for r in found.rows.to_pylist()]


def test_inserted_rows_are_in_order_over_all_events(way: Any) -> None:
    """The order within a transaction is the order of the log, whichever event a row came in."""
    found = of(way, RowKind.INSERT, [row(1, b"new", None) + row(2, None, b"x"), row(3, b"", b"")])
    assert listed(found) == [
        (1, "new", None, "c", None, None),
        (2, None, "x", "c", None, None),
        (3, "", "", "c", None, None),
    ]
    assert found.counts.tolist() == [2, 1]


def test_update_that_keeps_its_key_is_one_change(way: Any) -> None:
    """The old row is not repeated in the log: the target has it."""
    found = of(way, RowKind.UPDATE, [row(1, b"new", b"n") + row(1, b"paid", b"n")])
    assert listed(found) == [(1, "paid", "n", "u", None, None)]
    assert found.counts.tolist() == [1]


def test_update_of_the_key_is_a_delete_and_an_insert(way: Any) -> None:
    """M43: otherwise the old key's row stays indefinitely."""
    events = [
        row(1, b"a", None) + row(1, b"b", None) + row(2, b"old", b"n") + row(7, b"new", b"n"),
        row(3, b"c", None) + row(3, b"d", None),
    ]
    found = of(way, RowKind.UPDATE, events)
    assert listed(found) == [
        (1, "b", None, "u", None, None),
        (2, "old", "n", "d", None, None),
        (7, "new", "n", "c", None, {"id": 2}),
        (3, "d", None, "u", None, None),
    ]
    assert found.counts.tolist() == [3, 1]


def test_text_key_that_changes_only_its_case_is_another_key(way: Any) -> None:
    """The server's collation may call them equal; the target's keys are bytes."""
    shape = table(column("id", TypeCode.VARCHAR, 40, collation=45), column("n", TypeCode.TINY))
    events = [image(shape, [b"a", b"\1"]) + image(shape, [b"A", b"\1"])]
    found = of(way, RowKind.UPDATE, events, (True, True), (True, True), shape)
    assert [r["_op"] for r in found.rows.to_pylist()] == ["d", "c"]


def test_table_without_a_key_has_no_updates(way: Any) -> None:
    """Only all columns together identify its rows, so an update is the old row's end and a new one."""
    shape = table(*ORDERS.columns, key=())
    found = of(way, RowKind.UPDATE, [row(1, b"a", b"n") + row(1, b"b", b"n")], shape=shape)
    assert listed(found) == [
        (1, "a", "n", "d", None, None),
        (1, "b", "n", "c", None, {"id": 1, "state": "a", "note": "n"}),
    ]


def test_full_identity_repeats_the_old_row(way: Any) -> None:
    """If it is requested, every update has the old row."""
    shape = describe(TableId("shop", "orders"), ORDERS.columns, ["id"], Identity.FULL, Policy())
    found = of(way, RowKind.UPDATE, [row(1, b"a", b"n") + row(1, b"b", None)], shape=shape)
    assert listed(found) == [(1, "b", None, "u", None, {"id": 1, "state": "a", "note": "n"})]


def test_delete_holds_the_old_row(way: Any) -> None:
    """What the log repeats of it is passed on."""
    found = of(way, RowKind.DELETE, [row(1, b"a", None)])
    assert listed(found) == [(1, "a", None, "d", None, None)]


def test_minimal_update_names_what_it_did_not_send(way: Any) -> None:
    """M08: with binlog_row_image MINIMAL a column that was not sent is unchanged, which is not NULL."""
    before, after = image(ORDERS, [key(1)], (True, False, False)), image(ORDERS, [None], (False, True, False))
    found = of(way, RowKind.UPDATE, [before + after], (True, False, False), (False, True, False))
    assert listed(found) == [(1, None, None, "u", ["note"], None)]


def test_noblob_update_copies_unsent_values_from_the_old_row(way: Any) -> None:
    """M08: what the before image has and the after image does not is unchanged, and therefore known."""
    after = image(ORDERS, [key(1), b"b"], (True, True, False))
    found = of(way, RowKind.UPDATE, [row(1, b"a", b"long") + after], ALL, (True, True, False))
    assert listed(found) == [(1, "b", "long", "u", None, None)]


def test_minimal_key_change_carries_its_unchanged_columns_over(way: Any) -> None:
    """M43 and M08 at once: the insert names the columns that the old key's row has."""
    sent = (True, False, False)
    found = of(way, RowKind.UPDATE, [image(ORDERS, [key(1)], sent) + image(ORDERS, [key(2)], sent)], sent, sent)
    assert listed(found) == [
        (1, None, None, "d", ["state", "note"], None),
        (2, None, None, "c", ["state", "note"], {"id": 1}),
    ]


def test_minimal_delete_names_what_it_did_not_send(way: Any) -> None:
    """M08: the key is enough for a delete."""
    found = of(way, RowKind.DELETE, [image(ORDERS, [key(1)], (True, False, False))], (True, False, False))
    assert listed(found) == [(1, None, None, "d", ["state", "note"], None)]


def test_insert_without_all_columns_is_incomplete(way: Any) -> None:
    """M08: the log does not contain the default that a column got, and NULL would be wrong."""
    sent = (True, True, False)
    found = of(way, RowKind.INSERT, [image(ORDERS, [key(n), b"a"], sent) for n in (1, 2)], ALL, sent)
    assert listed(found) == [(n, "a", None, "c", ["note"], None) for n in (1, 2)]
    assert found.incomplete is not None
    assert found.incomplete.tolist() == [True, True]
    assert of(way, RowKind.INSERT, [row(1, None, None)]).incomplete is None


def test_insert_without_its_key_is_refused(way: Any) -> None:
    """M08: nothing shows which row to read. A table without any key is read whole."""
    sent = (False, True, True)
    with pytest.raises(ConfigurationError, match=r"shop\.orders.*without id.*\n.*binlog_row_image"):
        of(way, RowKind.INSERT, [image(ORDERS, [b"a", None], sent)], ALL, sent)
    keyless = table(*ORDERS.columns, key=())
    found = of(way, RowKind.INSERT, [image(ORDERS, [b"a", None], sent)], ALL, sent, keyless)
    assert found.incomplete is not None
    assert found.incomplete.tolist() == [True]


@pytest.mark.parametrize("kind", [RowKind.UPDATE, RowKind.DELETE])
def test_old_row_without_its_key_is_refused(way: Any, kind: RowKind) -> None:
    """M08: a change without a key matches no row and cannot be applied."""
    sent = (False, True, False)
    one = image(ORDERS, [b"a"], sent)
    with pytest.raises(ConfigurationError, match="without id"):
        of(way, kind, [one + one], sent, sent)


DOCUMENTS = table(
    column("id", TypeCode.LONG, nullable=False),
    column("one", TypeCode.JSON, 4),
    column("n", TypeCode.TINY),
    column("two", TypeCode.JSON, 4),
)
DOCUMENT, DIFF = b"\4\0", b"\0\1\2what changed"
"""JSON's `null`, as the log has it, and bytes that are not a document."""


def updated(new: Sequence[bytes | None], head: bytes, sent: Sequence[bool] = (True,) * 4, old: int = 1) -> bytes:
    after = [cell for cell, here in zip(new, sent, strict=True) if here]
    return image(DOCUMENTS, [key(old), DOCUMENT, b"\1", DOCUMENT]) + head + image(DOCUMENTS, after, sent)


def of_documents(way: Any, *rows: bytes, after: Sequence[bool] = (True,) * 4) -> DecodedRows:
    data, extents = joined([b"".join(rows)])
    found: DecodedRows = way(DOCUMENTS, data, extents, RowKind.UPDATE, bitmap((True,) * 4), bitmap(after), True)
    found.rows.validate(full=True)
    return found


def test_partially_logged_document_is_unchanged_and_incomplete(way: Any) -> None:
    """The changed part of a document is not the document, and its old value is no longer right either."""
    found = of_documents(
        way,
        updated([key(1), DIFF, b"\2", DOCUMENT], b"\1\1"),
        updated([key(1), DOCUMENT, b"\3", DOCUMENT], b"\0"),
        updated([key(1), DIFF, b"\4", DIFF], b"\1\3"),
        updated([key(1), None, b"\5", DIFF], b"\1\2"),
    )
    assert listed(found) == [
        (1, None, 2, "null", "u", ["one"], None),
        (1, "null", 3, "null", "u", None, None),
        (1, None, 4, None, "u", ["one", "two"], None),
        (1, None, 5, None, "u", ["two"], None),
    ]
    assert found.incomplete is not None
    assert found.incomplete.tolist() == [True, False, True, True]
    assert of_documents(way, updated([key(1), DOCUMENT, b"\3", DOCUMENT], b"\1\0")).incomplete is None


def test_bits_of_parts_count_documents_that_were_not_sent(way: Any) -> None:
    """A bit for each JSON column of the table; one that was not sent is its old value."""
    sent = (True, False, False, True)
    found = of_documents(way, updated([key(1), None, None, DIFF], b"\1\2", sent), after=sent)
    assert listed(found) == [(1, "null", 1, None, "u", ["two"], None)]


def test_key_change_with_a_part_of_a_document_is_incomplete_under_its_new_key(way: Any) -> None:
    """A changed key (M43) and a part at once: the row is read by the key that it has now."""
    found = of_documents(
        way, updated([key(1), DOCUMENT, b"\2", DOCUMENT], b"\0"), updated([key(7), DIFF, b"\2", DOCUMENT], b"\1\1")
    )
    assert [(r["_op"], r["id"], r["_unchanged"]) for r in found.rows.to_pylist()] == [
        ("u", 1, None),
        ("d", 1, None),
        ("c", 7, ["one"]),
    ]
    assert found.counts.tolist() == [3]
    assert found.incomplete is not None
    assert found.incomplete.tolist() == [False, False, True]


def test_unknown_options_of_values_stop_with_an_error_that_names_them(way: Any) -> None:
    """Another option means bytes that cdcflow cannot read."""
    with pytest.raises(ConfigurationError, match="binlog_row_value_options"):
        of_documents(way, updated([key(1), DIFF, b"\2", DOCUMENT], b"\3\1"))


def test_more_than_eight_columns_have_more_bytes_of_nulls(way: Any) -> None:
    """The servers set the bits after the last column, which mean nothing."""
    for count in (8, 9, 16, 17, 25):
        shape = table(column("id", TypeCode.LONG), *(column(f"c{n}", TypeCode.TINY) for n in range(count - 1)))
        cells = [key(5), *(None if n % 3 else bytes([n]) for n in range(count - 1))]
        sent = [True] * count
        found = of(way, RowKind.INSERT, [image(shape, cells) * 3, b""], sent, sent, shape)
        assert found.counts.tolist() == [3, 0]
        assert [r[f"c{n}"] for n in range(count - 1) for r in found.rows.to_pylist()[2:]] == [
            None if n % 3 else n for n in range(count - 1)
        ]


def test_lengths_take_as_many_bytes_as_the_column_specifies(way: Any) -> None:
    """N17: up to 255 bytes one, up to 65,535 two, and one to four for the kinds of TEXT."""
    kinds = [
        column("c255", TypeCode.VARCHAR, 255, collation=8),
        column("c256", TypeCode.VARCHAR, 256, collation=8),
        column("h255", TypeCode.CHAR, 255, collation=8),
        column("h256", TypeCode.CHAR, 1020, collation=45),
        *(column(f"t{size}", TypeCode.BLOB, size, collation=45) for size in (1, 2, 3, 4)),
    ]
    shape = table(column("id", TypeCode.LONG), *kinds)
    cells = [key(1), *(b"x" * (number + 3) for number in range(len(kinds)))]
    sent = [True] * len(cells)
    found = of(way, RowKind.INSERT, [image(shape, cells) * 2], sent, sent, shape).rows
    assert [len(found.column(c.name)[1].as_py()) for c in kinds] == [number + 3 for number in range(len(kinds))]


@pytest.mark.parametrize("cut", range(1, 14))
def test_rows_that_end_too_early_are_refused(way: Any, cut: int) -> None:
    """O10: the rest of a cut row is not a row, and nothing after it is read."""
    whole = row(1, b"new", b"text")
    with pytest.raises(SourceUnavailable, match="does not end where"):
        of(way, RowKind.INSERT, [whole + whole[:-cut]])


@pytest.mark.parametrize("size", [4, 200, 255])
def test_length_beyond_the_event_is_refused(way: Any, size: int) -> None:
    """O10: a malformed length leads into the next event, or beyond the buffer."""
    broken = bytearray(row(1, b"new", b"text"))
    broken[5] = size
    with pytest.raises(SourceUnavailable):
        of(way, RowKind.INSERT, [bytes(broken), row(2, b"new", b"text")])


def test_bitmap_that_is_too_short_is_refused(way: Any) -> None:
    """O10: an event of another table's shape."""
    data, extents = joined([row(1, b"a", b"b")])
    with pytest.raises(SourceUnavailable, match="bitmap"):
        way(ORDERS, data, extents, RowKind.INSERT, b"", b"")


def test_empty_event_gives_no_rows(way: Any) -> None:
    """An event of a captured table may hold no row."""
    assert of(way, RowKind.INSERT, []).rows.num_rows == 0
    assert of(way, RowKind.UPDATE, [b""]).counts.tolist() == [0]


def test_buffer_without_padding_is_read_all_the_same(way: Any) -> None:
    """The padding saves a copy; without it the bytes are copied."""
    data, extents = joined([row(1, b"a", b"b")])
    found = way(ORDERS, data[: int(extents.end[-1])], extents, RowKind.INSERT, b"\7", b"\7")
    assert found.rows.num_rows == 1


def test_truncation_contains_no_values() -> None:
    """M40: all columns are NULL, and no column is unchanged."""
    found = truncation(ORDERS.table)
    assert found.schema.equals(ORDERS.table.change_schema)
    assert [tuple(r.values()) for r in found.to_pylist()] == [(None, None, None, "t", None, None)]
