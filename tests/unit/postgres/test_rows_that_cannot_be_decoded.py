"""A value that cannot be decoded: its table is refused, and the rows of all others are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.postgres.message_bytes import (
    attribute,
    begin,
    commit,
    delete,
    insert,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    table,
    update,
    xlog,
)
from tests.support.postgres.wire import Row, Spools, transactions

from cdcflow.capture.interleave.messages import ChangesRefused, Committed
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import SpooledTransaction
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder

COLUMNS = [attribute("id", 23, key=True), attribute("v", 25), attribute("due", 1082)]
BAD, GOOD, WHOLE = table("bad", 1, COLUMNS), table("good", 2, COLUMNS), table("whole", 3, COLUMNS, full=True)
TABLES = {1: BAD, 2: GOOD, 3: WHOLE}
BYTES, INFINITY = [b"7", b"c4n4ry\xfe", None], [b"7", None, b"infinity"]
NO_TEXT = "decoding column public.bad.v (type 25): a value is not UTF-8, so the meaning of its bytes is unknown"
AGAIN = "then start again or run `cdcflow apply`, and run `cdcflow backfill public.bad`"
SPOOLS = pytest.mark.parametrize("spool_bytes_max", [1 << 30, 0], ids=["memory", "spool"])


def fine(oid: int, key: int, xid: int | None = None) -> bytes:
    return insert(oid, [b"%d" % key, b"x", None], xid)


def decoder_of(compiled: Compiled | None, **options: Any) -> tuple[PgoutputDecoder, Spools]:
    spools = Spools()
    merged = {"spool_bytes_max": 1 << 30, "binary": False, "skip_until": 0, **options}
    decoder = PgoutputDecoder(describe=lambda r: TABLES[r.oid], open_spool=spools, compiled=compiled, **merged)
    return decoder, spools


def fed(decoder: PgoutputDecoder, *messages: bytes) -> list[StreamEvent]:
    """The events of these messages, which arrive one by one."""
    return [event for one in messages for event in decoder.decode([xlog(one)])]


def refused(events: Sequence[StreamEvent]) -> list[tuple[str, str]]:
    """The refused tables, each with the position before its rows."""
    return [(e.table.name, e.position.text) for e in events if isinstance(e, ChangesRefused)]


def keys(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    return [(name, op, row["id"]) for name, op, row in rows]


@SPOOLS
@pytest.mark.parametrize("values", [BYTES, INFINITY], ids=["bytes", "infinity"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_table_is_refused_and_other_rows_of_the_transaction_are_delivered(
    compiled: Compiled | None, values: list[bytes | None], spool_bytes_max: int, *, one_by_one: bool
) -> None:
    """One date stopped the capture of a whole database."""
    decoder, spools = decoder_of(compiled, spool_bytes_max=spool_bytes_max)
    assert not refused(fed(decoder, begin(1, 8), relation(BAD), fine(1, 1), commit(16)))
    messages = [
        *(begin(2, 24), relation(GOOD), fine(2, 1), insert(1, values), fine(2, 2), commit(32)),
        *(begin(3, 40), fine(2, 3), commit(48)),
    ]
    events = fed(decoder, *messages) if one_by_one else decoder.decode([xlog(m) for m in messages])
    assert refused(events) == [("bad", "00000000/00000010")]
    first = next(e for e in events if isinstance(e, ChangesRefused | Committed))
    assert isinstance(first, ChangesRefused), "a cut with the rows after it must know that others are missing"
    assert first.reason.endswith(AGAIN)
    assert not first.is_checked, "no check of the tables would find the value"
    assert "c4n4ry" not in first.reason
    if values is BYTES:
        assert first.reason.startswith(NO_TEXT)
    else:
        assert "special_values is stop" in first.reason
        assert "{public.bad.due: text}" in first.reason
    found = [(xid, keys(rows)) for xid, _, rows in transactions(events, spools)]
    assert found == [(2, [("good", "c", 1), ("good", "c", 2)]), (3, [("good", "c", 3)])]
    assert decoder.idle


@pytest.mark.parametrize(
    "bad",
    [update(3, [b"7", b"x", None], old=BYTES), delete(3, old=BYTES), update(3, BYTES, old=[b"7", b"x", None])],
    ids=["old row", "deleted row", "new row"],
)
def test_old_row_that_cannot_be_decoded_refuses_its_table(compiled: Compiled | None, bad: bytes) -> None:
    """REPLICA IDENTITY FULL sends the bytes once more when the row is corrected."""
    decoder, _ = decoder_of(compiled)
    events = fed(decoder, begin(1, 8), relation(WHOLE), relation(GOOD), bad, fine(2, 1), commit(16))
    assert refused(events) == [("whole", "00000000/00000000")]
    assert [keys(rows) for _, _, rows in transactions(events)] == [[("good", "c", 1)]]


def test_every_batch_with_such_rows_is_reported(compiled: Compiled | None) -> None:
    """An operator may have the table read again before the rows were corrected."""
    decoder, _ = decoder_of(compiled)
    first = fed(decoder, begin(1, 8), relation(BAD), insert(1, BYTES), commit(16))
    assert [refused(first), transactions(first)] == [[("bad", "00000000/00000000")], []]
    between = fed(decoder, begin(2, 24), fine(1, 2), commit(32))
    assert [refused(between), len(transactions(between))] == [[], 1]
    again = fed(decoder, begin(3, 40), insert(1, INFINITY), insert(1, BYTES), commit(48))
    assert refused(again) == [("bad", "00000000/00000020")]


@SPOOLS
def test_transaction_that_the_log_has_already_refuses_nothing(compiled: Compiled | None, spool_bytes_max: int) -> None:
    """After a restart the server sends it again; its table may have been read again since it failed."""
    decoder, _ = decoder_of(compiled, skip_until=16, spool_bytes_max=spool_bytes_max)
    assert not fed(decoder, begin(1, 8), relation(BAD), insert(1, BYTES), commit(16))[:-1]
    assert not refused(fed(decoder, begin(2, 24), fine(1, 2), commit(32)))


def block(xid: int, *messages: bytes, first: bool = True) -> list[bytes]:
    return [stream_start(xid, first=first), *messages, stream_stop()]


def test_streamed_transaction_refuses_its_table_with_its_commit(compiled: Compiled | None) -> None:
    """A table that failed before the commit, and was read again before it, would lack these rows without a report."""
    decoder, spools = decoder_of(compiled)
    open_part = block(5, relation(BAD, 5), relation(GOOD, 5), fine(1, 1, 5), insert(1, BYTES, 5), fine(2, 1, 5))
    assert fed(decoder, *open_part) == []
    assert fed(decoder, *block(5, fine(1, 2, 5), fine(2, 2, 5), first=False)) == []
    events = fed(decoder, stream_commit(5, 64))
    assert refused(events) == [("bad", "00000000/00000000")]
    (committed,) = (e for e in events if isinstance(e, Committed))
    assert isinstance(committed.run, SpooledTransaction)
    # The machine excludes the table; its other rows are in the spool already.
    left = committed.run.without(frozenset({TableId("public", "bad")}))
    assert (committed.run.rows, left.rows) == (4, 2)
    assert left.shapes == {GOOD.table}
    kept = [row for _, _, rows in transactions([Committed(left)], spools) for row in rows]
    assert keys(kept) == [("good", "c", 1), ("good", "c", 2)]


@pytest.mark.parametrize("aborted", [5, 6])
def test_rows_that_are_rolled_back_refuse_nothing(compiled: Compiled | None, aborted: int) -> None:
    """The source never had them, so the table is complete without them."""
    decoder, spools = decoder_of(compiled)
    rows = block(5, relation(BAD, 5), fine(1, 1, 5), insert(1, BYTES, 6), fine(1, 2, 5))
    events = decoder.decode([xlog(m) for m in rows]) + fed(decoder, stream_abort(5, aborted))
    events += fed(decoder, *([stream_commit(5, 64)] if aborted == 6 else [begin(7, 72), commit(80)]))
    assert refused(events) == []
    found = [keys(rows) for _, _, rows in transactions(events, spools)]
    assert found == ([[("bad", "c", 1), ("bad", "c", 2)]] if aborted == 6 else [])


def test_rows_of_the_same_piece_that_stay_refuse_the_table(compiled: Compiled | None) -> None:
    """Each sub-transaction is decoded alone, and one of two with such rows stays."""
    decoder, spools = decoder_of(compiled)
    rows = block(5, relation(BAD, 5), fine(1, 1, 5), insert(1, BYTES, 6), insert(1, BYTES, 8), fine(1, 2, 9))
    events = decoder.decode([xlog(m) for m in (*rows, stream_abort(5, 6), stream_commit(5, 64))])
    assert refused(events) == [("bad", "00000000/00000000")]
    ((_, _, found),) = transactions(events, spools)
    assert keys(found) == [("bad", "c", 1), ("bad", "c", 2)]


def test_tables_of_one_sub_transaction_are_apart_in_the_spool(compiled: Compiled | None) -> None:
    """Otherwise a log would get rows of a table that fails, or lack rows of another."""
    decoder, spools = decoder_of(compiled, spool_bytes_max=0)
    events = fed(decoder, begin(1, 8), relation(BAD), relation(GOOD), fine(1, 1), fine(2, 1), fine(1, 2), commit(16))
    (committed,) = (e for e in events if isinstance(e, Committed))
    assert isinstance(committed.run, SpooledTransaction)
    assert committed.run.aborted == frozenset()
    apart = {table.name: sorted(part.numbers) for table, part in committed.run.parts.items()}
    assert sorted(number for numbers in apart.values() for number in numbers) == [0, 1]
    (spool,) = spools.all.values()
    assert all(numbers is not None and numbers.dtype == np.uint64 for _, numbers in spool.pieces)
    for name, rows in {"bad": [("good", "c", 1)], "good": [("bad", "c", 1), ("bad", "c", 2)]}.items():
        left = committed.run.without(frozenset({TableId("public", name)}))
        assert [keys(found) for _, _, found in transactions([Committed(left)], spools)] == [rows]
