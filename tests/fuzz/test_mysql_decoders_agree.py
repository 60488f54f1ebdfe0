"""The compiled MySQL decoders against the plain ones, which are the reference: the same bytes must give the same.

`make fuzz` does this with hundreds of thousands of rows; `python tests/fuzz/run_mysql.py --case SEED` replays one case.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.mysql.fuzz import differs, results_differ, split_differs
from tests.support.mysql.values import bitmap, column, image, joined, result_row, table

from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.mysql import decoders, results
from cdcflow.sources.mysql.decoders import COMPILED
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.types.columns import TypeCode
from cdcflow.sources.mysql.types.family import Where
from cdcflow.sources.mysql.types.numbers import bit_metadata, decimal_metadata

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
NUMBERS = st.integers(0, 2**60)

USUAL = (
    column("n", TypeCode.LONGLONG),
    column("m", TypeCode.INT24, unsigned=True),
    column("f", TypeCode.FLOAT, 4),
    column("d", TypeCode.DECIMAL, decimal_metadata(12, 2)),
    column("b", TypeCode.BIT, bit_metadata(9)),
    column("day", TypeCode.DATE),
    column("moment", TypeCode.DATETIME, 3),
    column("tick", TypeCode.TIMESTAMP, 6),
    column("clock", TypeCode.TIME, 0),
    column("y", TypeCode.YEAR),
    column("name", TypeCode.VARCHAR, 80, collation=45),
    column("old", TypeCode.CHAR, 10, collation=8),
    column("raw", TypeCode.BLOB, 2, collation=63),
    column("fixed", TypeCode.CHAR, 4, collation=63),
    column("paper", TypeCode.JSON, 4),
)
IMAGE = (
    bytes(8), bytes(3), bytes(4), b"\x80" + bytes(5), b"\0\1", b"\x21\xa0\x0f", b"\x99\xa0\x42\0\0\0\0", b"\1" * 7,
    b"\x80\0\0", b"\1", "é".encode(), b"e", b"\xff", b"\1", bytes.fromhex("0200000400"),
)  # fmt: skip
TEXT = (
    b"-1", b"1", b"1.5", b"-1.50", b"\0\1", b"2000-01-01", b"2000-01-01 00:00:00.000", b"2000-01-01 00:00:00.000001",
    b"-838:59:59", b"1901", "é".encode(), b"e", b"\xff", b"\1\0\0\0", b"[]",
)  # fmt: skip


@EXAMPLES
@given(NUMBERS)
def test_row_images_become_the_same_changes(number: int) -> None:
    """O10: rows of all types, whole, in part and malformed."""
    assert not differs(number)


@EXAMPLES
@given(NUMBERS)
def test_result_rows_become_the_same_columns(number: int) -> None:
    """O10: a backfill by one decoder and a stream by the other must not differ."""
    assert not results_differ(number)


@EXAMPLES
@given(NUMBERS)
def test_packets_are_cut_into_the_same_events(number: int) -> None:
    """O10: packets whole, cut off, damaged and malformed."""
    assert not split_differs(number)[1]


def test_compiled_decoders_decode_usual_values_themselves() -> None:
    """The plain decoders would give the same, so a compiled one that leaves all rows to them would show only here."""
    if COMPILED is None:
        return  # then there is nothing that could leave anything

    def asked(_: Cells, where: Where) -> pa.Array:
        raise AssertionError(f"{where} was left to its plain decoder")

    plain = table(*USUAL, key=("n",))
    shape = replace(plain, codecs=tuple(replace(c, image=asked, result=asked) for c in plain.codecs), layouts={})
    data, extents = joined([image(shape, IMAGE) + image(shape, [None] * len(USUAL))])
    sent = bitmap([True] * len(USUAL))
    assert COMPILED.changes(COMPILED.layout(shape), data, extents.start, extents.end, 0, sent, sent) is not None
    assert decoders.changes(shape, data, extents, RowKind.UPDATE, sent, sent).rows.num_rows == 2
    data, extents = joined([result_row(TEXT)])
    assert decoders.decode(shape, data, extents).num_rows == 1


@given(
    st.lists(st.binary(max_size=12) | st.binary(min_size=250, max_size=300), max_size=40),
    st.sampled_from([b"", b"\xfe\0\0\2\0", b"\xff\x10\x04#HY000", b"\xfe" + bytes(12)]),
    st.integers(0, 30),
)
def test_row_packets_are_found_alike(rows: list[bytes], last: bytes, cut_off: int) -> None:
    """Data from a server may end anywhere, in the middle of a packet's length too."""
    payloads = [row for row in rows if row[:1] < b"\xfe"] + ([last] if last else [])
    data = b"".join(len(p).to_bytes(3, "little") + bytes([n & 0xFF]) + p for n, p in enumerate(payloads))
    data = data[: max(0, len(data) - cut_off)]
    plain, compiled = results.row_packets(data), decoders.row_packets(data)
    assert (plain.start.tolist(), plain.end.tolist()) == (compiled.start.tolist(), compiled.end.tolist())
    assert (plain.reached, plain.state) == (compiled.reached, compiled.state)
    assert [data[a:b] for a, b in zip(plain.start, plain.end, strict=True)] == payloads[: len(plain.start)]
