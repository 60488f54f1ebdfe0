"""The headers of appended runs: as bytes in a frame, as readers see them, and as a source compares them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA
from cdcflow.log.format.transactions import (
    BODY_BYTES_MAX,
    HEADERS_BACK,
    PLAIN_BYTES_MAX,
    TransactionHeaders,
    extent,
    gathered_back,
    headers_back,
    join_headers,
    source_xids,
)
from cdcflow.model.change import Kind, SpooledTransaction
from cdcflow.model.position import Position
from cdcflow.testing.sinks import transactions

HEAD = struct.Struct("<IBB2xI4xqqq")
LZ4, ORIGINS = 1, 2


def run(
    count: int = 3, *, first: int = 100, number: int = 7, kind: Kind = Kind.SOURCE, **more: Any
) -> TransactionHeaders:
    """Transactions of two, then three, then two rows …, from an offset and a number on."""
    ends = np.cumsum([2 + i % 2 for i in range(count)])
    given: dict[str, Any] = {
        "xid": np.arange(50, 50 + count, dtype=np.uint64),
        "position": pa.array([f"p{i}" for i in range(count)], pa.string()),
        "commit_ts": np.arange(1000, 1000 + count),
        "commit_clock": np.arange(2000, 2000 + count),
        **more,
    }
    return TransactionHeaders(first, number, kind, ends, **given)


def decoded(given: TransactionHeaders) -> dict[str, list[object]]:
    found = TransactionHeaders.decode(given.encode())
    assert (found.first_offset, found.first_transaction, found.kind) == (
        given.first_offset,
        given.first_transaction,
        given.kind,
    )
    headers: dict[str, list[object]] = found.headers.to_pydict()
    return headers


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_headers_are_read_back_unchanged(kind: Kind, count: int) -> None:
    """Alone, a few of them plain, and many of them compressed."""
    given = run(count, kind=kind)
    assert decoded(given) == given.headers.to_pydict()
    payload = given.encode()
    rows = int(given.ends[-1])
    assert HEAD.unpack_from(payload)[0] == count
    assert HEAD.unpack_from(payload)[4:] == (7, 100, rows)
    assert extent(payload) == (100, rows, 7, count)
    assert source_xids(payload) == (list(range(50, 50 + count)) if kind is Kind.SOURCE else [])


def test_a_transaction_without_rows_is_read_too() -> None:
    """Alone, and between others."""
    for ends in ([0], [0, 0], [2, 2, 3], [0, 5]):
        given = replace(run(len(ends)), ends=np.array(ends))
        assert decoded(given)["last_offset"] == [99 + end for end in ends]
        assert extent(given.encode())[1] == ends[-1]


def test_a_body_is_compressed_from_the_size_on_that_pays() -> None:
    """Its size in the head is what it was before."""
    fixed = 2 * (4 * 8 + 4)
    for size, form in ((PLAIN_BYTES_MAX, 0), (PLAIN_BYTES_MAX + 1, LZ4)):
        given = run(2, position=pa.array(["x" * (size - fixed - 1), "y"], pa.string()))
        payload = given.encode()
        assert HEAD.unpack_from(payload)[2:4] == (form, size)
        assert (len(payload) == HEAD.size + size) == (form == 0)
        assert decoded(given) == given.headers.to_pydict()


@pytest.mark.parametrize("origin", [["a", None, "b"], ["", "x", "y"], [None, None, "z"], [None, None, None]])
def test_origins_are_written_only_if_any_exist(origin: list[str | None]) -> None:
    """NULL and the empty text are two things."""
    given = run(3, origin=pa.array(origin, pa.string()))
    assert decoded(given)["origin"] == origin
    assert bool(HEAD.unpack_from(given.encode())[2] & ORIGINS) == any(o is not None for o in origin)
    one = run(1, origin=pa.array(origin[:1], pa.string()))
    assert decoded(one)["origin"] == origin[:1]
    assert source_xids(one.encode()) == [50]


def test_one_transaction_with_a_long_origin_is_compressed_like_many() -> None:
    """What is read without decoding the whole frame must not be read from compressed bytes."""
    one = run(1, origin=pa.array(["x" * 2 * PLAIN_BYTES_MAX], pa.string()))
    payload = one.encode()
    assert HEAD.unpack_from(payload)[2] == LZ4 | ORIGINS
    assert decoded(one) == one.headers.to_pydict()
    assert source_xids(payload) == [50]
    assert extent(payload) == (100, 2, 7, 1)


def test_pieces_of_longer_arrays_are_written_alone() -> None:
    """A run is often a slice: the memory around it belongs to other transactions."""
    position = pa.array(["before", "ä", "", "z" * 700, "behind"], pa.string()).slice(1, 3)
    origin = pa.array(["before", None, "o", None, "behind"], pa.string()).slice(1, 3)
    given = run(3, position=position, origin=origin)
    assert decoded(given)["position"] == ["ä", "", "z" * 700]
    assert decoded(given)["origin"] == [None, "o", None]


def test_numbers_of_every_size_are_read_back() -> None:
    """Written as differences to the one before, which may be negative."""
    given = run(
        3,
        first=2**62,
        number=2**61,
        xid=np.array([2**64 - 1, 0, 2**63], np.uint64),
        commit_ts=np.array([-(2**50), 2**50, 0]),
        commit_clock=np.array([1, 2**51, 2**51 + 1]),
    )
    found = TransactionHeaders.decode(given.encode())
    assert found.xid.tolist() == [2**64 - 1, 0, 2**63]
    assert found.commit_ts.tolist() == [-(2**50), 2**50, 0]
    assert found.commit_clock.tolist() == [1, 2**51, 2**51 + 1]
    assert (found.next_offset, found.next_transaction) == (2**62 + 7, 2**61 + 3)
    alone = run(1, xid=np.array([2**64 - 1], np.uint64), commit_ts=np.array([-5]), commit_clock=np.array([7]))
    found = TransactionHeaders.decode(alone.encode())
    assert (found.commit_ts.tolist(), found.commit_clock.tolist()) == ([-5], [7])


def damaged(payload: bytes, field: int, value: int) -> bytes:
    values = list(HEAD.unpack_from(payload))
    values[field] = value
    return HEAD.pack(*values) + payload[HEAD.size :]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_head_that_is_not_its_body_s_is_refused(count: int) -> None:
    """Its checksum may be right: then a fault in cdcflow wrote it, or it was forged (L28)."""
    payload = run(count).encode()
    size = HEAD.unpack_from(payload)[3]
    for field, value in ((0, 0), (0, count + 1), (0, 1 << 31), (3, size - 1), (3, size + 1), (3, BODY_BYTES_MAX + 1)):
        with pytest.raises((ValueError, struct.error, pa.ArrowException, OSError)):
            TransactionHeaders.decode(damaged(payload, field, value))
    rows = HEAD.unpack_from(payload)[6]
    for wrong in (rows - 1, rows + 1):
        for look in (TransactionHeaders.decode, extent):
            with pytest.raises(ValueError, match="rows are not those of the transactions"):
                look(damaged(payload, 6, wrong))
    with pytest.raises((ValueError, struct.error, pa.ArrowException, OSError)):
        TransactionHeaders.decode(payload[:-1])


def test_transactions_that_run_backwards_are_refused() -> None:
    """The sum may be right all the same."""
    payload = bytearray(run(3).encode())
    for at, ends in ((0, 9), (1, -4), (2, 2)):
        payload[HEAD.size + 8 * at : HEAD.size + 8 * at + 8] = struct.pack("<q", ends)
    assert HEAD.unpack_from(payload)[6] == 7
    with pytest.raises(ValueError, match="rows are not those of the transactions"):
        TransactionHeaders.decode(bytes(payload))


@pytest.mark.parametrize("count", [1, 3])
def test_texts_that_lead_beyond_the_body_are_refused(count: int) -> None:
    """An invalid length must not be followed."""
    payload = bytearray(run(count).encode())
    at = HEAD.size + 32 * count
    payload[at : at + 4] = struct.pack("<i", 1000)
    with pytest.raises(ValueError, match="texts are longer than the body"):
        TransactionHeaders.decode(bytes(payload))
    payload[at : at + 4] = struct.pack("<i", 3 if count == 1 else 7)
    with pytest.raises(ValueError, match="texts are longer than the body"):
        TransactionHeaders.decode(bytes(payload))


def test_text_that_is_not_utf_8_is_refused() -> None:
    """A position is returned to the source unchanged."""
    for count in (1, 3):
        payload = bytearray(run(count).encode())
        payload[-1] = 0xFF
        with pytest.raises((ValueError, pa.ArrowException)):
            TransactionHeaders.decode(bytes(payload))


# ── as readers see them ─────────────────────────────────────────────────────────────────────────────────────


def test_runs_are_joined_in_their_order_with_what_each_of_them_is() -> None:
    """Backfills between transactions of the source; positions as texts and in columns; origins of some."""
    alone = run(1, first=100, number=7, position="alone", kind=Kind.READ)
    several = run(3, first=102, number=8, origin=pa.array(["o", None, "p"], pa.string()))
    last = run(1, first=109, number=11, position="last")
    found = join_headers([alone, several, last])
    assert found.schema == TRANSACTIONS_SCHEMA
    columns = found.to_pydict()
    assert columns["number"] == [7, 8, 9, 10, 11]
    assert columns["first_offset"] == [100, 102, 104, 107, 109]
    assert columns["last_offset"] == [101, 103, 106, 108, 110]
    assert columns["position"] == ["alone", "p0", "p1", "p2", "last"]
    assert columns["xid"] == [50, 50, 51, 52, 50]
    assert columns["kind"] == ["read", "source", "source", "source", "source"]
    assert columns["origin"] == [None, "o", None, "p", None]
    assert [t.timestamp() for t in columns["commit_ts"]] == [0.001, 0.001, 0.001001, 0.001002, 0.001]
    texts = join_headers([alone, last])
    assert texts.to_pydict()["position"] == ["alone", "last"]
    assert join_headers([several]).equals(several.headers)


def test_headers_of_a_run_are_those_of_its_transactions() -> None:
    """Of columns, and of one in a spool."""
    given = transactions([5, 6], [1, 3])
    found = TransactionHeaders.of(given, 10, 4, np.array([8, 9]))
    assert (found.first_offset, found.first_transaction, found.kind, found.origin) == (10, 4, Kind.SOURCE, None)
    assert (found.ends.tolist(), found.xid.tolist(), found.commit_clock.tolist()) == ([1, 3], [5, 6], [8, 9])
    assert found.position is given.position
    spooled = SpooledTransaction(7, Position("p"), 1234, 5, "spool-1", origin="elsewhere")
    found = TransactionHeaders.of(spooled, 20, 6, np.array([10]))
    assert (found.ends.tolist(), found.xid.tolist(), found.commit_ts.tolist()) == ([5], [7], [1234])
    assert (found.position, found.kind) == ("p", Kind.SOURCE)
    assert found.origin is not None
    assert found.origin.to_pylist() == ["elsewhere"]
    assert TransactionHeaders.of(replace(spooled, origin=None), 20, 6, np.array([10])).origin is None


# ── as a source compares them ───────────────────────────────────────────────────────────────────────────────


def test_only_the_source_s_transactions_are_compared() -> None:
    """Rows of a backfill do not belong to any transaction."""
    mine, other = run(2, number=7), run(1, number=9, kind=Kind.READ)
    found = headers_back([mine, other, run(1, number=10, position="z")])
    assert found.schema == HEADERS_BACK
    assert found.column("number").to_pylist() == [7, 8, 10]
    assert found.column("position").to_pylist() == ["p0", "p1", "z"]
    assert found.column("xid").to_pylist() == [50, 51, 50]
    assert headers_back([other]).equals(HEADERS_BACK.empty_table())
    assert headers_back([]).num_rows == 0


def test_no_more_pieces_are_read_than_are_needed() -> None:
    """Pieces are read from the latest back, until one begins with a position that is old enough; pieces without
    transactions do not count."""
    pieces = [headers_back([run(2, number=n, position=pa.array([f"{n}a", f"{n}b"]))]) for n in (5, 3, 1)]
    read: list[int] = []

    def given() -> Iterator[pa.Table]:
        for number, piece in enumerate([pieces[0], HEADERS_BACK.empty_table(), *pieces[1:]]):
            read.append(number)
            yield piece

    found = gathered_back(given(), lambda position: position.text <= "3a")
    assert found.column("position").to_pylist() == ["3a", "3b", "5a", "5b"]
    assert read == [0, 1, 2]
    read.clear()
    assert gathered_back(given(), lambda position: False).num_rows == 6
    assert read == [0, 1, 2, 3]
    assert gathered_back(iter(()), lambda position: True).equals(HEADERS_BACK.empty_table())
