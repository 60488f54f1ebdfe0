"""Rows that arrive with less than the source has: the request to read them by key precedes them."""

from __future__ import annotations

import struct

import pytest
from tests.support.mysql.binlog_bytes import LONG, Log, TestColumn, TestTable, image
from tests.support.mysql.binlog_decoder import FLAVORS, WIDE, Reader, T, TestTables, decoded, reader, rows_of

from cdcflow.capture.interleave.messages import Committed, RowsIncomplete
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor

DOCUMENTS = TestTable(
    TableId("shop", "documents"), (TestColumn("id", LONG, nullable=False), TestColumn("doc", 245, b"\4"))
)
DOCUMENT, DIFF = b"\2\0\0\0\4\0", b"\x08\0\0\0\0\3$.a\2\4\1"


def insert_without_w(log: Log, *ids: int) -> None:
    log.rows("i", WIDE, *(image(WIDE, (i, "v", None), [0, 1]) for i in ids), after=[0, 1])


def order_of(found: Reader) -> list[tuple[str, object]]:
    """The keys that are to be read, and how many rows follow, as reported."""
    out: list[tuple[str, object]] = []
    for event in found.events:
        match event:
            case RowsIncomplete(table, keys):
                out.append((table.name, keys.keys.column("id").to_pylist()))
            case Committed(run):
                out.append(("rows", run.rows))
    return out


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("spool_bytes_max", [1 << 30, 1])
def test_keys_of_incomplete_rows_precede_them(flavor: Flavor, spool_bytes_max: int) -> None:
    """A position after the rows must not become durable without the request to read them."""
    log = Log(flavor)
    log.begin()
    log.insert(WIDE, (1, "v", "w"))
    insert_without_w(log, 2, 3)
    log.query("SAVEPOINT `s`")
    insert_without_w(log, 4)
    log.query("ROLLBACK TO `s`")
    log.insert(T, (9, "v"))
    insert_without_w(log, 5)
    log.commit()
    found = reader(log, spool_bytes_max=spool_bytes_max)
    before = found.decoder.progress.last
    found.feed(log.dump())
    keys = [row for name, row in order_of(found) if name == "wide"]
    assert sorted(k for some in keys if isinstance(some, list) for k in some) == [2, 3, 5]
    assert [name for name, _ in order_of(found)][-1] == "rows"
    assert {e.position for e in found.events if isinstance(e, RowsIncomplete)} <= {before, found.decoder.progress.last}
    assert [row[2] for row in rows_of(found) if row[0] == "wide"] == [
        {"id": 1, "v": "v", "w": "w"},
        *({"id": i, "v": "v", "w": None, "_unchanged": ["w"]} for i in (2, 3, 5)),
    ]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_prepared_transaction_is_incomplete_when_it_is_committed(flavor: Flavor) -> None:
    """Its rows arrive with XA COMMIT, and so does the request to read them; a transaction that is rolled back requests
    nothing."""
    log = Log(flavor)
    for xid, first in ((b"a", 1), (b"b", 2)):
        log.gtid()
        log.query(f"XA START X'{xid.hex()}',X'',1")
        insert_without_w(log, first)
        log.query(f"XA END X'{xid.hex()}',X'',1")
        log.xa_prepare(xid)
    found = decoded(log)
    assert not order_of(found)
    log.standalone("XA ROLLBACK X'62',X'',1")
    log.standalone("XA COMMIT X'61',X'',1")
    assert order_of(decoded(log)) == [("wide", [1]), ("rows", 1)]


def test_delivered_rows_order_nothing_again() -> None:
    """The request for rows that the log already has is in the log with them."""
    log = Log("mysql")
    log.begin()
    insert_without_w(log, 1)
    log.commit()
    position = str(decoded(log).decoder.progress.last)
    log.begin()
    insert_without_w(log, 2)
    log.commit()
    assert order_of(decoded(log, position)) == [("wide", [2]), ("rows", 1)]


def test_update_with_a_part_of_a_document_is_incomplete() -> None:
    """The server logs what changed in a document (binlog_row_value_options), in a separate event type."""
    log = Log("mysql")
    log.begin()
    table_id = log.table_map(DOCUMENTS)
    head = struct.pack("<IHHH", table_id, 0, 1, 2) + b"\2\3\3"
    rows = b""
    for number, options, value in ((1, b"\0", DOCUMENT), (2, b"\1\1", DIFF)):
        key = b"\0" + struct.pack("<i", number)
        rows += key + DOCUMENT + options + key + value
    log.event(39, head + rows)
    log.commit()
    found = decoded(log)
    assert order_of(found) == [("documents", [2]), ("rows", 2)]
    assert [row[2] for row in rows_of(found)] == [
        {"id": 1, "doc": "null"},
        {"id": 2, "doc": None, "_unchanged": ["doc"]},
    ]


@pytest.mark.parametrize(
    ("flavor", "new", "keys"),
    [
        ("mariadb", [0, 1], [3]),
        ("mariadb", [0], [3]),
        ("mariadb", [1], []),
        ("mariadb", [0, 1, 2], []),
        ("mysql", [0, 1], []),
    ],
)
def test_update_that_may_replace_a_row_is_incomplete(flavor: Flavor, new: list[int], keys: list[int]) -> None:
    """M08: MariaDB logs REPLACE so, and omits columns that got their defaults. MySQL logs them."""
    log = Log(flavor)
    log.begin()
    values = (3, "v", "w")
    log.rows("u", WIDE, image(WIDE, (2, "v", "w"), [0]), image(WIDE, values, new), before=[0], after=new)
    log.commit()
    assert [name for name, _ in order_of(decoded(log))] == [*(["wide"] if keys else []), "rows"]
    assert [found for name, found in order_of(decoded(log)) if name == "wide"] == ([keys] if keys else [])


@pytest.mark.parametrize(("flavor", "keys"), [("mariadb", [2]), ("mysql", [])])
def test_update_of_a_table_with_generated_columns_is_incomplete(flavor: Flavor, keys: list[int]) -> None:
    """M08: MariaDB omits virtual columns that got other values."""
    log = Log(flavor)
    log.begin()
    log.rows("u", WIDE, image(WIDE, (2, "v", "w"), [0]), image(WIDE, (2, "x", "w"), [1]), before=[0], after=[1])
    log.commit()
    found = reader(log, tables=TestTables(computed=frozenset([WIDE.id])))
    found.feed(log.dump())
    assert [found for name, found in order_of(found) if name == "wide"] == ([keys] if keys else [])
